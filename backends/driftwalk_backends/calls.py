"""Calling a torch model on a probe: named inputs in, no caches, no gradients, no surprises.

A run leaves no trace in the module (`untouched`). Otherwise what it gives would depend on the runs
before it: a model that keeps embeddings of earlier calls would hand float32 ones to a half copy.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from driftwalk.errors import ModelError, ProbeError
from driftwalk.states import Probe

from .ambient import set_aside
from .tensors import from_numpy

_QUIET = {"use_cache": False, "return_dict": True}
"""What every transformers model is asked for: no cache among the outputs, outputs by name."""
_ITS_OWN = {"_parameters", "_modules", "training"}
"""Attributes of a module that are not looked into: weights are no trace of a run."""
_FIXED = {bool, int, float, str, tuple, type(None)}
_SMALL = 1 << 16
"""Bytes of a plain tensor or buffer up to which its values are kept, too."""


def inputs_for(module: nn.Module, probe: Probe, device: torch.device) -> dict[str, torch.Tensor]:
    """The probe's arrays as tensors on the device, floats in the model's own dtype."""
    check_names(module, probe)
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    return with_floats({n: from_numpy(a, device) for n, a in probe.inputs.items()}, dtype)


def with_floats(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The same inputs, those of floats in this dtype."""
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}


def check_names(module: nn.Module, probe: Probe) -> None:
    """Every input must be one the model takes, and every one it needs must be there."""
    parameters = inspect.signature(module.forward).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    takes = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    unknown = [name for name in probe.inputs if name not in takes]
    if unknown and open_ended and hasattr(module, "config"):
        # Transformers passes **kwargs down, and drops without a word what no part of it takes.
        kinds = {type(part) for part in module.modules()}
        inside = {name for kind in kinds for name in inspect.signature(kind.forward).parameters}
        unknown = [name for name in unknown if name not in inside]
        open_ended = not unknown
    if unknown and not open_ended:
        raise ProbeError(
            f"The model takes no input {unknown[0]!r}; {type(module).__name__}.forward takes "
            f"{', '.join(takes)}."
        )
    needed = [n for n in takes if parameters[n].default is inspect.Parameter.empty]
    config = getattr(module, "config", None)
    if config is not None:
        # Transformers declares every input optional and fails inside.
        of_decoder = ["decoder_input_ids"] if getattr(config, "is_encoder_decoder", False) else []
        mains = [str(getattr(module, "main_input_name", "")), *of_decoder]
        needed += [name for name in mains if name in parameters]
    lacking = [name for name in dict.fromkeys(needed) if name not in probe.inputs]
    if lacking and not (lacking == ["input_ids"] and "inputs_embeds" in probe.inputs):
        raise ProbeError(
            f"The probe lacks input {', '.join(map(repr, lacking))}, which "
            f"{type(module).__name__} needs; it has {', '.join(probe.inputs)}."
        )


def call(module: nn.Module, inputs: Mapping[str, torch.Tensor], **extra: Any) -> Any:
    """Call the model, with what keeps a transformers model from returning caches."""
    if hasattr(module, "config"):
        parameters = inspect.signature(module.forward).parameters
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        takes = {*parameters, "return_dict"} if open_ended else {*parameters}
        extra = {name: value for name, value in _QUIET.items() if name in takes} | extra
    return module(**inputs, **extra)


@contextmanager
def quietly(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, autocast or other settings around the call; training
    flags and torch's own come back as they were."""
    training = [part for part in module.modules() if part.training]
    # A CPU without bf16 makes torch switch oneDNN off, for good and for every dtype: the reference
    # would compute differently after a bf16 candidate has run.
    onednn = torch._C._get_mkldnn_enabled()
    module.eval()
    try:
        with untouched(module), set_aside(module), torch.no_grad(), warnings.catch_warnings():
            # Said once per process with a C++ stack trace; what it falls back to is right.
            warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
            yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        for part in training:
            part.training = True


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Attributes, containers in them, and buffers come back as they were."""
    parts = [vars(part) for part in module.modules() if not isinstance(part, LazyModuleMixin)]
    before = [
        {name: (v, None if name in _ITS_OWN else _content(v)) for name, v in attributes.items()}
        for attributes in parts
    ]
    try:
        yield
    finally:
        for attributes, content in zip(parts, before, strict=True):
            _refill(attributes, content)


def _content(value: Any, depth: int = 2) -> Any:
    """What a run could change inside a value; None for what it can only replace."""
    if type(value) in _FIXED:  # most values, and looked at before each run
        return None
    if isinstance(value, torch.Tensor):
        small = value.device.type == "cpu" and value.numel() * value.element_size() <= _SMALL
        if not small or value.is_inference():
            return None
        return value._version, value.detach().clone()
    if isinstance(value, set):
        return set(value) if depth else None
    items = _items(value) if depth else None
    if items is None:
        return None
    return {key: (item, _content(item, depth - 1)) for key, item in items.items()}


def _items(value: Any) -> dict[Any, Any] | None:
    """What a list, a dict, or an object of a class such as a cache holds; None for others."""
    if isinstance(value, list):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    home = type(value).__module__.partition(".")[0]
    closed = isinstance(value, nn.Module | type) or callable(value)  # configs are closed, too
    if closed or hasattr(value, "to_json_string") or not hasattr(value, "__dict__"):
        return None
    return None if home in ("builtins", "torch", "numpy", "types") else vars(value)


def _refill(value: Any, content: Any) -> None:
    """Put back what `_content` saw in a value; what did not change is not written to."""
    if isinstance(value, torch.Tensor):
        version, saved = content
        if value._version != version:
            with torch.no_grad():
                value.copy_(saved)
        return
    if isinstance(value, set):
        if value != content:
            value.clear()
            value.update(content)
        return
    now = _items(value)
    assert now is not None
    if now.keys() != content.keys() or any(now[k] is not item for k, (item, _) in content.items()):
        items = {key: item for key, (item, _) in content.items()}
        if isinstance(value, list):
            value[:] = items.values()
        else:
            now.clear()
            now.update(items)
    for item, inside in content.values():
        if inside is not None:
            _refill(item, inside)


@contextmanager
def explaining(label: str, spec: object) -> Iterator[None]:
    """Turn whatever a model raises on a probe into one clear error."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{label} under {spec} ran out of memory: {first_line(error)} "
            "Use a smaller probe (--batch, --length) or a smaller dtype."
        ) from error
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as e:
        raise ModelError(
            f"{label} failed on the probe under {spec}: {type(e).__name__}: {first_line(e)}"
        ) from e


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its kind, where it says nothing."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:400]
