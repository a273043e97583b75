"""Invariance: what deployments change, and a model's states should not notice.

One row of tokens is run alone; then in a larger batch, padded on either side, as the beginning of a
longer prompt, with other numbers of threads. Its states are then

    bit-exact      the same bits
    within noise   no farther from float64 than the calibrated policy allows the dtype
    broken         farther

Where float64 itself breaks, the model depends on the change and no hardware is to blame: BERT reads
both ways, so that a longer prompt changes all states, and GPT-2 counts its positions from the left
edge, padding or not, unless it is told them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...adapter import Backend
from ...dtypes import Array
from ...errors import DriftwalkError
from ...judge.calibrate import Calibration
from ...judge.witness import Witness
from ...progress import Progress
from ...registry import create
from ...states import Probe, State, Trace, same_bits
from .result import Cell, Outcome

LENGTH = 24
"""Tokens of the row that is looked at."""
LONGER = 8


@dataclass(frozen=True, eq=False)
class Change:
    """Another way to run the same row: where it stands in which inputs."""

    name: str
    inputs: Mapping[str, Array]
    start: int = 0
    threads: int | None = None


def changes(row: Array, others: Array, pad: int, positions: bool, threads: int) -> Iterator[Change]:
    """Every change of one row of ids; `others` are rows to stand beside it, or behind it."""
    length = row.shape[1]
    for batch in (2, 8):
        beside = np.resize(others, (batch - 1, length)).astype(row.dtype)
        yield Change(f"batch of {batch}", {"input_ids": np.concatenate([row, beside])})
    for side in ("right", "left"):
        for count in (1, 7):
            filler, ones = np.full((1, count), pad, row.dtype), np.ones((1, length), np.int64)
            parts, masks = [row, filler], [ones, np.zeros((1, count), np.int64)]
            if side == "left":
                parts, masks = parts[::-1], masks[::-1]
            ids, mask = np.concatenate(parts, 1), np.concatenate(masks, 1)
            start = count if side == "left" else 0
            inputs = {"input_ids": ids, "attention_mask": mask}
            yield Change(f"padding {side} {count}", inputs, start)
            if side == "left" and positions:
                counted = np.maximum(np.cumsum(mask, 1) - 1, 0)
                name = f"padding left {count}, positions given"
                yield Change(name, inputs | {"position_ids": counted}, start)
    behind = np.resize(others, (1, LONGER)).astype(row.dtype)
    ids = np.concatenate([row, behind], 1)
    yield Change(f"prefix of a prompt longer by {LONGER}", {"input_ids": ids})
    for count in sorted({2, threads} - {1}) if threads else ():
        yield Change(f"{count} threads", {"input_ids": row}, threads=count)


def matrix(
    model: Any,
    device: str,
    dtypes: tuple[str, ...],
    probe: Probe,
    *,
    pad: int = 0,
    positions: bool = False,
    threads: int = 0,
) -> Iterator[Cell]:
    """One cell after the other: every change in every dtype."""
    ids = probe.inputs.get("input_ids")
    if ids is None or ids.ndim != 2 or ids.shape[1] < 2:
        for dtype in dtypes:
            yield Cell("all", dtype, "not run", note="the inputs of this model are no tokens")
        return
    flat = ids.reshape(-1)
    row = np.resize(ids[:1, :LENGTH], (1, min(LENGTH, ids.shape[1])))
    others = flat[::-1].copy()
    base = Probe({"input_ids": row})
    wanted = list(changes(row, others, pad, positions, threads))
    with ExitStack() as opened:
        truth = opened.enter_context(create("truth", model))
        true = truth.trace(base)
        moved = {change.name: _moved(truth, change, true) for change in wanted}
        witness = Witness(model, base, False, Progress())
        opened.callback(witness.close)
        for dtype in dtypes:
            known = witness.calibration(dtype)
            if known is None:
                told = " ".join(witness.notes(dtype))
                yield Cell("all", dtype, "not run", note=told)
                continue
            one = opened.enter_context(create(_spec(device, dtype, 1 if threads else None), model))
            alone = one.trace(base)
            for change in wanted:
                if change.threads is not None:
                    made = create(_spec(device, dtype, change.threads), model)
                    with made as other:
                        yield _cell(change, dtype, other, alone, known, moved[change.name])
                else:
                    yield _cell(change, dtype, one, alone, known, moved[change.name])


def _cell(
    change: Change,
    dtype: str,
    backend: Backend,
    alone: Trace,
    known: Calibration,
    moved: Mapping[str, Array] | str,
) -> Cell:
    """One change in one dtype; `moved` are float64's own states under it, or why it has none."""
    if isinstance(moved, str):
        return Cell(change.name, dtype, "not run", note=moved)
    try:
        found = _own(backend.trace(Probe(change.inputs)), change, alone)
    except DriftwalkError as error:
        return Cell(change.name, dtype, "not run", note=str(error)[:200])
    outcomes: dict[str, Outcome] = {}
    worst, where, by_model = 0.0, "", False
    for state in alone:
        name = state.point.name
        if name not in found:
            return Cell(change.name, dtype, "not run", note=f"no state {name} under this change")
        if same_bits({name: state.array}, {name: found[name]}):
            outcomes[name] = "bit-exact"
            continue
        off = known.error(State(state.point, found[name]))
        allowed = known.allowed(name)
        ratio = off.over(allowed)[0] if off is not None else float("inf")
        outcomes[name] = "within noise" if ratio <= 1 else "broken"
        if not ratio <= worst:
            worst, where = ratio, name
        if not ratio <= 1 and name in moved:
            drifted = known.between(name, moved[name], known.truth[name])
            by_model = by_model or drifted.over(allowed)[0] > 1
    order: tuple[Outcome, ...] = ("broken", "within noise", "bit-exact")
    outcome = next(word for word in order if word in outcomes.values())
    note = "in float64 too: the model depends on it" if by_model else ""
    return Cell(change.name, dtype, outcome, outcomes, where, worst, by_model, note)


def _moved(truth: Backend, change: Change, true: Trace) -> Mapping[str, Array] | str:
    try:
        return _own(truth.trace(Probe(change.inputs)), change, true)
    except DriftwalkError as error:
        return str(error)[:200]


def _own(trace: Trace, change: Change, alone: Trace) -> dict[str, Array]:
    """The states of the one row that is looked at, cut out of what was run."""
    found = {}
    for state in trace:
        partner = alone.state(state.point.name)
        if partner is None:
            continue
        array = state.array[:1]
        if array.ndim >= 3 and array.shape[1] != partner.shape[1]:
            array = array[:, change.start : change.start + partner.shape[1]]
        found[state.point.name] = np.ascontiguousarray(array)
    return found


def _spec(device: str, dtype: str, threads: int | None) -> str:
    stored = "fp32" if dtype == "tf32" else dtype
    options = ",tf32=on" if dtype == "tf32" else ""
    options += f",threads={threads}" if threads else ""
    return f"torch:{device}:{stored}{options}"
