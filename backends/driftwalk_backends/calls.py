"""Calling a torch model on a probe: named inputs in, no caches, no gradients, no surprises.

A run leaves no trace in the module (untouched.py), nor in its inputs (each run has copies of its
own), and every run begins with the same random numbers.
"""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.errors import ModelError, ProbeError
from driftwalk.other_inputs import content, replaced
from driftwalk.states import Probe

from .ambient import set_aside
from .functions import Function
from .randomness import begin_alike
from .tensors import from_numpy, parts_of, to_numpy
from .untouched import Saved, untouched

Inputs = Mapping[str, Any]
"""What a forward is called with, by name: tensors, and whatever else it takes."""

_QUIET = {"use_cache": False, "return_dict": True}
"""What every transformers model is asked for: no cache among the outputs, outputs by name."""
_SAID_BY_TORCH = ("mkldnn_matmul failed", "ComplexHalf support", "LSTM with projections")
"""How warnings begin that are about torch's own kernels, and nothing to a user."""


@dataclass(frozen=True)
class Forward:
    """What the forward of a module takes."""

    positions: tuple[str, ...] = ()
    """What can be given by position, in order; `unnamed` of these by position alone."""
    unnamed: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    """What can be given by name alone."""
    needed: tuple[str, ...] = ()
    """What has no default."""
    any_position: bool = False
    any_name: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.positions, *self.keywords)

    def takes(self, name: str) -> bool:
        """Whether an input of this name can be given, by its name or in its turn."""
        return self.any_name or self.any_position or name in self.names

    def arguments(self, inputs: Inputs) -> tuple[list[Any], dict[str, Any]]:
        """Inputs as positions and keywords; nameless ones in the order they were given in."""
        loose = [name for name in inputs if name not in self.names]
        by_order = bool(loose) and self.any_position and not self.any_name
        first = self.positions if by_order else self.unnamed
        taken = [name for name in first if name in inputs] + (loose if by_order else [])
        rest = {name: value for name, value in inputs.items() if name not in taken}
        return [inputs[name] for name in taken], rest


def forward_of(module: Callable[..., Any]) -> Forward:
    """What a module's forward, or a function, takes; of what does not say, anything in order."""
    function = module.function if isinstance(module, Function) else module
    if isinstance(function, nn.Module):
        function = function.forward
    arguments = getattr(getattr(function, "schema", None), "arguments", None)
    if arguments is not None:  # TorchScript
        own = [a for a in arguments if a.name != "self"]
        needed = tuple(a.name for a in own if not a.has_default_value())
        return Forward(tuple(a.name for a in own), needed=needed)
    method = getattr(function, "__func__", None)
    if not isinstance(method, FunctionType):
        return _signature(function)
    if method not in _signatures:  # asked for in every run, and slow to read
        _signatures[method] = _signature(function)
    return _signatures[method]


_signatures: WeakKeyDictionary[Any, Forward] = WeakKeyDictionary()


