"""Calling a torch model on a probe: named inputs in, no caches, no gradients, no surprises."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from driftwalk.errors import ModelError, ProbeError
from driftwalk.states import Probe

from .ambient import set_aside
from .tensors import from_numpy
from .untouched import untouched

_QUIET = {"use_cache": False, "return_dict": True}
"""What every transformers model is asked for: no cache among the outputs, outputs by name."""


def inputs_for(module: nn.Module, probe: Probe, device: torch.device) -> dict[str, torch.Tensor]:
    """The probe's arrays as tensors on the device, floats in the model's own dtype."""
    check_names(module, probe)
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    tensors = {name: from_numpy(array, device) for name, array in probe.inputs.items()}
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}


def check_names(module: nn.Module, probe: Probe) -> None:
    """Every input must be one the model takes, and every one it needs must be there."""
    parameters = inspect.signature(module.forward).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    takes = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    unknown = [name for name in probe.inputs if name not in takes]
    if unknown and open_ended and hasattr(module, "config"):
        # Transformers passes **kwargs down, and drops without a word what no part of it takes.
        unknown = [name for name in unknown if not _taken_inside(module, name)]
        open_ended = not unknown
    if unknown and not open_ended:
        raise ProbeError(
            f"The model takes no input {unknown[0]!r}; {type(module).__name__}.forward takes "
            f"{', '.join(takes)}."
        )
    needed = [n for n in takes if parameters[n].default is inspect.Parameter.empty]
    needed += _needed_by_config(module, parameters)
    lacking = [name for name in dict.fromkeys(needed) if name not in probe.inputs]
    if lacking and not (lacking == ["input_ids"] and "inputs_embeds" in probe.inputs):
        raise ProbeError(
            f"The probe lacks input {', '.join(map(repr, lacking))}, which "
            f"{type(module).__name__} needs; it has {', '.join(probe.inputs)}."
        )


def _taken_inside(module: nn.Module, name: str) -> bool:
    kinds = {type(part) for part in module.modules()}
    return any(name in inspect.signature(kind.forward).parameters for kind in kinds)


def _needed_by_config(module: nn.Module, parameters: Mapping[str, Any]) -> list[str]:
    """Transformers declares every input optional and fails inside; ask its config instead."""
    config = getattr(module, "config", None)
    needed = []
    if config is not None and getattr(module, "main_input_name", None) in parameters:
        needed.append(str(module.main_input_name))
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        needed.append("decoder_input_ids")
    return needed


def call(module: nn.Module, inputs: Mapping[str, torch.Tensor], **extra: Any) -> Any:
    """Call the model, with what keeps a transformers model from returning caches."""
    parameters = inspect.signature(module.forward).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    quiet = {}
    if hasattr(module, "config"):
        quiet = {
            k: v for k, v in _QUIET.items() if k in parameters or (open_ended and k != "use_cache")
        }
    return module(**inputs, **(quiet | extra))


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
        with (
            untouched(module),
            set_aside(module),
            torch.no_grad(),
            warnings.catch_warnings(),
        ):
            # Said once per process with a C++ stack trace; what it falls back to is right.
            warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
            yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        for part in training:
            part.training = True


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
