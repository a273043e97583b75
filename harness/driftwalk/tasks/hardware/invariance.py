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

from collections import Counter
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
from .golden import allowance_used
from .repeats import Findings
from .result import Cell, Outcome
from .work import Work

LENGTH = 24
"""Tokens of the row that is looked at."""
LONGER = 8
QUICK = ("fp32", "bf16")
OUTCOMES: tuple[Outcome, ...] = ("bit-exact", "within noise", "broken")


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
            start = count if side == "left" else 0
            widths = ((0, 0), (start, count - start))
            ids = np.pad(row, widths, constant_values=pad)
            mask = np.pad(np.ones((1, length), np.int64), widths)
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
    row = ids[:1, :LENGTH].copy()
    base = Probe({"input_ids": row})
    wanted = list(changes(row, ids.reshape(-1)[::-1].copy(), pad, positions, threads))
    with ExitStack() as opened:
        truth = opened.enter_context(create("truth", model))
        alone = truth.trace(base)
        true = {change.name: _own_states(truth, change, alone) for change in wanted}
        witness = Witness(model, base, False, Progress())
        opened.callback(witness.close)
        for dtype in dtypes:
            calibration = witness.calibration(dtype)
            if calibration is None:
                yield Cell("all", dtype, "not run", note=" ".join(witness.notes(dtype)))
                continue
            one = opened.enter_context(create(_spec(device, dtype, 1 if threads else None), model))
            alone = one.trace(base)
            for change in wanted:
                with ExitStack() as own:
                    backend = one
                    if change.threads is not None:
                        spec = _spec(device, dtype, change.threads)
                        backend = own.enter_context(create(spec, model))
                    yield _cell(change, dtype, backend, alone, calibration, true[change.name])


def _cell(
    change: Change,
    dtype: str,
    backend: Backend,
    alone: Trace,
    calibration: Calibration,
    true: Mapping[str, Array] | str,
) -> Cell:
    """One change in one dtype; `true` are float64's own states under it, or why it has none."""
    changed = true if isinstance(true, str) else _own_states(backend, change, alone)
    if isinstance(true, str) or isinstance(changed, str):
        return Cell(change.name, dtype, "not run", note=str(changed))
    outcomes: dict[str, Outcome] = {}
    worst, where, by_model = 0.0, "", False
    for state in alone:
        name = state.point.name
        if name not in changed:
            return Cell(change.name, dtype, "not run", note=f"no state {name} under this change")
        if same_bits({name: state.array}, {name: changed[name]}):
            outcomes[name] = "bit-exact"
            continue
        used = allowance_used(calibration, State(state.point, changed[name]))
        ratio = float("inf") if used is None else used
        outcomes[name] = "within noise" if ratio <= 1 else "broken"
        if not ratio <= worst:
            worst, where = ratio, name
        if not ratio <= 1 and name in true:
            moved = calibration.between(name, true[name], calibration.truth[name])
            by_model = by_model or moved.over(calibration.allowed(name))[0] > 1
    outcome = next(word for word in OUTCOMES[::-1] if word in outcomes.values())
    note = "in float64 too: the model depends on it" if by_model else ""
    return Cell(change.name, dtype, outcome, outcomes, where, worst, by_model, note)


def _own_states(backend: Backend, change: Change, alone: Trace) -> dict[str, Array] | str:
    """The states of the row that is looked at, cut out of what was run; or why there are none."""
    try:
        trace = backend.trace(Probe(change.inputs))
    except DriftwalkError as error:
        return str(error)[:200]
    states = {}
    for state in trace:
        partner = alone.state(state.point.name)
        if partner is None:
            continue
        array = state.array[:1]
        if array.ndim >= 3 and array.shape[1] != partner.shape[1]:
            array = array[:, change.start : change.start + partner.shape[1]]
        states[state.point.name] = np.ascontiguousarray(array)
    return states


def _spec(device: str, dtype: str, threads: int | None) -> str:
    arithmetic = "fp32,tf32=on" if dtype == "tf32" else dtype
    return f"torch:{device}:{arithmetic}" + (f",threads={threads}" if threads else "")


def run(work: Work, findings: Findings) -> str:
    """Fill the findings; the sentence that sums them up."""
    station = work.station
    model, probe = (work.model, work.probe) if work.given else station.token_model()
    pad, positions = station.token_facts(model)
    quick = work.level.name == "quick" and station.label == "cpu"
    # Float64 is what the others are judged by: for itself there is no noise to allow.
    known = [dtype for dtype in work.model_dtypes if dtype != "fp64"]
    dtypes = tuple(dtype for dtype in known if not quick or dtype in QUICK) or tuple(known[:1])
    facts = {"pad": pad, "threads": station.threads()}
    for cell in matrix(model, station.label, dtypes, probe, positions=positions, **facts):
        findings.cells.append(cell)
    ran = [cell for cell in findings.cells if cell.outcome != "not run"]
    by_model = [c for c in ran if c.outcome == "broken" and c.by_model]
    broken = [c for c in ran if c.outcome == "broken" and not c.by_model]
    findings.verdict = "fault" if broken else "no fault found" if ran else "not comparable"
    if not ran:
        why = {cell.note for cell in findings.cells} or {"float64 alone is not judged"}
        return f"Nothing could be changed: {'; '.join(sorted(why))}."
    counts = Counter(cell.outcome for cell in ran)
    words = ", ".join(f"{counts[word]} {word}" for word in OUTCOMES if counts[word])
    sentence = f"{len(ran)} changes: {words}"
    if by_model:
        rest = "of them in float64 too, where the model itself depends on it"
        sentence += f" ({len(by_model)} {rest})"
    if broken:
        first = broken[0]
        sentence += f"; {first.change} in {first.dtype} moves {first.worst_state} beyond noise"
    return f"{sentence}."