def _signature(function: Callable[..., Any]) -> Forward:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):  # compiled code
        return Forward(any_position=True)
    alone, keyword = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return Forward(
        tuple(p.name for p in plain if p.kind is not keyword),
        tuple(p.name for p in plain if p.kind is alone),
        tuple(p.name for p in plain if p.kind is keyword),
        tuple(p.name for p in plain if p.default is inspect.Parameter.empty),
        any(p.kind is p.VAR_POSITIONAL for p in parameters),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def inputs_for(module: nn.Module, probe: Probe, device: torch.device | str) -> dict[str, Any]:
    """The probe's inputs, arrays as tensors on the device, floats in the model's own dtype."""
    check_names(module, probe)
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    return with_floats(on_device(probe, device), dtype)


def on_device(probe: Probe, device: torch.device | str) -> dict[str, Any]:
    """The probe's inputs, with tensors on the device in place of arrays, wherever they lie."""

    def tensor(array: Any) -> torch.Tensor:
        return from_numpy(array, device)

    inputs: dict[str, Any] = {name: tensor(array) for name, array in probe.inputs.items()}
    return inputs | {name: replaced(name, v, tensor) for name, v in probe.others.items()}


def with_floats(inputs: Inputs, dtype: torch.dtype) -> dict[str, Any]:
    """The same inputs, tensors of floats in this dtype; complex ones as fine, but never coarse."""
    wide = torch.complex128 if dtype is torch.float64 else torch.complex64

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return tensor.to(wide)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return _changed(inputs, cast)


def own_copies(inputs: Inputs) -> dict[str, Any]:
    """Inputs that a run may write to."""
    return _changed(inputs, lambda tensor: tensor.clone())


def _changed(inputs: Inputs, change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    return {
        name: change(value) if isinstance(value, torch.Tensor) else replaced(name, value, change)
        for name, value in inputs.items()
    }


def kept_in(name: str, value: Any) -> str:
    """A hash of all that an input holds which is not one tensor; the same at every dtype."""

    def coarse(tensor: torch.Tensor) -> Array:
        return to_numpy(tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor)

    return hashlib.sha256(b"".join(content(replaced(name, value, coarse)))).hexdigest()


def tensors_only(inputs: Inputs) -> dict[str, torch.Tensor]:
    """The inputs that are one tensor."""
    return {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}


def check_names(module: nn.Module, probe: Probe) -> None:
    """Every input must be one the model takes, and every one it cannot do without must be there."""
    forward = forward_of(module)
    unknown = [name for name in probe.names if not forward.takes(name)]
    if forward.any_name and hasattr(module, "config"):
        # Transformers passes **kwargs down, and drops without a word what no part of it takes.
        # Flags that all models take (output_attentions) stand in no signature.
        loose = [name for name in probe.inputs if name not in forward.names]
        parts = {type(part): part for part in module.modules()} if loose else {}
        inside = {name for part in parts.values() for name in forward_of(part).names}
        unknown = [name for name in loose if name not in inside]
    if unknown:
        raise ProbeError(
            f"The model takes no input {unknown[0]!r}; {_class_name(module)}.forward takes "
            f"{', '.join(forward.names)}."
        )
    if lacking := [name for name in forward.needed if name not in probe.names]:
        raise ProbeError(lacks(module, probe, lacking))


def names_taken(module: nn.Module) -> tuple[str, ...]:
    """What the forward takes by name; of one that hands others on, also what its parts take."""
    forward = forward_of(module)
    if not forward.any_name or not hasattr(module, "config"):
        return forward.names
    parts = {type(part): part for part in module.children()}
    inside = (name for part in parts.values() for name in forward_of(part).names)
    return tuple(dict.fromkeys((*forward.names, *inside)))


def lacks(module: nn.Module, probe: Probe, names: list[str]) -> str:
    """The sentence that says so."""
    return (
        f"The probe lacks input {', '.join(map(repr, names))}, which {_class_name(module)} needs; "
        f"it has {', '.join(probe.names)}."
    )


def _class_name(module: nn.Module) -> str:
    return str(getattr(module, "original_name", "") or type(module).__name__)


def call(module: nn.Module, inputs: Inputs, **extra: Any) -> Any:
    """Call the model on copies of the inputs, with the random numbers that every run begins with,
    and with what keeps a transformers model from returning caches."""
    begin_alike()
    return call_as_it_is(module, own_copies(inputs), **extra)


def call_as_it_is(module: nn.Module, inputs: Inputs, **extra: Any) -> Any:
    """The same on these very inputs, and with whatever random numbers come next."""
    positions, keywords = arguments_of(module, inputs, **extra)
    return module(*positions, **keywords)


def arguments_of(
    module: nn.Module, inputs: Inputs, **extra: Any
) -> tuple[list[Any], dict[str, Any]]:
    """What a module is called with, by position and by name."""
    forward = forward_of(module)
    if hasattr(module, "config"):
        takes = {*forward.names, "return_dict"} if forward.any_name else {*forward.names}
        asked = {n: value for n, value in _QUIET.items() if n in takes and n not in inputs}
        extra = asked | extra
    positions, keywords = forward.arguments(inputs)
    return positions, keywords | extra


@contextmanager
def quietly(module: nn.Module, saved: Saved | None = None) -> Iterator[None]:
    """Evaluation mode without gradients, autocast or other settings around the call; training
    flags and torch's own come back as they were.

    `saved` is what the module held before, where that is known.
    """
    # A frozen TorchScript module has no such flag any more.
    training = [part for part in parts_of(module) if getattr(part, "training", False)]
    # A CPU without bf16 makes torch switch oneDNN off, for good and for every dtype: the reference
    # would compute differently after a bf16 candidate has run.
    onednn = torch._C._get_mkldnn_enabled()
    if training:
        module.eval()
    try:
        own = untouched(module, saved)
        with own, set_aside(module), torch.no_grad(), warnings.catch_warnings():
            # Said once per process with a C++ stack trace; what it falls back to is right.
            for begins in _SAID_BY_TORCH:
                warnings.filterwarnings("ignore", message=begins)
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
