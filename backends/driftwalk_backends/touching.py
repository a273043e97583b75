"""Which weights a run reads: every torch function is watched, and what memory it is given.

Hooks cannot tell: weights are used by functions as well as by modules (an attention that calls no
`out_proj`), and a bank of experts is called as a whole. So each argument of each function is looked
up by the memory it lies in. A view reads nothing; a lookup reads the rows it names; any other
function reads all it is given. What cannot be told apart counts as read: a weight that is said to
be unread could be anything, and the outputs would be the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from threading import get_ident
from types import FunctionType, MethodType
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from driftwalk.dtypes import Array

from .lending import stored
from .saturation import BENDS, Saturation

_ABOUT_SHAPES = """
    size dim ndimension numel nelement stride storage_offset is_contiguous is_floating_point
    is_complex is_signed element_size get_device __len__ __hash__ is_pinned is_shared is_inference
    is_same_size _is_view zeros_like ones_like empty_like rand_like randn_like new_zeros new_ones
    new_empty is_tensor result_type
"""
_SHAPE_ONLY = frozenset(_ABOUT_SHAPES.split())
"""Functions that take a tensor for its shape or dtype alone."""
_OPERATORS = "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul"
_IN_PLACE = frozenset(f"__i{name}__" for name in _OPERATORS.split())
_FUNCTIONS = (FunctionType, MethodType, nn.Module)
_SCALARS = frozenset({int, float, bool, str, type(None), slice, torch.dtype, torch.device})
_LISTS = (tuple, list)
_GROUPED = ("_grouped_mm", "grouped_mm", "grouped_mm_fallback")

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


class Weight:
    """One parameter, by rows of its first dimension; `read` and `looked_up` say which rows."""

    def __init__(self, name: str, parameter: torch.Tensor) -> None:
        self.name = name
        self.parameter = parameter
        in_rows = parameter.ndim > 0 and parameter.numel() > 0 and parameter.is_contiguous()
        count = len(parameter) if in_rows else 1
        self.elements = parameter.numel()
        size = parameter.element_size() * self.elements
        self.start = int(parameter.storage_offset()) * parameter.element_size()
        # A parameter that is not contiguous is one row, from its first byte to its last.
        self.end = self.start + (size if in_rows else _span(parameter))
        self.row_bytes = max(1, (self.end - self.start) // count)
        self.rows = count
        self.read: Array = np.zeros(count, dtype=bool)
        self.looked_up: Array = np.zeros(count, dtype=bool)
        self.is_looked_up = False
        self.whole = False
        """Some function took all of it at once."""
        self.counted = False
        """Looked up with 0, 1, 2 ...: a table of positions."""
        self.given = ""
        """The input of the model that it was looked up with, if it was one."""

    def add(self, other: Weight) -> None:
        """What another run used of the same parameter."""
        self.read |= other.read
        self.looked_up |= other.looked_up
        self.is_looked_up |= other.is_looked_up
        self.whole |= other.whole
        self.counted |= other.counted
        self.given = self.given or other.given

    @property
    def used(self) -> Array:
        used: Array = self.read | self.looked_up
        return used

    @property
    def is_used(self) -> bool:
        return self.whole or self.is_looked_up or bool(self.read.any())

    @property
    def is_all_used(self) -> bool:
        return self.whole or bool(self.used.all())

    @property
    def elements_used(self) -> int:
        return self.elements if self.whole else self.elements // self.rows * int(self.used.sum())

    def read_bytes(self, low: int, high: int) -> None:
        """Mark the rows that lie in this piece of memory."""
        if low >= self.end or high <= self.start:
            return
        first = max(0, (low - self.start) // self.row_bytes)
        last = (min(high, self.end) - 1 - self.start) // self.row_bytes
        self.read[first : last + 1] = True
        self.whole = self.whole or (first == 0 and last + 1 >= len(self.read))


class Touching(TorchFunctionMode):
    """Watches one run of a module; what it does not understand counts as read."""

    def __init__(self, module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        named = dict(module.named_parameters())
        self.weights = tuple(Weight(name, stored(p)) for name, p in named.items())
        self._modules = {part: path for path, part in module.named_modules()}
        self._called: nn.Module | None = None
        """The module that was called last; `_weighs` the last of those with weights."""
        self._weighs: nn.Module | None = None
        self.saturation = Saturation(inputs)
        self.blind = ""
        """Why nothing can be said; empty where all is well."""
        self._inputs = {name: t for name, t in inputs.items() if not t.is_floating_point()}
        self._places: dict[int, list[Weight]] = {}
        self._objects = {id(named[weight.name]): weight for weight in self.weights}
        ends: dict[int, int] = {}
        for weight in self.weights:
            start, end = _memory(weight.parameter)
            if start:
                self._places.setdefault(start, []).append(weight)
                ends[start] = end
        self._alone = {id(on[0]) for on in self._places.values() if len(on) == 1}
        """Weights that share their memory with no other."""
        self._names: dict[Any, str] = {}
        self._starts = sorted(ends)
        self._ends = [ends[start] for start in self._starts]
        for part in module.modules():
            if isinstance(part, torch.jit.ScriptModule):  # its operations are not seen from here
                for parameter in part.parameters():
                    self._read(parameter)

    def __enter__(self) -> Self:
        self._thread = get_ident()
        self._handle = register_module_forward_pre_hook(self._see_call)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        self._handle.remove()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def _see_call(self, part: nn.Module, args: Any) -> None:
        """Functions are watched in one thread, and not where torch was told not to."""
        if part not in self._modules:
            return
        self._called = part
        if part._parameters:
            self._weighs = part
        if get_ident() != self._thread or torch._C._is_torch_function_all_disabled():
            self.blind = f"{type(part).__name__} runs where it cannot be watched"

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = self._names.get(func) or self._names.setdefault(func, _name(func))
        if name.rstrip("_") in BENDS:
            self._drive(name.rstrip("_"), args or tuple(kwargs.values()))
        result = func(*args, **kwargs)
        if not self.blind:
            try:
                self._note(func, args, kwargs, result)
            except Exception as error:  # whatever it is, it must not disturb the run
                self.blind = f"{type(error).__name__} while watching {_name(func)}: {error}"
        return result

    def _drive(self, name: str, args: Args) -> None:
        """Look at what an activation is given, before it may be overwritten."""
        path = self._modules.get(self._called, "") if self._called is not None else ""
        with suppress(Exception):  # it must not disturb the run
            self.saturation.note(name, args, path, self._weighs)

    def _note(self, func: Callable[..., Any], args: Args, kwargs: Kwargs, out: Any) -> None:
        name = self._names.get(func) or self._names.setdefault(func, _name(func))
        if name in _SHAPE_ONLY or (name == "__get__" and not isinstance(out, torch.Tensor)):
            return
        taken = []
        for value in _flat((*args, *kwargs.values())):
            if isinstance(value, torch.Tensor):
                if id(value) in self._objects or self._place(value):
                    taken.append(value)
            elif isinstance(value, _FUNCTIONS):
                # What is given a function may read weights that only the latter knows of.
                self.blind = f"{name} was given a function, which may know weights of its own"
                return
        if taken:
            self._take(name, taken, args, kwargs, out)

    def _take(
        self, name: str, taken: list[torch.Tensor], args: Args, kwargs: Kwargs, out: Any
    ) -> None:
        """Note what a function makes of the weights that it was given."""
        given = [value for value in _flat((out,)) if isinstance(value, torch.Tensor)]
        in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        if given and not in_place and all(not value.numel() for value in given):
            return  # an expert that no token was routed to is given none
        # A view of a weight reads nothing yet: what it gives lies where the weight does.
        views = {self._place(value) for value in given}
        can_be_views = not in_place and "out" not in kwargs and 0 not in views
        for tensor in taken:
            if can_be_views and self._place(tensor) in views:
                continue
            rows = self._rows(name, tensor, args, kwargs) if len(taken) == 1 else None
            if rows is None or not self._look_up(tensor, rows):
                self._read(tensor)

    def _rows(
        self, name: str, table: torch.Tensor, args: Args, kwargs: Kwargs
    ) -> torch.Tensor | None:
        """The rows of a table that a function reads; None where it reads all of it."""
        values = [*args, *kwargs.values()]
        if name in ("embedding", "embedding_bag"):
            others = [v for v in values[:2] if isinstance(v, torch.Tensor) and v is not table]
            if len(others) == 1 and any(v is table for v in values[:2]):
                return others[0]
        elif name == "__getitem__" and args and args[0] is table:
            return _first_index(args[1])
        elif name == "index_select" and len(values) == 3 and values[0] is table:
            if values[1] in (0, -table.ndim) and isinstance(values[2], torch.Tensor):
                return values[2]
        elif name in _GROUPED and len(args) == 2 and args[1] is table:
            ends = kwargs.get("offs")
            by_rows = table.ndim == 3 and args[0].ndim == 2
            if by_rows and isinstance(ends, torch.Tensor) and ends.shape == table.shape[:1]:
                return torch.diff(ends, prepend=ends.new_zeros(1)).nonzero()[:, 0]
        return None

    def _look_up(self, table: torch.Tensor, rows: torch.Tensor) -> bool:
        """Mark rows of a tensor that is a weight, or a view of one that keeps its rows."""
        weights = self._weights_of(table)
        if len(weights) != 1 or rows.is_floating_point() or not table.ndim or not _is_plain(table):
            return False
        table = stored(table)
        weight, width = weights[0], table.stride(0) * table.element_size()
        start = int(table.storage_offset()) * table.element_size() - weight.start
        per_row, rest = divmod(width, weight.row_bytes)
        if not per_row or rest or start < 0 or start % weight.row_bytes or _span(table[:1]) > width:
            return False
        numbers = rows.detach().cpu().numpy().astype(np.int64)
        first = np.where(numbers < 0, numbers + len(table), numbers).reshape(-1, 1) * per_row
        places = first + start // weight.row_bytes + np.arange(per_row)
        if places.size and (places.min() < 0 or places.max() >= len(weight.read)):
            return False
        weight.looked_up[places.reshape(-1)] = True
        weight.is_looked_up |= bool(places.size)
        weight.given = weight.given or self._input_named(rows)
        line = numbers.reshape(-1, numbers.shape[-1])[0] if numbers.ndim else numbers.reshape(-1)
        weight.counted = weight.counted or (len(line) > 2 and bool((np.diff(line) == 1).all()))
        return True

    def _input_named(self, ids: torch.Tensor) -> str:
        place = ids.shape, ids.device
        alike = {n: t for n, t in self._inputs.items() if (t.shape, t.device) == place}
        return next((name for name, tensor in alike.items() if bool((tensor == ids).all())), "")

    def _read(self, tensor: torch.Tensor) -> None:
        own = self._objects.get(id(tensor))
        if own is not None and id(own) in self._alone:
            if not own.whole:
                own.read_bytes(own.start, max(own.end, own.start + 1))
            return
        plain = _is_plain(tensor)
        if own is not None or not plain:
            for weight in [own] if own is not None else self._weights_of(tensor):
                weight.read_bytes(weight.start, max(weight.end, weight.start + 1))
        if plain:
            memory = stored(tensor)
            low = int(memory.storage_offset()) * memory.element_size()
            for weight in self._weights_of(tensor):
                weight.read_bytes(low, low + _span(memory))

    def _place(self, tensor: torch.Tensor) -> int:
        """The start of the memory of weights that a tensor lies in; 0 where it lies elsewhere."""
        try:
            address = stored(tensor).data_ptr()
        except (NotImplementedError, RuntimeError):  # sparse, or wrapped by vmap
            if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                return self._place(torch._C._functorch.get_unwrapped(tensor))
            return 0
        number = bisect_right(self._starts, address) - 1
        return self._starts[number] if number >= 0 and address < self._ends[number] else 0

    def _weights_of(self, tensor: torch.Tensor) -> list[Weight]:
        """The weights in the memory that a tensor is a part of."""
        place = self._place(tensor)
        if place:
            return self._places[place]
        own = self._objects.get(id(tensor))
        return [own] if own is not None else []


def _name(func: Callable[..., Any]) -> str:
    name = str(getattr(func, "__name__", "") or func)
    return name.partition(".")[0]  # `embedding.default` is an embedding


def _first_index(index: Any) -> torch.Tensor | None:
    """The rows that an index takes; None where it is no list of rows."""
    if isinstance(index, tuple) and index:
        index = index[0]
    if isinstance(index, list) and index and all(isinstance(item, int) for item in index):
        index = torch.tensor(index)
    if not isinstance(index, torch.Tensor) or index.dtype == torch.uint8:
        return None  # bytes are an old form of a mask
    if index.dtype == torch.bool:
        return index.nonzero()[:, 0] if index.ndim else None
    return index


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        kind = type(value)
        if kind in _SCALARS:
            continue
        if kind is torch.Tensor:
            yield value
        elif issubclass(kind, _LISTS):
            yield from _flat(value)
        elif issubclass(kind, dict):
            yield from _flat(value.values())
        else:
            yield value


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it lies in memory by strides: not sparse, nor wrapped by vmap."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return tensor.layout is torch.strided and not wrapped


def _memory(parameter: torch.Tensor) -> tuple[int, int]:
    """Where the memory begins and ends that a parameter is a part of; 0 where it has none."""
    if not _is_plain(parameter):
        return 0, 0
    storage = parameter.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _span(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if not tensor.numel() or tensor.layout is not torch.strided:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()
