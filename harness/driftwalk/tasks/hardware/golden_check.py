"""Golden: against states that a trusted machine recorded.

Where the model of the device and the libraries are the same, every bit must be; else the states may
be as far from float64 as the calibrated policy allows their dtype, and so may the recorded ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...environment import environment
from ...errors import UsageError
from ...judge.witness import Witness
from ...progress import Progress
from ...states import Point, State, Trace
from .repeats import Difference, Findings
from .result import Case, Mismatch, Verdict
from .work import Work

if TYPE_CHECKING:
    from driftwalk_backends.hardware.station import Station

NAME = "golden"
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
    at = work.log.now
    with work.station.repeater(model, dtype, threads=1) as backend:
        states = work.station.model_states(backend, trace.probe, case, 0)
    recorded = {
        name.removeprefix(PREFIX): value
        for name, value in trace.environment.items()
        if name.startswith(PREFIX)
    }
    own = _identity(work.station)
    differs = [
        f"{name} {recorded.get(name, '?')} there, {own.get(name, '?')} here"
        for name in {**recorded, **own}
        if recorded.get(name) != own.get(name)
    ]
    if recorded and not differs:
        return _exact(work, findings, trace, states, case, at)
    told = "; ".join(differs) if recorded else "the trace does not say what made it"
    if dtype == "fp64":
        raise UsageError(
            f"A golden trace in fp64 can only be compared bit by bit, and here is another machine "
            f"({told}). Record one in fp32."
        )
    return _within(work, findings, trace, model, states, case, at, told)


def _exact(
    work: Work, findings: Findings, trace: Trace, states: Mapping[str, Any], case: str, at: float
) -> str:
    """The same device model and libraries: the same bits."""
    golden = work.station.as_states(trace)
    right, found = work.station.digests(golden), work.station.digests(states)
    wrong = [name for name in right if right[name] != found.get(name)]
    for name in wrong[:1]:
        differing: Difference = (0, 0, ())
        if name in states:
            differing = work.station.differences(golden, states, name)
        findings.add(
            Mismatch(NAME, case, name, 0, at, *differing, note="not the bits of the golden trace")
        )
    verdict: Verdict = "fault" if wrong else "no fault found"
    findings.cases.append(Case(case, verdict, 1, note="bit by bit"))
    if wrong:
        return (
            f"{len(wrong)} of {len(right)} states are not the golden bits, first {wrong[0]}; "
            "the device model and the libraries are the same."
        )
    return f"All {len(right)} states are the golden bits; same device model, same libraries."


def _within(
    work: Work,
    findings: Findings,
    trace: Trace,
    model: Any,
    states: Mapping[str, Any],
    case: str,
    at: float,
    told: str,
) -> str:
    """Another device or other libraries: as near to float64 as the dtype has to be."""
    witness = Witness(model, trace.probe, False, Progress())
    try:
        known = witness.calibration(trace.backend.dtype)
    finally:
        witness.close()
    if known is None:
        dtype = trace.backend.dtype
        raise UsageError(witness.doubt(dtype) or " ".join(witness.notes(dtype)))
    worst, where, missing = 0.0, "", []
    arrays = work.station.as_arrays(states)
    for name, array in arrays.items():
        error = known.error(State(Point(name), array))
        if error is None:
            missing.append(name)
            continue
        ratio = error.over(known.allowed(name))[0]
        if not ratio <= worst:
            worst, where = ratio, name
    golden = 0.0
    for state in trace:
        error = known.error(state)
        if error is not None:
            golden = max(golden, error.over(known.allowed(state.point.name))[0])
    absent = [*missing, *(name for name in trace.names if name not in arrays)]
    bad = not worst <= 1 or not golden <= 1 or absent
    findings.cases.append(
        Case(
            case,
            "fault" if bad else "no fault found",
            1,
            worst=worst,
            note=f"within tolerance, not bit by bit: {told}" if not bad else told,
        )
    )
    if absent:
        return f"States of the golden trace have no partner here: {', '.join(absent[:4])}."
    if not worst <= 1:
        findings.add(
            Mismatch(NAME, case, where, 0, at, 0, 0, note=f"{worst:.3g} times what is allowed")
        )
        return f"{where} is {worst:.3g} times as far from float64 as its dtype allows ({told})."
    if not golden <= 1:
        return (
            f"The golden states are {golden:.3g} times as far from this machine's own float64 as "
            f"allowed: this CPU, or the machine that recorded them, is wrong ({told})."
        )
    return f"Within the calibrated tolerance, {worst:.0%} of it used at {where} ({told})."


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
