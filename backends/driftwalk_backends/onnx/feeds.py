"""A torch model's probe for a graph of that model: by name, then by type and shape.

What exporters add is made up: optimum's decoders take position ids, an empty past and a flag beside
what the model takes. Where names are gone, several ways to feed a graph may fit its types and
shapes: all are given, and the one is chosen that makes the graph give the model's outputs. A probe
that was made for a graph itself is the business of `pairs.model`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from ..constants import FEED_AGREES, FEED_SAME, FEED_SAME_MASK, MATCH_MARGIN
from ..matching import arrangements, error
from .graph import FLOAT_KINDS, Arrays, Value
from .reading import CACHE_FLAG

Feed = dict[str, Array]

_MOST_FEEDS = 24


def feeds(where: str, values: Sequence[Value], given: Arrays) -> list[Feed]:
    """Every way to feed a graph that fits, the likeliest first; none at all is an error."""
    named: Feed = {}
    for value in values:
        if value.name in given:
            if (array := _cast(value, given[value.name])) is None:
                raise BackendError(nothing_fits(where, value, values, given))
            named[value.name] = array
    sizes = open_sizes(values, named)
    unnamed = []
    for value in values:
        if value.name in named:
            continue
        made = _made_up(value, given, sizes)
        if made is not None and (array := _cast(value, made)) is not None:
            named[value.name] = array
        else:
            unnamed.append(value)
    spare = {name: array for name, array in given.items() if name not in named}
    if not unnamed:
        refuse_ignored(where, values, given)
        return _positioned(named, given)
    found = [named | rest for rest in _by_shape(unnamed, spare, given)]
    if not found:
        raise BackendError(nothing_fits(where, unnamed[0], values, given))
    return found


def refuse_ignored(where: str, values: Sequence[Value], given: Arrays) -> None:
    """An error where a graph takes no notice of something that changes what the model gives."""
    names = {value.name for value in values}
    for name, array in given.items():
        if name not in names and not _says_nothing(name, array):
            raise BackendError(
                f"{where} does not take {name!r}, which the probe gives the model, so the "
                f"two would not compute the same. {_sides(values, given)}"
            )


def _positioned(named: Feed, given: Arrays) -> list[Feed]:
    """Positions count from 0, or skip padding on the left: models differ, so both are tried."""
    mask = given.get("attention_mask")
    if "position_ids" in given or "position_ids" not in named or mask is None or mask.ndim != 2:
        return [named]
    seen, counted = mask != 0, named["position_ids"]
    skipping = np.where(seen, np.cumsum(seen, axis=1) - 1, 0)
    if np.array_equal(skipping[seen], counted[seen]):
        return [named]
    return [named, named | {"position_ids": skipping.astype(counted.dtype)}]


def _made_up(value: Value, given: Arrays, sizes: Mapping[str, int]) -> Array | None:
    """What an exporter adds by name: positions, a mask, types, an empty past, the cache's flag."""
    if value.name == CACHE_FLAG:
        return np.zeros([d if isinstance(d, int) else 1 for d in value.shape], dtype=np.bool_)
    if _is_past(value):
        return _empty_past(value, sizes, _batch(given))
    ids = _ids(given)
    if ids is None:
        return None
    if value.name.endswith("attention_mask"):
        return np.ones(ids.shape, dtype=np.int64)
    counted = _counted(ids)
    known = {"position_ids": counted, "cache_position": counted[0], "token_type_ids": 0 * counted}
    return known.get(value.name)


def _by_shape(values: Sequence[Value], spare: Arrays, given: Arrays) -> Iterator[Feed]:
    """Inputs without a name that is known, by type and shape; every spare array must be used."""
    own = {value.name: _empty_past(value, {}, _batch(given)) for value in values if _is_past(value)}
    flags = [v for v in values if v.kind == "tensor(bool)" and v.shape in ((1,), ())]
    own |= {flag.name: np.zeros(len(flag.shape) * (1,), dtype=np.bool_) for flag in flags}
    rest = [value for value in values if value.name not in own]
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
    return value.kind in FLOAT_KINDS and fourfold and not isinstance(value.shape[2], int)


