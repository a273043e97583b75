"""Golden: against states that a trusted machine recorded.

Where the model of the device and the libraries are the same, every bit must be; else the states may
be as far from float64 as the calibrated policy allows their dtype, and so may the recorded ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cpu import current_name
from ...environment import environment
from ...errors import UsageError
from ...judge.calibrate import Calibration
from ...judge.witness import Witness
from ...progress import Progress
from ...states import Point, State, Trace
from .repeats import NOT_LOCATED, Findings
from .result import Case, Mismatch, Verdict
from .work import Work

if TYPE_CHECKING:
    from driftwalk_backends.hardware.station import Station

PREFIX = "hw "
"""Before the names of a device's identity among a trace's environment."""


def record(device: str = "cpu", dtype: str = "fp32") -> Trace:
    """A golden trace of the built-in model: small, and the same model on every machine."""
    from driftwalk_backends.hardware.station import Station

    station = Station(device)
    model, probe = station.built_in(small=True)
    with station.repeater(model, dtype, threads=1) as backend:
        made = backend.trace(probe)
    kept = {n: v for n, v in model.describe().items() if n in ("label", "class", "fingerprint")}
    own = {f"{PREFIX}{name}": value for name, value in _identity(station).items()}
    return replace(made, model=kept, environment=environment() | own)


def run(work: Work, findings: Findings, golden: str | Path) -> str:
    """Fill the findings; the sentence that sums them up."""
    trace = Trace.load(golden)
    model = _model_of(work, trace)
    dtype = trace.backend.dtype
    if dtype not in work.station.dtypes():
        raise UsageError(f"The golden trace is in {dtype}, which {work.station.label} lacks.")
    case = f"golden {dtype}"
    with work.station.repeater(model, dtype, threads=1) as backend:
        states = work.station.model_states(backend, trace.probe, case, 0)
    other_machine = _other_machine(work.station, trace)
    if not other_machine:
        return _exact(work, findings, trace, states, case)
    if dtype == "fp64":
        raise UsageError(
            f"A golden trace in fp64 can only be compared bit by bit, and here is another machine "
            f"({other_machine}). Record one in fp32."
        )
    witness = Witness(model, trace.probe, False, Progress())
    try:
        calibration = witness.calibration(dtype)
    finally:
        witness.close()
    if calibration is None:
        raise UsageError(witness.doubt(dtype) or " ".join(witness.notes(dtype)))
    return _within(work, findings, trace, states, case, calibration, other_machine)


def _other_machine(station: Station, trace: Trace) -> str:
    """What differs between here and where the trace was recorded; empty where bits must agree."""
    own = _identity(station)
    recorded = {
        name.removeprefix(PREFIX): value
        for name, value in trace.environment.items()
        if name.startswith(PREFIX)
    }
    if not recorded:
        return "the trace does not say what made it"
    if "model" in recorded:
        recorded["model"] = current_name(recorded["model"])
    return "; ".join(
        f"{name} {recorded.get(name, '?')} there, {own.get(name, '?')} here"
        for name in {**recorded, **own}
        if recorded.get(name) != own.get(name)
    )


def _exact(
    work: Work, findings: Findings, trace: Trace, states: Mapping[str, Any], case: str
) -> str:
    """The same device model and libraries: the same bits."""
    golden = work.station.as_states(trace)
    right, own = work.station.digests(golden), work.station.digests(states)
    wrong = [name for name in right if right[name] != own.get(name)]
    findings.cases.append(Case(case, "fault" if wrong else "no fault found", 1, note="bit by bit"))
    if not wrong:
        return f"All {len(right)} states are the golden bits; same device model, same libraries."
    first, difference = wrong[0], NOT_LOCATED
    if first in states:
        difference = work.station.differences(golden, states, first)
    note = "not the bits of the golden trace"
    findings.add(Mismatch("golden", case, first, 0, work.log.now, *difference, note=note))
    return (
        f"{len(wrong)} of {len(right)} states are not the golden bits, first {first}; "
        "the device model and the libraries are the same."
    )


def _within(
    work: Work,
    findings: Findings,
    trace: Trace,
    states: Mapping[str, Any],
    case: str,
    calibration: Calibration,
    why: str,
) -> str:
    """Another device or other libraries: as near to float64 as the dtype has to be."""
    own = {
        name: allowance_used(calibration, State(Point(name), array))
        for name, array in work.station.as_arrays(states).items()
    }
    used = {name: ratio for name, ratio in own.items() if ratio is not None}
    absent = [name for name in own if name not in used]
    absent += [name for name in trace.names if name not in own]
    where = max(used, key=lambda name: used[name], default="")
    worst = used.get(where, 0.0)
    recorded = max((allowance_used(calibration, state) or 0.0 for state in trace), default=0.0)
    bad = absent or not worst <= 1 or not recorded <= 1
    note = why if bad else f"within tolerance, not bit by bit: {why}"
    verdict: Verdict = "fault" if bad else "no fault found"
    findings.cases.append(Case(case, verdict, 1, worst=worst, note=note))
    if absent:
        return f"States of the golden trace have no partner here: {', '.join(absent[:4])}."
    if not worst <= 1:
        note = f"{worst:.3g} times what is allowed"
        findings.add(Mismatch("golden", case, where, 0, work.log.now, *NOT_LOCATED, note=note))
        return f"{where} is {worst:.3g} times as far from float64 as its dtype allows ({why})."
    if not recorded <= 1:
        return (
            f"The golden states are {recorded:.3g} times as far from this machine's own float64 as "
            f"allowed: this CPU, or the machine that recorded them, is wrong ({why})."
        )
    return f"Within the calibrated tolerance, {worst:.0%} of it used at {where} ({why})."


def allowance_used(calibration: Calibration, state: State) -> float | None:
    """A state's error over what is allowed; None where the truth has no such state."""
    error = calibration.error(state)
    return None if error is None else error.over(calibration.allowed(state.point.name))[0]


def _model_of(work: Work, trace: Trace) -> Any:
    """The model that the trace was made from: the built-in one, or the one that was given."""
    wanted = trace.model.get("fingerprint", "")
    small, _ = work.station.built_in(small=True)
    for model in (small, work.model):
        if model.fingerprint == wanted:
            return model
    raise UsageError(
        f"The golden trace was recorded from {trace.model.get('label', 'an unnamed model')!r} "
        f"{wanted[:12]}; here is {work.model.label!r} {work.model.fingerprint[:12]}. Give --model, "
        "or record one with `driftwalk hwcheck --record-golden`."
    )


def _identity(station: Station) -> dict[str, str]:
    """What decides the bits of a golden run: it has one thread, however many there are."""
    return {name: value for name, value in station.identity().items() if name != "threads"}
