"""What is wanted of each input, and the seeded arrays made of it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from driftwalk.dtypes import Array

DRAWN_IN_TURN = ("decoder_input_ids",)
"""Inputs that are drawn from the main input's generator, behind it; all others have their own."""


@dataclass(frozen=True)
class Placeholder:
    """Ids that stand for the features of an image, a video or audio: how many in each row."""

    token: int
    each_row: int
    type: int
    """What such a place is called in `mm_token_type_ids`."""
    before: int | None = None
    """The id that announces them, where there is one."""


@dataclass(frozen=True)
class Wanted:
    """An input to be made: the kind of its values, and its shape.

    Kinds: `normal` floats, `uniform` floats from 0 to 1, `ids` below `high`, `mask` (ones, every
    second row padded at its end), `ones`, `zeros`, `bools`, `boxes` (corners in order, up to
    `high`), `steps` (0, 1, 2 ...), `places` (row and column in a square), `types` (which ids of
    `input_ids` are placeholders of what), and `given` values.
    """

    kind: str
    shape: tuple[int, ...]
    high: int = 2
    values: tuple[tuple[int, ...], ...] | tuple[int, ...] = ()
    placeholders: tuple[Placeholder, ...] = ()
    once: int | None = None
    """An id that every row has exactly so many `times`: the end of a text."""
    times: int = 1
    like_ids: bool = False
    """Whether it has a value for each id of `input_ids`, placeholders included."""
    main: bool = False
    """Whether it is drawn first."""

    def resized(self, shape: tuple[int, ...]) -> Wanted:
        return replace(self, shape=tuple(max(1, size) for size in shape))


def made(wanted: Mapping[str, Wanted], seed: int) -> dict[str, Array]:
    """Arrays for all inputs; the same for the same seed, whatever other inputs there are."""
    shared = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    in_turn = [name for name, one in wanted.items() if one.main]
    in_turn += [name for name in DRAWN_IN_TURN if name in wanted and name not in in_turn]
    for name in in_turn:
        arrays[name] = _array(wanted[name], shared)
    for name, one in wanted.items():
        if name in arrays or one.like_ids:
            continue
        arrays[name] = _array(one, np.random.default_rng([seed, zlib.crc32(name.encode())]))
    for name, one in wanted.items():
        if name not in arrays:
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            arrays[name] = _beside_ids(one, wanted.get("input_ids"), arrays, rng)
    return {name: arrays[name] for name in wanted}


def _array(wanted: Wanted, rng: np.random.Generator) -> Array:
    shape = wanted.shape
    if wanted.kind == "normal":
        return rng.standard_normal(shape, dtype=np.float32)
    if wanted.kind == "uniform":
        return rng.random(shape, dtype=np.float32)
    if wanted.kind == "ids":
        ids = rng.integers(0, max(1, wanted.high), shape)
        return _with_placeholders(_ended(ids, wanted), wanted)
    if wanted.kind == "mask":
        return _mask(shape)
    if wanted.kind == "bools":
        return np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 2 == 0)
    if wanted.kind == "boxes":
        corners = np.sort(rng.integers(0, wanted.high + 1, (*shape[:-1], 2, 2)), axis=-1)
        return np.swapaxes(corners, -1, -2).reshape(shape)
    if wanted.kind == "steps":
        return np.broadcast_to(np.arange(shape[-1]), shape).copy()
    if wanted.kind == "places":
        side = max(1, round(shape[-2] ** 0.5))
        places = np.stack([np.arange(shape[-2]) // side, np.arange(shape[-2]) % side], axis=-1)
        return np.broadcast_to(places, shape).copy()
    if wanted.kind == "given":
        return np.array(wanted.values, dtype=np.int64)
    fill = 0 if wanted.kind in ("zeros", "types") else 1
    return np.full(shape, fill, dtype=np.int64)


def _mask(shape: tuple[int, ...]) -> Array:
    """Every second row is padded at its end, so that a default run checks masks too."""
    mask = np.ones(shape, dtype=np.int64)
    length = shape[-1]
    if length >= 4 and len(shape) > 1:
        mask[1::2, ..., length - length // 4 :] = 0
    return mask


def _ended(ids: Array, wanted: Wanted) -> Array:
    """Ids with the end of the text at the same place in every row, before what may be padded."""
    if wanted.once is None:
        return ids
    length = ids.shape[-1]
    ids = np.where(ids == wanted.once, 0 if wanted.once else 1, ids)
    last = max(0, length - length // 4 - 1)
    for count in range(wanted.times):
        ids[..., max(0, last - 2 * count)] = wanted.once
    return ids


def _with_placeholders(ids: Array, wanted: Wanted) -> Array:
    """Ids of a text, with the placeholders behind the first of them and nowhere else."""
    if not wanted.placeholders:
        return ids
    special = {p.token for p in wanted.placeholders}
    special |= {p.before for p in wanted.placeholders if p.before is not None}
    plain = next(number for number in range(len(special) + 1) if number not in special)
    ids = np.where(np.isin(ids, list(special)), plain, ids)
    block: list[int] = []
    for item in wanted.placeholders:
        block += [item.before] if item.before is not None and item.each_row else []
        block += [item.token] * item.each_row
    rows = np.broadcast_to(np.array(block, dtype=ids.dtype), (*ids.shape[:-1], len(block)))
    return np.concatenate([ids[..., :1], rows, ids[..., 1:]], axis=-1)


def _beside_ids(
    one: Wanted, ids: Wanted | None, arrays: Mapping[str, Array], rng: np.random.Generator
) -> Array:
    """An input with a value for each id: it grows with the placeholders among them."""
    if ids is None or "input_ids" not in arrays:
        return _array(one, rng)
    array = arrays["input_ids"]
    if one.kind == "types":
        types = np.zeros(array.shape, dtype=np.int64)
        for item in ids.placeholders:
            types[array == item.token] = item.type
        return types
    if one.kind == "mask":
        # As many positions are padded as of the text alone: placeholders never are.
        mask = np.ones(array.shape, dtype=np.int64)
        length = ids.shape[-1]
        if length >= 4 and array.ndim > 1:
            mask[1::2, ..., array.shape[-1] - length // 4 :] = 0
        return mask
    return _array(one.resized((*array.shape, *one.shape[array.ndim :])), rng)
