"""Torch tensors in calls and outputs: finding them, naming them, copying them to numpy.

A tensor stands in a *slot*: a path through tuples, dicts and plain objects. A call is the pair
(args, kwargs): its slots begin with a position or with a keyword. An output's begin with whatever
it is made of; the slot of an output that is itself a tensor is empty.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import FORMATS, Array

from .constants import CONTAINER_DEPTH
from .fetching import fetched

Slot = tuple[Any, ...]
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]

TORCH_DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
_NUMBERS = 16
"""How many numbers of a tensor are looked at before all are."""
_PLAIN = bool | int | float | str


def own_kinds(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The parameters that are of a class of their own, as packed weights are."""
    found = (w for part in modules for w in part._parameters.values() if w is not None)
    return [w for w in found if type(w) is not nn.Parameter and issubclass(type(w), nn.Parameter)]


def members(value: Any) -> list[tuple[Any, Any]]:
    """What a container holds, each by its index, key or attribute; nothing of anything else."""
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if isinstance(value, (dict, Mapping)):  # the first since the second is slow to ask for
        return list(value.items())
    if value is None or isinstance(value, _PLAIN | type | torch.Tensor | nn.Module):
        return []
    if dataclasses.is_dataclass(value):
        named = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in named if hasattr(value, name)]
    home = type(value).__module__.partition(".")[0]
    if home in ("builtins", "torch", "transformers") or not hasattr(value, "__dict__"):
        return []
    return list(vars(value).items())


def tensors_in(value: Any, depth: int = CONTAINER_DEPTH) -> Iterator[tuple[Slot, torch.Tensor]]:
    """Every tensor in a value, in order, by its slot."""
    if isinstance(value, torch.Tensor):
        yield (), value
    elif depth:
        for key, item in members(value):
            for rest, tensor in tensors_in(item, depth - 1):
                yield (key, *rest), tensor


def call_tensors(args: Args, kwargs: Kwargs) -> Iterator[tuple[Slot, torch.Tensor]]:
    """Every tensor of a call, positions before keywords."""
    for key, item in (*enumerate(args), *kwargs.items()):
        if isinstance(item, torch.Tensor):
            yield (key,), item
        elif item is not None:
            yield from (((key, *rest), tensor) for rest, tensor in tensors_in(item))


def get(value: Any, slot: Slot) -> Any:
    """What stands in a slot; None where there is no such slot."""
    for key in slot:
        value = dict(members(value)).get(key)
    return value


def put(value: Any, slot: Slot, tensor: Any) -> Any:
    """The value with another tensor in a slot: the same object where it can be written to."""
    if not slot:
        return tensor
    key, rest = slot[0], slot[1:]
    item = put(dict(members(value))[key], rest, tensor)
    if isinstance(value, tuple):
        items = [*value[:key], item, *value[key + 1 :]]
        made: Callable[..., Any] = type(value)
        return made(*items) if hasattr(value, "_fields") else made(items)
    if isinstance(value, list | MutableMapping):
        value[key] = item
        return value
    if isinstance(value, Mapping):
        return {**value, key: item}
    try:
        setattr(value, key, item)
    except AttributeError:  # a frozen dataclass
        value = copy.copy(value)
        object.__setattr__(value, key, item)
    return value


def from_call(args: Args, kwargs: Kwargs, slot: Slot) -> Any:
    """What stands in a slot of a call; None where there is no such slot."""
    return get(args, slot) if isinstance(slot[0], int) else get(dict(kwargs), slot)


def with_call(args: Args, kwargs: Kwargs, slot: Slot, tensor: Any) -> tuple[Args, dict[str, Any]]:
    """The same call with another tensor in a slot."""
    if isinstance(slot[0], int):
        changed: Args = put(args, slot, tensor)
        return changed, dict(kwargs)
    return args, put(dict(kwargs), slot, tensor)


def is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def stream_slot(args: Args, kwargs: Kwargs, known: Slot | None = None) -> Slot | None:
    """Where a block takes the residual stream, by its place in the call; None if nowhere.

    That is where it is known to, if a float tensor stands there; else where the first one does.
    """
    if known and is_float(from_call(args, kwargs, known)):
        return known
    if args and is_float(args[0]):
        return (0,)
    positions = ((number,) for number, value in enumerate(args) if is_float(value))
    names = ((name,) for name in ("hidden_states", *kwargs) if is_float(kwargs.get(name)))
    nested = (slot for slot, item in call_tensors(args, kwargs) if is_float(item))
    return next(chain[Slot](positions, names, nested), None)


def stream_input(args: Args, kwargs: Kwargs, slot: Slot | None = None) -> torch.Tensor | None:
    """The residual stream of a call."""
    slot = stream_slot(args, kwargs, slot)
    return None if slot is None else cast("torch.Tensor", from_call(args, kwargs, slot))


