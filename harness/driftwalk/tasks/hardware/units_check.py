"""Dtypes and units: products, attention, sums, norms, copies and memory, each on its own."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from ...errors import BackendUnavailable
from .repeats import Findings
from .result import Case, Mismatch, Round
from .work import Work

NAME = "units"
MEMORY_PATTERNS = ("checkerboard", "random", "walking")


def run(work: Work, findings: Findings) -> str:
    """Fill the findings; the sentence that sums them up."""
    for unit in work.station.units(work.dtypes, work.level.name):
        begun = time.perf_counter()
        try:
            prepared = work.station.prepare(unit)
        except BackendUnavailable as error:
            findings.cases.append(Case(unit.name, "not comparable", note=str(error)))
            continue
        tally = work.tally(NAME, unit.name)
        worst: float | None = None
        try:
            for repeat in range(work.level.unit_repeats):
                states = work.once(tally, partial(work.station.unit_states, prepared, unit.name))
                if unit.checked and repeat == 0:
                    judged = work.station.judged(prepared, states)
                    worst = judged.ratio
        finally:
            case = findings.take(tally, worst, time.perf_counter() - begun)
        if unit.checked and worst is not None and not worst <= 1:
            note = "not what float64 gives, by more than this dtype allows"
            findings.cases[-1] = replace(case, verdict="fault", note=note)
            findings.add(
                Mismatch(
                    *(NAME, unit.name, "out", 0, work.log.now),
                    *(judged.differing, judged.total, judged.flips),
                    note=note,
                )
            )
        del prepared, tally
    work.station.free()
    for kind in ("copy", "memory"):
        for pattern in MEMORY_PATTERNS:
            _known_words(work, findings, kind, pattern)
            work.station.free()
    ran = [case for case in findings.cases if case.repeats]
    left = len(findings.cases) - len(ran)
    wrong = [case.name for case in findings.cases if case.verdict == "fault"]
    rest = f"; {left} do not run here" if left else ""
    if wrong:
        return f"{len(wrong)} of {len(ran)} units are wrong: {', '.join(wrong[:3])}{rest}."
    return f"{len(ran)} units in {', '.join(work.dtypes)}: the same bits each time{rest}."


def _known_words(work: Work, findings: Findings, kind: str, pattern: str) -> None:
    """Words that are known beforehand: each must be what it was."""
    name, wrong, compared = f"{kind} {pattern}", 0, 0
    begun = time.perf_counter()
    repeats = 2 if kind == "copy" else 1
    for repeat in range(repeats):
        at, before = work.log.now, wrong
        for state, right, found in work.station.memory_states(
            kind, pattern, work.level.name, repeat, name
        ):
            told = work.station.digests({"right": right, "found": found})
            compared += 1
            if told["right"] == told["found"]:
                continue
            wrong += 1
            both = work.station.differences({state: right}, {state: found}, state)
            findings.add(Mismatch(NAME, name, state, repeat, at, *both))
        spent = work.log.now - at
        ok = wrong == before
        work.log.note(Round(NAME, name, repeat, at, spent, ok, work.station.core))
    note = f"{wrong} of {compared} pieces are not what was written" if wrong else ""
    findings.cases.append(
        Case(
            name,
            "fault" if wrong else "no fault found" if compared else "not comparable",
            repeats if compared else 0,
            note=note or f"{compared} pieces",
            seconds=time.perf_counter() - begun,
        )
    )
