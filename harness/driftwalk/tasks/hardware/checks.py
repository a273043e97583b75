"""Four of the six checks: repeats, units, cold and hot, and devices compared with each other.

Each check of one device fills its findings, and gives the sentence that sums them up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import BackendUnavailable
from ...majority import vote, votes_by_kind
from ..constants import LEAST_HOT_RUNS
from .repeats import NOT_LOCATED, Findings, Tally
from .result import Case, Check, DeviceResult, Mismatch, Reading, Round, Verdict, worst_verdict
from .work import Work

MEMORY_PATTERNS = ("checkerboard", "random", "walking")
READ_EVERY = 1.0
"""Seconds between two readings of the sensors."""


def repeat(work: Work, findings: Findings) -> str:
    """The model on one probe, again and again, in every dtype; on a CPU, core by core too."""
    for dtype in work.model_dtypes:
        backend, case = work.backend(dtype), f"model {dtype}"
        tally = work.tally("repeat", case, backend.random_by_design(work.probe))
        slow = work.station.label == "cpu" and dtype in ("bf16", "fp16")
        count = work.level.slow_repeats if slow else work.level.repeats
        work.repeat(findings, tally, count, work.model_run(backend, case))
    cores = work.station.cores()
    if cores:
        _cores(work, findings, cores)
    runs = sum(case.repeats for case in findings.cases)
    where = f", and on each of {len(cores)} cores" if cores else ""
    if not findings.faulty and not findings.mismatches:
        return f"{runs} runs in {', '.join(work.model_dtypes)}{where}: every state the same bits."
    return f"{runs} runs{where}; states differ: {', '.join(findings.faulty) or 'between cores'}."


def _cores(work: Work, findings: Findings, cores: tuple[int, ...]) -> None:
    """One thread on one core after the other: each with itself, then all with each other."""
    dtype = "fp32" if "fp32" in work.model_dtypes else work.model_dtypes[0]
    backend = work.backend(dtype)
    tallies: dict[str, Tally] = {}
    for core in cores:
        with work.station.on_core(core):
            case = f"core {core}, model {dtype}"
            run, tally = work.model_run(backend, case), work.tally("repeat", case)
            tallies[str(core)] = work.repeat(findings, tally, work.level.core_repeats, run)
    # Which core it was decides no bit: what is compared with other machines is one for all.
    for key in [key for key in findings.digests if "repeat | core " in key]:
        del findings.digests[key]
    steady = {core: tally for core, tally in tallies.items() if tally.digests}
    votes = vote({core: tally.digests for core, tally in steady.items()})
    if votes.unanimous:
        first = next(iter(steady.values()))
        name = f"repeat | one core, model {dtype}"
        findings.digests |= {f"{name} | {s}": digest for s, digest in first.digests.items()}

    def differ(right: str, wrong: str, state: str, note: str) -> None:
        a, b = tallies[right], tallies[wrong]
        difference = NOT_LOCATED
        if a.states is not None and b.states is not None:
            difference = work.station.differences(a.states, b.states, state)
        what = ("repeat", b.case, state, 0, work.log.now, *difference)
        findings.add(Mismatch(*what, core=int(wrong), note=note))

    for odd, ballots in votes.outliers.items():
        right = next(name for name in steady if name not in votes.outliers)
        differ(right, odd, ballots[0].name, "most cores give other bits")
    if votes.undecided:
        one, first = next(iter(steady.items()))
        other = next(name for name, t in steady.items() if t.digests != first.digests)
        note = f"cores {one} and {other} disagree; which of them is wrong cannot be said"
        differ(one, other, votes.undecided[0].name, note)


def units(work: Work, findings: Findings) -> str:
    """Products, attention, sums, norms, copies and memory, each on its own, in every dtype."""
    for unit in work.station.units(work.dtypes, work.level.name):
        try:
            prepared = work.station.prepare(unit)
        except BackendUnavailable as error:
            findings.cases.append(Case(unit.name, "not comparable", note=str(error)))
            continue
        tally = work.tally("units", unit.name)
        worst, difference = None, NOT_LOCATED
        run = partial(work.station.unit_states, prepared, unit.name)
        try:
            for number in range(work.level.unit_repeats):
                states = work.once(tally, run)
                if unit.checked and number == 0:
                    worst, difference = prepared.judge(states)
        finally:
            case = findings.take(tally, worst)
        if worst is not None and not worst <= 1:
            note = "not what float64 gives, by more than this dtype allows"
            findings.cases[-1] = replace(case, verdict="fault", note=note)
            what = ("units", unit.name, "out", 0, work.log.now, *difference)
            findings.add(Mismatch(*what, note=note))
        del prepared, tally, run
    work.station.free()
    for kind in ("copy", "memory"):
        for pattern in MEMORY_PATTERNS:
            _known_words(work, findings, kind, pattern)
            work.station.free()
    ran = [case for case in findings.cases if case.repeats]
    left, wrong = len(findings.cases) - len(ran), findings.faulty
    rest = f"; {left} do not run here" if left else ""
    if wrong:
        return f"{len(wrong)} of {len(ran)} units are wrong: {', '.join(wrong[:3])}{rest}."
    return f"{len(ran)} units in {', '.join(work.dtypes)}: the same bits each time{rest}."


def _known_words(work: Work, findings: Findings, kind: str, pattern: str) -> None:
    """Words that are known beforehand: each must be what it was."""
    name, wrong, compared, seconds = f"{kind} {pattern}", 0, 0, 0.0
    repeats = 2 if kind == "copy" else 1
    for number in range(repeats):
        at, before = work.log.now, wrong
        for state, right, kept in work.station.memory_states(
            kind, pattern, work.level.name, number, name
        ):
            digests = work.station.digests({"right": right, "kept": kept})
            compared += 1
            if digests["right"] != digests["kept"]:
                wrong += 1
                difference = work.station.differences({state: right}, {state: kept}, state)
                findings.add(Mismatch("units", name, state, number, at, *difference))
        spent = work.log.now - at
        seconds += spent
        core = work.station.core
        work.log.note(Round("units", name, number, at, spent, wrong == before, core))
    verdict: Verdict = "fault" if wrong else "no fault found" if compared else "not comparable"
    pieces = f"{compared} pieces"
    note = f"{wrong} of {pieces} are not what was written" if wrong else pieces
    ran = repeats if compared else 0
    findings.cases.append(Case(name, verdict, ran, note=note, seconds=seconds))


class Load:
    """Cold and hot: the first run after idle, then runs between bursts of heavy work.

    What is hot must be what was cold, to the last bit. The cold part comes before everything else,
    the hot one last; a soak is this check, made long.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Tally, Callable[[int], Mapping[str, Any]]]] = []
        self._idle: Reading | None = None

    def cold(self, work: Work, findings: Findings) -> str:
        """One run of everything that will be repeated under load."""
        self._idle = work.log.read(work.station, "idle")
        dtypes = work.model_dtypes
        if work.given:  # it may be large: one dtype is kept ready for the whole run
            usual = "fp32" if work.station.label == "cpu" else "fp16"
            dtypes = (usual,) if usual in dtypes else dtypes[:1]
        for dtype in dtypes:
            case = f"model {dtype}, cold and hot"
            run = work.model_run(work.backend(dtype), case)
            self._runs.append((work.tally("load", case), run))
        for dtype in ("fp32", "fp16"):
            if dtype not in work.dtypes:
                continue
            # One product that keeps the whole device at work.
            units = work.station.units((dtype,), "quick")
            products = [u for u in units if u.kind == "matmul" and u.pattern == "random"]
            prepared = work.station.prepare(max(products, key=lambda unit: max(unit.size)))
            case = f"{prepared.unit.name}, cold and hot"
            run = partial(work.station.unit_states, prepared, case)
            self._runs.append((work.tally("load", case), run))
        for tally, run in self._runs:
            work.once(tally, run)
        return "Only the cold runs were made."

    def hot(self, work: Work, findings: Findings) -> str:
        """Heavy work and repeats in turn, until the time is over, with the sensors read beside."""
        end = time.perf_counter() + work.level.load_seconds
        due = 0.0
        try:
            while not self._over(end):
                for tally, run in self._runs:
                    work.station.burn(min(0.1, work.level.load_seconds / 20))
                    work.once(tally, run)
                    if time.perf_counter() >= due:
                        work.log.read(work.station, "load")
                        due = time.perf_counter() + READ_EVERY
                    if self._over(end):
                        break
        finally:
            for tally, _ in self._runs:
                findings.take(tally)
            self._runs = []
        last = work.log.read(work.station, "end")
        facts = new_memory_errors(self._idle, last, findings) if self._idle is not None else []
        readings = work.log.readings
        if degrees := [r.values["temperature"] for r in readings if "temperature" in r.values]:
            facts.append(f"{degrees[0]:.0f} to {max(degrees):.0f} °C")
        if reasons := {reason for reading in readings for reason in reading.throttled}:
            facts.append(f"clocks held down: {', '.join(sorted(reasons))}")
        rest = f" ({'; '.join(facts) or 'no sensor tells its temperature'})"
        if findings.faulty:
            return f"Hot is not what was cold: {', '.join(findings.faulty)}{rest}."
        runs = sum(case.repeats for case in findings.cases)
        return f"{runs} runs, cold and under load, the same bits{rest}."

    def _over(self, end: float) -> bool:
        fewest = min((tally.repeats for tally, _ in self._runs), default=LEAST_HOT_RUNS)
        return time.perf_counter() >= end and fewest >= LEAST_HOT_RUNS


