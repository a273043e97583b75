"""Inputs of a model that are not one array: flags, texts, lists, dicts, objects, arrays in them.

A forward gets them as they were given, and every run gets a copy of its own: a cache that one run
fills must not reach the next. Arrays may lie anywhere in them. Plain data (None, booleans, numbers,
texts, and lists, tuples and dicts of them) and arrays can be written to a file. Another object
cannot: only the process that has it can run with it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from .dtypes import Array
from .errors import ProbeError

ARRAY = "other:"
"""How the names of arrays begin that lie inside such inputs, in a file."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CLOSED = (*_PLAIN, type, FunctionType, ModuleType, np.ndarray, np.dtype)
_DEEPEST = 64


def is_array(value: object) -> bool:
    """Whether it is one array, or one tensor of a framework."""
    tensor = hasattr(value, "detach") and hasattr(value, "numpy") and hasattr(value, "shape")
    return isinstance(value, np.ndarray | np.generic) or (tensor and not isinstance(value, type))


def as_array(value: Any) -> Array:
    """An array, or a framework's tensor as one; formats that numpy lacks become float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        try:
            return np.asarray(value.resolve_conj().resolve_neg())
        except TypeError:  # bfloat16, float8: float32 holds all of their numbers
            return np.asarray(value.float())
    return np.asarray(value)


def is_list_of_numbers(value: object) -> bool:
    """Whether it is a list of numbers, or of such lists: what a user writes for an array."""
    if not isinstance(value, list) or not value:
        return False
    return all(is_list_of_numbers(v) for v in value) or all(_is_number(v) for v in value)


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float | np.generic)


def kept(name: str, value: Any) -> Any:
    """A copy to keep: arrays and tensors in it become read-only arrays."""

    def own(leaf: Any) -> Array:
        array: Array = np.array(as_array(leaf), order="C")
        if array.dtype.kind not in "fiubcV" or array.dtype.type is np.void:
            raise ProbeError(f"Probe input {name!r} holds an array of {array.dtype}, not numbers.")
        array.flags.writeable = False
        return array

    return replaced(name, value, own)


def replaced(name: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """A deep copy in which every array is what `change` makes of it."""
    # What `deepcopy` finds in its memo it takes from there, wherever an object keeps it.
    memo = {id(leaf): change(leaf) for leaf in arrays_in(value)}
    try:
        return copy.deepcopy(value, memo)
    except ProbeError:
        raise
    except Exception as error:  # whatever the objects' own classes raise
        raise ProbeError(
            f"Probe input {name!r} ({type(value).__name__}) cannot be copied, and every run needs "
            f"a copy of its own: {type(error).__name__}: {str(error)[:200]}"
        ) from error


def arrays_in(value: Any) -> list[Any]:
    """All arrays and tensors in a value, each once, in order."""
    seen: dict[int, Any] = {}
    found: dict[int, Any] = {}

    def walk(item: Any) -> None:
        if isinstance(item, _PLAIN) or id(item) in seen:
            return
        seen[id(item)] = item
        if is_array(item):
            found[id(item)] = item
            return
        for _, part in _parts(item):
            walk(part)

    walk(value)
    return list(found.values())


def content(value: Any) -> Iterator[bytes]:
    """All that a value holds, for a hash: kinds, texts, numbers, and the bytes of arrays."""
    yield from _content(value, ())


def _content(value: Any, above: tuple[int, ...]) -> Iterator[bytes]:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, np.ndarray):
        yield f"array|{value.dtype.str}|{value.shape}|".encode()
        yield value.tobytes()
    elif isinstance(value, _PLAIN):
        yield f"{kind}|{value!r}|".encode(errors="surrogatepass")
    elif id(value) in above or len(above) > _DEEPEST:
        yield f"{kind}|again|".encode()
    elif isinstance(value, set | frozenset):
        items = sorted(b"".join(_content(item, (*above, id(value)))) for item in value)
        yield f"{kind}|{len(items)}|".encode()
        yield from items
    elif parts := _parts(value):
        yield f"{kind}|{len(parts)}|".encode()
        for key, part in parts:
            yield from _content(key, (*above, id(value)))
            yield from _content(part, (*above, id(value)))
    else:
        text = repr(value)  # a place in memory says nothing of what is there
        yield f"{kind}|{'' if ' at 0x' in text else text}|".encode(errors="surrogatepass")


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """What lies in a container or an object, each with its key, index or attribute."""
    if isinstance(value, _CLOSED):
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if isinstance(value, set | frozenset):
        return [(number, item) for number, item in enumerate(value)]
    slots = [s for kind in type(value).__mro__ for s in _slots(kind) if hasattr(value, s)]
    own = [(slot, getattr(value, slot)) for slot in slots]
    return [*own, *getattr(value, "__dict__", {}).items()]


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def to_plain(where: str, value: Any, arrays: MutableMapping[str, Array]) -> Any:
    """A value as JSON, its arrays under names of their own in `arrays`; an object is refused."""
    if isinstance(value, np.ndarray):
        key = f"{ARRAY}{len(arrays)}"
        arrays[key] = value
        return {"array": key}
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is complex:
        return {"complex": str(value)}
    if kind in (bool, int, str, type(None)):
        return value
    if kind in (list, tuple):
        items = [to_plain(f"{where}[{n}]", item, arrays) for n, item in enumerate(value)]
        return items if kind is list else {"tuple": items}
    if kind is dict:
        pairs = [
            [to_plain(where, key, {}), to_plain(f"{where}[{key!r}]", item, arrays)]
            for key, item in value.items()
        ]
        return {"dict": pairs}
    raise ProbeError(
        f"Probe input {where} is a {kind.__qualname__}, which no file and no other process can be "
        "given: only numbers, texts, arrays, and lists, tuples and dicts of them. Run it in this "
        "process, or give what it holds as such."
    )


def from_plain(data: Any, arrays: Mapping[str, Array]) -> Any:
    """What `to_plain` wrote; a KeyError or ValueError where it cannot have."""
    if isinstance(data, list):
        return [from_plain(item, arrays) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, inside),) = data.items()
    if kind == "array":
        return arrays[inside]
    if kind in ("float", "complex"):
        return {"float": float, "complex": complex}[kind](inside)
    if kind == "tuple":
        return tuple(from_plain(item, arrays) for item in inside)
    if kind == "dict":
        return {from_plain(key, arrays): from_plain(item, arrays) for key, item in inside}
    raise ValueError(f"there is no kind {kind!r}")


def in_words(value: Any) -> str:
    """A value in a few words: itself if it is short, else its kind and size."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, _PLAIN):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    if type(value) in (list, tuple, dict):
        items = value.values() if isinstance(value, dict) else value
        inside = ", ".join(map(in_words, list(items)[:4]))
        inside = inside if len(inside) <= 60 else f"{inside[:57]}..."
        return f"{type(value).__name__} of {len(value)}{f': {inside}' if inside else ''}"
    return type(value).__qualname__
