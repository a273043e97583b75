"""A torch model's probe for a graph of that model: by name, then by type and shape.

What exporters add is made up: optimum's decoders take position ids, an empty past and a flag beside
what the model takes. Where names are gone, several ways to feed a graph may fit its types and
shapes: all are given, and whoever runs them takes the one that makes the graph agree with the model
(`outputs`). A probe that was made for a graph itself is the business of `pairs.probe`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from .reading import CACHE_FLAG
from .values import FLOAT_KINDS, Value

Feed = dict[str, Array]

_MOST_FEEDS = 24


def feeds(where: str, values: Sequence[Value], given: Mapping[str, Array]) -> list[Feed]:
    """Every way to feed a graph that fits, the likeliest first; none at all is an error."""
    named: Feed = {}
    for value in values:
        if value.name in given:
            if (array := _cast(value, given[value.name])) is None:
                raise BackendError(nothing_fits(where, value, values, given))
            named[value.name] = array
    sizes = _sizes(values, named)
    open_values = [value for value in values if value.name not in named]
    for value in list(open_values):
        made = _made_up(value, given, sizes)
        if made is not None and (array := _cast(value, made)) is not None:
            named[value.name] = array
            open_values.remove(value)
    spare = {name: array for name, array in given.items() if name not in named}
    if not open_values:
        if ignored := [name for name, array in spare.items() if not _says_nothing(name, array)]:
            raise BackendError(_unused(where, ignored[0], values, given))
        return _positioned(named, given)
    found = [named | rest for rest in _by_shape(open_values, spare, given)]
    if not found:
        raise BackendError(nothing_fits(where, open_values[0], values, given))
    return found


def _positioned(named: Feed, given: Mapping[str, Array]) -> list[Feed]:
    """Positions count from 0, or skip padding on the left: models differ, so both are tried."""
    skipping = _skipping(given)
    if "position_ids" in given or "position_ids" not in named or skipping is None:
        return [named]
    mask = given["attention_mask"] != 0
    if np.array_equal(skipping[mask], named["position_ids"][mask]):
        return [named]
    return [named, named | {"position_ids": skipping.astype(named["position_ids"].dtype)}]


def _made_up(value: Value, given: Mapping[str, Array], sizes: Mapping[str, int]) -> Array | None:
    """What an exporter adds by name: positions, a mask, types, an empty past, the cache's flag."""
    if value.name == CACHE_FLAG:
        return np.zeros([d if isinstance(d, int) else 1 for d in value.shape], dtype=np.bool_)
    if _is_past(value):
        return _empty_past(value, sizes, _batch(given))
    ids = _ids(given)
    if ids is None:
        return None
    if value.name == "position_ids":
        return _counted(ids)
    if value.name == "cache_position":
        return np.arange(ids.shape[1], dtype=np.int64)
    if value.name.endswith("attention_mask"):
        return np.ones(ids.shape, dtype=np.int64)
    if value.name == "token_type_ids":
        return np.zeros(ids.shape, dtype=np.int64)
    return None


def _by_shape(
    values: Sequence[Value], spare: Mapping[str, Array], given: Mapping[str, Array]
) -> Iterator[Feed]:
    """Inputs without a name that is known, by type and shape; every spare array must be used."""
    own = {value.name: _empty_past(value, {}, _batch(given)) for value in values if _is_past(value)}
    rest = [value for value in values if value.name not in own]
    flags = [v for v in rest if v.kind == "tensor(bool)" and v.shape in ((1,), ())]
    own |= {flag.name: np.zeros(len(flag.shape) * (1,), dtype=np.bool_) for flag in flags}
    rest = [value for value in rest if value.name not in own]
    if len(spare) > len(rest):
        spare = {name: array for name, array in spare.items() if not _says_nothing(name, array)}
    sources = list(spare.values())
    needed, ids = len(sources), _ids(given)
    if ids is not None and len(rest) > needed:
        sources += [np.zeros(ids.shape, np.int64), _counted(ids), np.ones(ids.shape, np.int64)]
    if not rest or needed > len(rest):
        return
    tried = 0
    for chosen in permutations(range(len(sources)), len(rest)):
        if not set(range(needed)) <= set(chosen):
            continue
        arrays = [_cast(v, sources[i], strict=True) for v, i in zip(rest, chosen, strict=True)]
        if all(array is not None for array in arrays):
            yield own | {v.name: a for v, a in zip(rest, arrays, strict=True) if a is not None}
            tried += 1
        if tried == _MOST_FEEDS:
            return