def new_memory_errors(first: Reading, last: Reading, findings: Findings) -> list[str]:
    """Memory errors that were counted meanwhile; one that could not be corrected is a fault."""
    notes = []
    for kind in ("corrected", "uncorrected"):
        before, after = (reading.values.get(f"ecc {kind}") for reading in (first, last))
        if before is not None and after is not None and after > before:
            notes.append(f"{after - before:.0f} new memory error(s), {kind}")
            if kind == "uncorrected":
                findings.verdict = "fault"
    return notes


def between(devices: Sequence[DeviceResult]) -> Check:
    """Between devices: those of one model, with the same libraries, must give the same bits."""
    identities = {device.device: device.identity for device in devices}
    cases: list[Case] = []
    mismatches: list[Mismatch] = []

    def differ(device: str, key: str, note: str) -> None:
        *case, state = key.split(" | ")
        where = f"{device}: {' | '.join(case)}"
        mismatches.append(Mismatch("devices", where, state, 0, 0.0, 0, 0, note=note))

    for votes in votes_by_kind({d.device: d.digests for d in devices}, identities):
        names = ", ".join(votes.voters)
        model = identities[votes.voters[0]].get("model", "device")
        verdict: Verdict = "fault"
        if len(votes.voters) < 2:
            verdict, note = "not comparable", f"{names} is the only one of its kind ({model})"
        elif not votes.ballots:
            verdict, note = "not comparable", f"{names}: nothing that all of them ran"
        elif votes.unanimous:
            verdict = "no fault found"
            note = f"{names} agree in all {len(votes.ballots)} digests"
        elif votes.outliers:
            note = f"the odd one out is {', '.join(votes.outliers)}"
            for name, ballots in votes.outliers.items():
                differ(name, ballots[0].name, "the others give other bits")
        else:
            key = votes.undecided[0].name
            note = f"{names} disagree at {key}; by majority it cannot be said which is wrong"
            nobody = "none is in the majority: which is wrong is not known"
            differ(names, key, f"{names} disagree, and {nobody}")
        members = len(votes.voters) if len(votes.voters) > 1 else 0
        cases.append(Case(f"{model}: {names}", verdict, members, note=note))
    sentence = "; ".join(case.note for case in cases) + "."
    verdict = worst_verdict(case.verdict for case in cases)
    return Check("devices", verdict, sentence, tuple(cases), tuple(mismatches))
