"""One probe made of another: other tokens, another length, other padding, other values.

Every change is drawn from a generator that is given, so that the same seed makes the same probes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...dtypes import Array
from ...states import Probe
from ..constants import (
    NOISED_INPUTS,
    REPLACED_TOKENS,
    RESIZED_SHARE,
    SCALED_INPUTS,
    SPIKED_ONE_IN,
    SPIKES,
)

Inputs = dict[str, Array]
Generator = np.random.Generator
IDS, MASK = "input_ids", "attention_mask"


@dataclass(frozen=True)
class Room:
    """What a model leaves room for."""

    vocabulary: int
    positions: int


def mutants(
    probe: Probe, others: Sequence[Probe], room: Room, rng: Generator, fit: Callable[[Inputs], int]
) -> list[Inputs]:
    """Mutants of a probe that are all of one shape, as many as `fit` says of the first of them.

    `others` are probes to take tokens from.
    """
    stem = {name: array.copy() for name, array in probe.inputs.items()}
    if IDS in stem and stem[IDS].ndim == 2 and rng.random() < RESIZED_SHARE:
        stem = _resized(room)(stem, rng)
    return [mutated(stem, others, room, rng) for _ in range(fit(stem))]


def mutated(stem: Inputs, others: Sequence[Probe], room: Room, rng: Generator) -> Inputs:
    """Inputs after one to three changes, none of their shape."""
    inputs = stem
    for _ in range(int(rng.integers(1, 4))):
        changes = _changes(inputs, others, room)
        if not changes:
            break
        inputs = changes[int(rng.integers(len(changes)))](inputs, rng)
    return inputs


Change = Callable[[Inputs, Generator], Inputs]


def _changes(inputs: Inputs, others: Sequence[Probe], room: Room) -> list[Change]:
    """What can be changed of these inputs."""
    found: list[Change] = []
    ids = inputs.get(IDS)
    if ids is not None and ids.ndim == 2 and room.vocabulary > 1:
        found += [_some_tokens(room), _one_token(room), _shuffled]
        found += [_from_another(others)] if others else []
        found += [_padded] if MASK in inputs else []
    if any(array.dtype.kind == "f" for array in inputs.values()):
        found += [_scaled, _noised, _spiked, _flattened]
    return found


def _some_tokens(room: Room) -> Change:
    def change(inputs: Inputs, rng: Generator) -> Inputs:
        ids = inputs[IDS].copy()
        count = max(1, int(ids.size * rng.choice(REPLACED_TOKENS)))
        at = rng.choice(ids.size, count, replace=False)
        ids.reshape(-1)[at] = rng.integers(0, room.vocabulary, count)
        return {**inputs, IDS: ids}

    return change


def _one_token(room: Room) -> Change:
    """One token, again and again, over a stretch of a row."""

    def change(inputs: Inputs, rng: Generator) -> Inputs:
        ids = inputs[IDS].copy()
        row, first = int(rng.integers(len(ids))), int(rng.integers(ids.shape[1]))
        last = int(rng.integers(first, ids.shape[1])) + 1
        own = rng.random() < 0.5
        ids[row, first:last] = ids[row, first] if own else rng.integers(0, room.vocabulary)
        return {**inputs, IDS: ids}

    return change


def _shuffled(inputs: Inputs, rng: Generator) -> Inputs:
    ids = inputs[IDS].copy()
    row = int(rng.integers(len(ids)))
    ids[row] = rng.permutation(ids[row])
    return {**inputs, IDS: ids}


def _resized(room: Room) -> Change:
    """Another length: half, double, one more, or one less; inputs of the same length follow."""

    def change(inputs: Inputs, rng: Generator) -> Inputs:
        length = inputs[IDS].shape[1]
        wanted = (length // 2, length * 2, length + 1, length - 1, room.positions)
        new = min(max(1, int(rng.choice(wanted))), room.positions)
        return with_columns(inputs, np.arange(new) % length)

    return change


def _from_another(others: Sequence[Probe]) -> Change:
    """Tokens of another probe, over the beginning or the end of a row."""

    def change(inputs: Inputs, rng: Generator) -> Inputs:
        other = others[int(rng.integers(len(others)))].inputs.get(IDS)
        ids = inputs[IDS].copy()
        if other is None or other.ndim != 2:
            return inputs
        row, taken = int(rng.integers(len(ids))), other[int(rng.integers(len(other)))]
        count = int(rng.integers(1, min(ids.shape[1], len(taken)) + 1))
        where = slice(0, count) if rng.random() < 0.5 else slice(ids.shape[1] - count, None)
        ids[row, where] = taken[:count]
        return {**inputs, IDS: ids}

    return change


def _padded(inputs: Inputs, rng: Generator) -> Inputs:
    """Padding on one side of a row, or none."""
    mask = inputs[MASK].copy()
    if mask.shape != inputs[IDS].shape or mask.shape[1] < 2:
        return inputs
    row, count = int(rng.integers(len(mask))), int(rng.integers(1, mask.shape[1]))
    mask[row] = 1
    side = int(rng.integers(3))
    if side:
        mask[row, slice(0, count) if side == 1 else slice(mask.shape[1] - count, None)] = 0
    return {**inputs, MASK: mask}


def _float_of(inputs: Inputs, rng: Generator) -> str:
    names = [name for name, array in inputs.items() if array.dtype.kind == "f"]
    return names[int(rng.integers(len(names)))]


def _scaled(inputs: Inputs, rng: Generator) -> Inputs:
    name = _float_of(inputs, rng)
    factor = rng.choice(SCALED_INPUTS)
    return {**inputs, name: (inputs[name] * factor).astype(inputs[name].dtype)}


def _noised(inputs: Inputs, rng: Generator) -> Inputs:
    name = _float_of(inputs, rng)
    array = inputs[name]
    noise = rng.standard_normal(array.shape) * float(array.std() or 1.0) * NOISED_INPUTS
    return {**inputs, name: (array + noise).astype(array.dtype)}


def _spiked(inputs: Inputs, rng: Generator) -> Inputs:
    name = _float_of(inputs, rng)
    array = inputs[name].copy()
    count = max(1, array.size // SPIKED_ONE_IN)
    size = float(np.abs(array).max() or 1.0) * rng.choice(SPIKES)
    array.reshape(-1)[rng.choice(array.size, count, replace=False)] = size * rng.choice([-1, 1])
    return {**inputs, name: array}


def _flattened(inputs: Inputs, rng: Generator) -> Inputs:
    name = _float_of(inputs, rng)
    value = rng.choice([0.0, float(inputs[name].max()), float(inputs[name].min())])
    return {**inputs, name: np.full_like(inputs[name], value)}


def with_columns(inputs: Inputs, at: Array) -> Inputs:
    """Some of the positions, in this order, of every input that has as many as the ids."""
    shape = inputs[IDS].shape
    return {
        name: array[:, at] if array.shape[:2] == shape else array for name, array in inputs.items()
    }


def smaller(probe: Probe) -> Iterator[Inputs]:
    """Simpler forms of a probe, the simplest first: fewer rows, fewer positions, fewer tokens."""
    inputs = dict(probe.inputs)
    rows = {len(array) for array in inputs.values() if array.ndim}
    count = rows.pop() if len(rows) == 1 else 1
    for row in range(count if count > 1 else 0):
        yield {n: a[row : row + 1] if a.ndim else a for n, a in inputs.items()}
    ids = inputs.get(IDS)
    if ids is not None and ids.ndim == 2:
        yield from _fewer_positions(inputs, ids.shape[1])
        yield from _plainer_tokens(inputs, ids)
    for name, array in inputs.items():
        if array.dtype.kind == "f" and np.unique(array).size > 1:
            yield {**inputs, name: np.zeros_like(array)}


def _fewer_positions(inputs: Inputs, length: int) -> Iterator[Inputs]:
    """Without a half, a quarter, ... of the positions, from either end; at last one by one."""
    step = length // 2
    while step >= 1:
        for first in range(0, length, step):
            kept = np.r_[0:first, min(first + step, length) : length]
            if len(kept):
                made = with_columns(inputs, kept)
                if MASK not in made or made[MASK].any(axis=-1).all():
                    yield made
        step //= 2


def _plainer_tokens(inputs: Inputs, ids: Array) -> Iterator[Inputs]:
    """With one token in place of others: that of the first position."""
    plain = int(ids[0, 0])
    for at in range(min(ids.size, 64)):
        if int(ids.reshape(-1)[at]) != plain:
            made = ids.copy()
            made.reshape(-1)[at] = plain
            yield {**inputs, IDS: made}