def _cast(value: Value, array: Array, strict: bool = False) -> Array | None:
    """The array in the input's type; None where its type, shape or numbers cannot be meant."""
    if value.is_sequence or value.dtype is None or len(value.shape) != array.ndim:
        return None
    if any(isinstance(d, int) and d != s for d, s in zip(value.shape, array.shape, strict=True)):
        return None
    if strict and value.dtype.kind == "f" and array.dtype.kind != "f":
        return None
    return value.cast(array)


def _is_past(value: Value) -> bool:
    """A cache: floats by batch, heads, a length that is open, and the size of a head."""
    fourfold = len(value.shape) == 4 and all(isinstance(value.shape[i], int) for i in (1, 3))
    floats = value.kind in FLOAT_KINDS
    return floats and fourfold and not isinstance(value.shape[2], int)


def _empty_past(value: Value, sizes: Mapping[str, int], batch: int) -> Array:
    dims = [
        d if isinstance(d, int) else batch if axis == 0 else 0 if "past" in d else sizes.get(d, 0)
        for axis, d in enumerate(value.shape)
    ]
    return np.zeros(dims, dtype=value.dtype)


def _sizes(values: Sequence[Value], named: Feed) -> dict[str, int]:
    """What the graph's open dimensions are on this probe."""
    return {
        d: size
        for value in values
        if value.name in named
        for d, size in zip(value.shape, named[value.name].shape, strict=True)
        if isinstance(d, str) and d
    }


def _ids(given: Mapping[str, Array]) -> Array | None:
    found = given.get("input_ids")
    return found if found is not None and found.ndim == 2 else None


def _batch(given: Mapping[str, Array]) -> int:
    return int(next(iter(given.values())).shape[0])


def _counted(ids: Array) -> Array:
    return np.broadcast_to(np.arange(ids.shape[1], dtype=np.int64), ids.shape).copy()


def _skipping(given: Mapping[str, Array]) -> Array | None:
    mask = given.get("attention_mask")
    if mask is None or mask.ndim != 2:
        return None
    counted: Array = np.where(mask != 0, np.cumsum(mask != 0, axis=1) - 1, 0)
    return counted


def _says_nothing(name: str, array: Array) -> bool:
    """A mask that hides nothing, types that are all the same: a graph may well do without."""
    return (name.endswith("mask") and bool((array == 1).all())) or (
        name == "token_type_ids" and not array.any()
    )


def _sides(values: Sequence[Value], given: Mapping[str, Array]) -> str:
    here = ", ".join(f"{name!r} {a.dtype.name} {list(a.shape)}" for name, a in given.items())
    there = ", ".join(str(value) for value in values[:12])
    more = f" and {len(values) - 12} more" if len(values) > 12 else ""
    return f"The graph takes {there}{more}; the probe has {here or 'nothing'}."


def _unused(where: str, name: str, values: Sequence[Value], given: Mapping[str, Array]) -> str:
    return (
        f"{where} does not take {name!r}, which the probe gives the model, so the two would not "
        f"compute the same. {_sides(values, given)}"
    )


def nothing_fits(
    where: str, lacking: Value, values: Sequence[Value], given: Mapping[str, Array]
) -> str:
    hint = ""
    same = given.get(lacking.name)
    if same is not None and same.ndim == len(lacking.shape) and same.dtype.kind in "iub":
        hint = " Shape the probe as the graph wants it (--batch, --length)."
    if lacking.name == "encoder_hidden_states":
        hint = " This is half of a model: give the folder with the encoder's graph beside it."
    return (
        f"Nothing in the probe fits input {lacking.name!r} of {where}. "
        f"{_sides(values, given)}{hint}"
    )