def with_stream_input(
    args: Args, kwargs: Kwargs, tensor: torch.Tensor, slot: Slot | None = None
) -> tuple[Args, dict[str, Any]]:
    """The same call with another tensor on the residual stream."""
    slot = stream_slot(args, kwargs, slot)
    assert slot is not None
    return with_call(args, kwargs, slot, tensor)


def with_stream_output(output: Any, tensor: torch.Tensor, slot: Slot | None = None) -> Any:
    """The same output with another tensor on the residual stream: the first float one."""
    slots = [found for found, _ in float_outputs(output)]
    return put(output, slot if slot is not None and slot in slots else slots[0], tensor)


def float_outputs(output: Any) -> list[tuple[Slot, torch.Tensor]]:
    """Every float tensor a block gave, in order, by its slot; nested caches are not states."""
    if is_float(output):
        return [((), output)]
    found = [((key,), item) for key, item in members(output) if is_float(item)]
    return found or [(slot, item) for slot, item in tensors_in(output) if is_float(item)]


def output_tensors(output: Any, slot: Slot | None = None) -> list[torch.Tensor]:
    """Every float tensor a block gave, in order; the one in the slot comes first."""
    found = dict(float_outputs(output))
    first = [found.pop(slot)] if slot is not None and slot in found else []
    return [*first, *found.values()]


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same numbers, NaN where NaN is; one may have been cast from the other."""
    if a.shape != b.shape or a.device != b.device:
        return False
    dtype = a.dtype
    if a.dtype != b.dtype:
        if not (a.is_floating_point() and b.is_floating_point()):
            return False
        dtype = max(a.dtype, b.dtype, key=lambda one: torch.finfo(one).eps)
    some, others = some_numbers(a), some_numbers(b)
    if some is not None and others is not None:
        pairs = zip(some.to(dtype).tolist(), others.to(dtype).tolist(), strict=True)
        if any(one != other and one == one for one, other in pairs):  # noqa: PLR0124 - NaN does not
            return False
    return _same_numbers(a.to(dtype), b.to(dtype))


def _same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    if torch.equal(a, b):
        return True
    if a.is_floating_point() and a.itemsize > 1 and not bool(a.sum().isnan()):
        return False  # there is no NaN, which alone does not equal itself
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def some_numbers(tensor: torch.Tensor) -> torch.Tensor | None:
    """A few numbers, evenly spread in the order of the axes, which tell most tensors apart; None
    where they cannot be had."""
    if not tensor.numel() or tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    try:
        return torch.take(tensor, _places(tensor.numel(), tensor.device))
    except (RuntimeError, NotImplementedError):  # kinds of tensors that take no index
        return None


@lru_cache(maxsize=256)
def _places(count: int, device: torch.device) -> torch.Tensor:
    places = torch.linspace(0, count - 1, _NUMBERS, dtype=torch.float64)
    return places.round().long().to(device)


@contextmanager
def unseen(*tensors: torch.Tensor, on: torch.device | str = "cpu") -> Iterator[None]:
    """Operations of our own on plain tensors, which no mode around the run need see.

    Seen, they take longer, and the truth's arithmetic computes constants twice. What is `on` a
    device that has no memory is somebody's own kind of tensor.
    """
    plain = all(type(tensor) in (torch.Tensor, nn.Parameter) for tensor in tensors)
    if plain and torch.device(on).type != "meta":
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            yield
    else:
        yield


def to_numpy(tensor: torch.Tensor) -> Array:
    """A copy on the host, in the same format; numpy has no bfloat16 of its own."""
    with unseen(tensor):
        # On the CPU only clone() copies; from a device the transfer itself is the copy.
        own = tensor.detach()
        host = own.clone() if tensor.device.type == "cpu" else fetched(own)
        return _as_array(host.contiguous())


def _as_array(host: torch.Tensor) -> Array:
    if host.dtype == torch.bfloat16:
        return host.view(torch.int16).numpy().view(FORMATS["bf16"].dtype)
    if host.dtype == torch.float8_e4m3fn:
        return host.view(torch.uint8).numpy().view(FORMATS["fp8"].dtype)
    if host.is_floating_point() and host.itemsize == 1:  # kinds of fp8 that fp16 holds exactly
        host = host.to(torch.float16)
    array: Array = host.numpy()
    return array


def from_numpy(
    array: Array, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A fresh tensor; probes are read-only and torch must not write to them."""
    with unseen(on=device):
        if array.dtype == FORMATS["bf16"].dtype:
            tensor = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array.copy())
        return tensor.to(device).to(dtype or tensor.dtype)


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """(B, T, ...) as B*T rows; (B, C) as B rows; anything smaller as one row."""
    return tensor.reshape(math.prod(tensor.shape[:-1][:2]), -1)


def parts_of(module: nn.Module) -> list[nn.Module]:
    """What `module.modules()` gives, in its order, in a small part of the time."""
    found: dict[int, nn.Module] = {}
    waiting: list[nn.Module | None] = [module]
    while waiting:
        part = waiting.pop()
        if part is not None and id(part) not in found:
            found[id(part)] = part
            waiting += reversed([*part._modules.values()])
    return list(found.values())
