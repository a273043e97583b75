"""A module that a user gave to be run: as it is, with its own dtypes, devices and kernels.

Float inputs are given in the finest dtype among its float parameters that it takes. What each point
computes in is told by the parameters used on the way to it since the point before: the coarsest of
them, since float32 norms do not make a bfloat16 block float32. A point without any computes in the
dtype of its state.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from driftwalk.dtypes import FORMATS
from driftwalk.errors import ModelError, UsageError
from driftwalk.mixture import Mixture
from driftwalk.other_inputs import arrays_in
from driftwalk.states import Point, Probe

from .calls import Inputs, call, check_names, first_line, on_device, with_floats
from .eager_run import watched
from .layout import Layout
from .loaded import LoadedModel
from .points import has_modules
from .tensors import TORCH_DTYPES, is_float

_NAMES = {value: key for key, value in TORCH_DTYPES.items()} | {
    torch.complex32: "fp16",
    torch.complex64: "fp32",
    torch.complex128: "fp64",
}
"""A complex number is as fine as its two parts."""

_BYTES = (torch.int8, torch.uint8)
_QUANTISED = ("quantized", "bitsandbytes", "torchao", "quanto", "gptq", "awq", "hqq")
"""How words begin in the names of packages whose modules and tensors hold quantised weights."""


class GivenModel(LoadedModel):
    """A model that is never converted: what is asked of it is what it is."""

    def __init__(self, module: nn.Module, label: str = "", like: LoadedModel | None = None) -> None:
        _settle(module)
        super().__init__(module, label or type(module).__name__, like=like)
        # What a user named in the model; another implementation may lack it.
        if like is not None and like.blocks and has_modules(module, like.blocks):
            self.blocks = like.blocks
        held = [p for p in module.parameters() if p.device.type != "meta"]
        if not held and next(module.parameters(), None) is not None:
            raise UsageError(f"{self.label} has no weights: all its parameters are on 'meta'.")
        names = list(dict.fromkeys(_name(p.dtype) for p in held))
        self._dtypes = sorted(filter(None, names), key=_coarseness)
        strange = {str(p.dtype) for p in held if _strange(p)}
        if strange and not self._dtypes:
            raise UsageError(
                f"{self.label} holds {', '.join(sorted(strange))}, which cannot be compared; "
                f"expected parameters in {', '.join(TORCH_DTYPES)}."
            )
        self.quantised = _quantised(module)
        """What shows that it holds quantised weights; empty where nothing does."""
        first = next((p for p in held if _name(p.dtype)), None)
        self.device = first.device if first is not None else torch.device("cpu")
        """Where it takes its inputs."""
        self._takes: dict[frozenset[str], torch.dtype] = {}
        self._mixture: Mixture | None = None

    @property
    def is_mixed(self) -> bool:
        """Whether its parameters have more than one dtype."""
        return len(self._dtypes) > 1

    @property
    def mixture(self) -> Mixture:
        """What it computes in; point by point once `watch` has seen a run."""
        return self._mixture or Mixture(self._dtypes[-1] if self._dtypes else "fp32")

    def at(self, dtype: str, device: str, attn: str | None = None, **options: Any) -> nn.Module:
        return self.module

    def inputs(self, module: nn.Module, probe: Probe, device: torch.device | str) -> dict[str, Any]:
        check_names(module, probe)
        tensors = on_device(probe, device)
        if not any(map(is_float, arrays_in(tensors))):
            return tensors
        if not self.is_mixed:
            return with_floats(tensors, TORCH_DTYPES[self.mixture.dtype])
        names = frozenset(tensors)
        if names not in self._takes:
            self._takes[names] = self._first_taken(tensors)
        return with_floats(tensors, self._takes[names])

    def _first_taken(self, tensors: Inputs) -> torch.dtype:
        """The finest of its dtypes in which the model takes float inputs."""
        failed = []
        for name in self._dtypes:
            try:
                call(self.module, with_floats(tensors, TORCH_DTYPES[name]))
            except RuntimeError as error:
                failed.append(f"{name}: {first_line(error)}")
            else:
                return TORCH_DTYPES[name]
        raise ModelError(
            f"{self.label} holds parameters in {', '.join(self._dtypes)}, and takes float inputs "
            f"in none of them ({'; '.join(failed)}). What was given is never converted: cast the "
            "inputs and what is handed between parts of different dtypes inside its forward."
        )

    def watch(self, layout: Layout, run: Callable[[], Any]) -> None:
        """Find out in one run what each point computes in; a model of one dtype is not run."""
        if self._mixture is None and self.is_mixed:
            self._mixture = _watched(self.module, layout, run)


def _settle(module: nn.Module) -> None:
    """Have modules of LLM.int8 move their numbers to where their first run would.

    What a run leaves behind is taken back; here it would take the numbers with it.
    """
    for part in module.modules():
        move = getattr(part, "init_8bit_state", None)
        if move is not None and getattr(part._parameters.get("weight"), "CB", None) is not None:
            move()


def _watched(module: nn.Module, layout: Layout, run: Callable[[], Any]) -> Mixture:
    used = _UsedParameters(module)
    walked = {point.name for point in layout.points}
    blocks = {path for stack in layout.stacks for path in stack.blocks}
    dtypes: dict[str, str] = {}
    stored: dict[str, str] = {}

    def meet(point: Point, tensor: torch.Tensor) -> None:
        if point.name not in walked:
            return
        seen, used.dtypes = used.dtypes, set()
        state = _name(tensor.dtype)
        if not seen and point.module in blocks:  # code that only its own compiler can look into
            seen = {_name(p.dtype) for p in module.get_submodule(point.module).parameters()} - {""}
        dtypes[point.name] = max(seen or {state or "fp32"}, key=_coarseness)
        if state and _coarseness(state) > _coarseness(dtypes[point.name]):
            stored[point.name] = state

    with used:
        watched(module, layout, meet, run)
    coarsest = max(dtypes.values(), key=_coarseness)
    alike = set(dtypes.values()) == {coarsest}
    return Mixture(coarsest) if alike else Mixture(coarsest, dtypes, stored)


class _UsedParameters(TorchFunctionMode):
    """Notes the dtypes of the parameters that torch functions are called with."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        named = ((id(p), _name(p.dtype)) for p in module.parameters())
        self._known = {key: name for key, name in named if name}
        self.dtypes: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") != "__get__":  # `weight.dtype` computes nothing
            used = (self._known.get(id(value)) for value in tree_leaves((args, kwargs)))
            self.dtypes.update(filter(None, used))
        return func(*args, **(kwargs or {}))


