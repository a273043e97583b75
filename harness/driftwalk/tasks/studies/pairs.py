"""Two probes as pairs of single rows without padding: real token beside real token.

Each row is run by itself. Padding, and the other way that attention takes when some of it is
masked, would otherwise stand between two inputs that must agree bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...dtypes import Array
from ...errors import ProbeError
from ...states import Probe
from .contrast_result import AlignedRow

IDS = "input_ids"


@dataclass(frozen=True, eq=False)
class Pair:
    """One row of each probe, ready to be run, and how their tokens stand side by side."""

    probes: tuple[Probe, Probe]
    row: AlignedRow


def paired(first: Probe, second: Probe, cut: bool) -> list[Pair]:
    """Row beside row; `cut` drops what the longer has more, which earlier states cannot see."""
    if first.inputs.keys() != second.inputs.keys():
        raise ProbeError(f"The two inputs cannot be contrasted: {first.difference(second)}.")
    if first.sha256 == second.sha256:
        raise ProbeError("The two inputs are the same; a contrast needs two that differ.")
    if IDS not in first.inputs:
        return [_whole(first, second)]
    rows = [len(probe.inputs[IDS]) for probe in (first, second)]
    if rows[0] != rows[1]:
        raise ProbeError(
            f"The first input has {rows[0]} rows, the second {rows[1]}; rows are contrasted one "
            "by one, so both must have as many."
        )
    return [_pair(first, second, number, cut) for number in range(rows[0])]


def _whole(first: Probe, second: Probe) -> Pair:
    """Inputs that are no tokens (pixels, sound): compared as they are."""
    for name, array in first.inputs.items():
        if array.shape != second.inputs[name].shape:
            raise ProbeError(f"The two inputs cannot be contrasted: {first.difference(second)}.")
    texts = (" | ".join(first.texts), " | ".join(second.texts))
    return Pair((first, second), AlignedRow(texts, (), (), (), (0, 0)))


def _pair(first: Probe, second: Probe, number: int, cut: bool) -> Pair:
    one, two = (single_row(probe, number) for probe in (first, second))
    lengths = (one.inputs[IDS].shape[1], two.inputs[IDS].shape[1])
    common = min(lengths)
    texts = tuple(probe.texts[0] if probe.texts else "" for probe in (one, two))
    names = tuple(probe.tokens[0][:common] if probe.tokens else () for probe in (one, two))
    row = AlignedRow((texts[0], texts[1]), names[0], names[1], _differs(one, two, common), lengths)
    return Pair((_short(one, common), _short(two, common)) if cut else (one, two), row)


def _differs(one: Probe, two: Probe, common: int) -> tuple[bool, ...]:
    """Where any input that has a value per token differs."""
    found = np.zeros(common, dtype=bool)
    for name, array in one.inputs.items():
        other = two.inputs[name]
        if _per_token(one, name) and _per_token(two, name):
            unequal = array[0, :common] != other[0, :common]
            found |= unequal.reshape(common, -1).any(axis=1)
    return tuple(bool(value) for value in found)


def _per_token(probe: Probe, name: str) -> bool:
    return probe.inputs[name].shape[:2] == probe.inputs[IDS].shape


def single_row(probe: Probe, number: int) -> Probe:
    """One row, its padding cut out."""
    ids, mask = probe.inputs[IDS], probe.inputs.get("attention_mask")
    masked = mask is not None and mask.shape == ids.shape
    keep = mask[number] != 0 if mask is not None and masked else np.ones(ids.shape[1], dtype=bool)

    def sliced(name: str, array: Array) -> Array:
        if array.ndim == 0 or len(array) != len(ids):
            return array
        row = array[number : number + 1]
        return row[:, keep] if _per_token(probe, name) else row

    inputs = {name: sliced(name, array) for name, array in probe.inputs.items()}
    texts = (probe.texts[number],) if len(probe.texts) == len(ids) else ()
    fits = len(probe.tokens) == len(ids) and len(probe.tokens[number]) == len(keep)
    told = zip(probe.tokens[number], keep, strict=True) if fits else ()
    tokens = (tuple(name for name, kept in told if kept),) if fits else ()
    return Probe(inputs, probe.origin, texts, tokens)


def _short(probe: Probe, length: int) -> Probe:
    inputs = {
        name: array[:, :length] if _per_token(probe, name) else array
        for name, array in probe.inputs.items()
    }
    tokens = tuple(row[:length] for row in probe.tokens)
    return Probe(inputs, probe.origin, probe.texts, tokens)