def _empty_past(value: Value, sizes: Mapping[str, int], batch: int) -> Array:
    dims = [
        d if isinstance(d, int) else batch if axis == 0 else 0 if "past" in d else sizes.get(d, 0)
        for axis, d in enumerate(value.shape)
    ]
    return np.zeros(dims, dtype=value.dtype)


def open_sizes(values: Sequence[Value], arrays: Arrays) -> dict[str, int]:
    """What the graph's open dimensions are in these arrays."""
    return {
        d: size
        for value in values
        if value.name in arrays
        for d, size in zip(value.shape, arrays[value.name].shape, strict=False)
        if isinstance(d, str) and d
    }


def _ids(given: Arrays) -> Array | None:
    ids = given.get("input_ids")
    return ids if ids is not None and ids.ndim == 2 else None


def _batch(given: Arrays) -> int:
    return int(next(iter(given.values())).shape[0])


def _counted(ids: Array) -> Array:
    return np.broadcast_to(np.arange(ids.shape[1], dtype=np.int64), ids.shape).copy()


def _says_nothing(name: str, array: Array) -> bool:
    """A mask that hides nothing, types that are all the same: a graph may well do without."""
    return (name.endswith("mask") and bool((array == 1).all())) or (
        name == "token_type_ids" and not array.any()
    )


def _sides(values: Sequence[Value], given: Arrays) -> str:
    here = ", ".join(f"{name!r} {a.dtype.name} {list(a.shape)}" for name, a in given.items())
    there = ", ".join(str(value) for value in values[:12])
    more = f" and {len(values) - 12} more" if len(values) > 12 else ""
    return f"The graph takes {there}{more}; the probe has {here or 'nothing'}."


def nothing_fits(where: str, lacking: Value, values: Sequence[Value], given: Arrays) -> str:
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


def choose(options: Sequence[Feed], tried: Sequence[Arrays], expected: Arrays) -> int | None:
    """Of several ways to feed a graph the one that gives the model's outputs; None: nobody knows.

    Where only positions are counted in several ways, the first may be a little worse than another.
    """
    scores = [_distance(given, expected) for given in tried]
    best, *others = sorted(range(len(options)), key=lambda i: scores[i])
    guessed = any(
        not np.array_equal(feed[name], options[0][name])
        for feed in options[1:]
        for name in options[0].keys() - {"position_ids"}
    )
    if not guessed:
        return 0 if scores[0] <= MATCH_MARGIN * max(scores[best], FEED_SAME_MASK) else best
    if not math.isfinite(scores[best]):
        return None
    second = others[0]
    if (
        scores[second] >= MATCH_MARGIN * max(scores[best], FEED_SAME)
        or scores[second] <= FEED_AGREES
    ):
        return best
    same = all(np.array_equal(tried[best][name], tried[second][name]) for name in tried[best])
    return best if same else None


def match_outputs(
    expected: Arrays, arrays: Arrays, name_of: Callable[[str], str]
) -> dict[str, str]:
    """For each output of the model the graph's: by name, else the only one that has the shape."""
    found: dict[str, str] = {}
    for name, array in expected.items():
        named = [key for key in arrays if name_of(key) == name]
        shaped = [key for key in arrays if _alike(arrays[key], array)]
        close = [key for key in shaped if error(array, arrays[key].reshape(array.shape)) < 0.5]
        for keys in (named, close):
            if name not in found and len(keys) == 1 and keys[0] in shaped:
                found[name] = keys[0]
    return found


def is_float(array: Array) -> bool:
    return array.dtype.kind == "f"


def _alike(array: Array, wanted: Array) -> bool:
    """Whether two arrays have one shape, but for axes of length 1, and both floats or neither."""
    ways = arrangements(array.shape, wanted.shape)
    return is_float(array) == is_float(wanted) and any(way.rank <= 1 for way in ways)


def _distance(given: Arrays, expected: Arrays) -> float:
    """How far a graph's outputs are from the model's, by the pair of them that is closest."""
    pairs = [
        error(array, mine.reshape(array.shape))
        for array in expected.values()
        for mine in given.values()
        if is_float(array) and _alike(mine, array)
    ]
    return min(pairs, default=float("inf"))