def _name(dtype: torch.dtype) -> str:
    """The format's short name; empty for whole numbers and what is only ever stored."""
    return _NAMES.get(dtype, "")


def _coarseness(name: str) -> float:
    return FORMATS[name].roundoff


def _strange(tensor: torch.Tensor) -> bool:
    """Numbers in a format that nothing is computed in: float8, float4, packed bits."""
    whole = (torch.int16, torch.int32, torch.int64, torch.bool, *_BYTES)
    return not _name(tensor.dtype) and tensor.dtype not in whole


def _quantised(module: nn.Module) -> str:
    """The kind of module or tensor that shows quantised weights; empty where there is none."""
    for part in module.modules():
        if getattr(getattr(part, "quantization_scheme", None), "weights", None) is not None:
            return "compressed-tensors"  # in plain modules, floats again after the first run
        if (stored := getattr(part, "stored_weight", None)) is not None:
            return str(stored.grid.name)  # read from a folder (formats/folders)
        own = list(part.parameters(recurse=False))
        for kind in (type(part), *(type(p) for p in own), *(type(p.data) for p in own)):
            words = re.split(r"[._]", kind.__module__.lower())
            if any(word.startswith(_QUANTISED) for word in words):
                return kind.__name__
        for parameter in own:
            if parameter.is_quantized or parameter.dtype in _BYTES or _strange(parameter):
                return str(parameter.dtype).removeprefix("torch.")
    return ""
