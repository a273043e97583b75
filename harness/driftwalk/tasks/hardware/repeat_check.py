"""Repeat: the model on one probe, again and again, in every dtype; on a CPU, core by core too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .majority import vote
from .repeats import Difference, Findings, Tally
from .result import Mismatch
from .work import Work

NAME = "repeat"


def run(work: Work, findings: Findings) -> str:
    """Fill the findings; the sentence that sums them up."""
    for dtype in work.model_dtypes:
        backend = work.backend(dtype)
        by_design = backend.random_by_design(work.probe)
        case = f"model {dtype}"

        def once(repeat: int, backend: Any = backend, case: str = case) -> Mapping[str, Any]:
            return work.station.model_states(backend, work.probe, case, repeat)

        tally = work.tally(NAME, case, by_design)
        work.repeat(findings, tally, work.repeats(dtype), once)
    cores = work.station.cores()
    if cores:
        _cores(work, findings, cores)
    runs = sum(case.repeats for case in findings.cases)
    bad = [case for case in findings.cases if case.verdict == "fault"]
    where = f", and on each of {len(cores)} cores" if cores else ""
    if not bad and not findings.mismatches:
        return f"{runs} runs in {', '.join(work.model_dtypes)}{where}: every state the same bits."
    named = ", ".join(case.name for case in bad) or "between cores"
    return f"{runs} runs{where}; states differ: {named}."


def _cores(work: Work, findings: Findings, cores: tuple[int, ...]) -> None:
    """One thread on one core after the other: each with itself, then all against each other."""
    dtype = "fp32" if "fp32" in work.model_dtypes else work.model_dtypes[0]
    tallies: dict[str, Tally] = {}
    backend = work.backend(dtype)
    for core in cores:
        with work.station.on_core(core):
            case = f"core {core}, model {dtype}"

            def once(repeat: int, case: str = case) -> Mapping[str, Any]:
                return work.station.model_states(backend, work.probe, case, repeat)

            tally = work.tally(NAME, case)
            tallies[str(core)] = work.repeat(findings, tally, work.level.core_repeats, once)
    # Which core it was decides no bit: what is compared with other machines is one for all.
    for key in [key for key in findings.digests if f"{NAME} | core " in key]:
        del findings.digests[key]
    steady = {core: tally for core, tally in tallies.items() if tally.digests}
    told = vote({core: tally.digests for core, tally in steady.items()})
    if told.unanimous:
        first = next(iter(steady.values()))
        name = f"{NAME} | one core, model {dtype}"
        findings.digests |= {f"{name} | {s}": digest for s, digest in first.digests.items()}
    for odd, state in told.outliers.items():
        right = next(name for name in steady if name not in told.outliers)
        findings.add(_between(work, tallies, right, odd, state, "most cores give other bits"))
    if told.undecided:
        one, first = next(iter(steady.items()))
        other = next(name for name, t in steady.items() if t.digests != first.digests)
        note = f"cores {one} and {other} disagree; which of them is wrong cannot be said"
        findings.add(_between(work, tallies, one, other, told.undecided[0], note))


def _between(
    work: Work, tallies: Mapping[str, Tally], right: str, wrong: str, state: str, note: str
) -> Mismatch:
    a, b = tallies[right], tallies[wrong]
    found: Difference = (0, 0, ())
    if a.states is not None and b.states is not None:
        found = work.station.differences(a.states, b.states, state)
    return Mismatch(NAME, b.case, state, 0, work.log.now, *found, core=int(wrong), note=note)
