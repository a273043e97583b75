"""Cold and hot: the first run after idle, then runs between bursts of heavy work, sensors beside.

What is hot must be what was cold, to the last bit. A soak is this check, made long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from .repeats import Findings, Tally
from .result import Reading
from .work import Work

NAME = "load"
LEAST = 3
"""Runs of each, however little time there is: of two that differ nobody knows which is wrong."""
READ_EVERY = 1.0
"""Seconds between two readings of the sensors."""


class Load:
    """The check in two parts: the cold one comes before everything else, the hot one last."""

    def __init__(self, work: Work, findings: Findings) -> None:
        self._work = work
        self.findings = findings
        self._runs: list[tuple[Tally, Callable[[int], Mapping[str, Any]]]] = []
        self._first: Reading | None = None

    def cold(self) -> str:
        """One run of everything that will be repeated under load."""
        work = self._work
        self._first = work.log.read(work.station, "idle")
        for dtype in work.load_dtypes:
            backend = work.backend(dtype)
            case = f"model {dtype}, cold and hot"

            def model(repeat: int, backend: Any = backend, case: str = case) -> Mapping[str, Any]:
                return work.station.model_states(backend, work.probe, case, repeat)

            self._runs.append((work.tally(NAME, case), model))
        for dtype in ("fp32", "fp16"):
            if dtype in work.dtypes:
                self._unit(dtype)
        for tally, run in self._runs:
            work.once(tally, run)
        return "Only the cold runs were made."

    def _unit(self, dtype: str) -> None:
        """One product that keeps the whole device at work, and is looked at."""
        work = self._work
        units = work.station.units((dtype,), "quick")
        products = [unit for unit in units if unit.kind == "matmul" and unit.pattern == "random"]
        prepared = work.station.prepare(max(products, key=lambda unit: max(unit.size)))
        case = f"{prepared.unit.name}, cold and hot"

        def product(repeat: int) -> Mapping[str, Any]:
            return work.station.unit_states(prepared, case, repeat)

        self._runs.append((work.tally(NAME, case), product))

    def hot(self) -> None:
        """Heavy work and repeats in turn, until the time is over."""
        work = self._work
        end = time.perf_counter() + work.level.load_seconds
        due = 0.0
        try:
            while time.perf_counter() < end or self._least() < LEAST:
                for tally, run in self._runs:
                    work.station.burn(min(0.1, work.level.load_seconds / 20))
                    work.once(tally, run)
                    if time.perf_counter() >= due:
                        work.log.read(work.station, "load")
                        due = time.perf_counter() + READ_EVERY
                    if time.perf_counter() >= end and self._least() >= LEAST:
                        break
        finally:
            for tally, _ in self._runs:
                self.findings.take(tally)
            self._runs = []

    def _least(self) -> int:
        return min((tally.repeats for tally, _ in self._runs), default=LEAST)

    def sentence(self) -> str:
        """What was found, with what the sensors say of it."""
        work, findings = self._work, self.findings
        last = work.log.read(work.station, "end")
        told = []
        if self._first is not None:
            told += _errors(self._first, last, findings)
        readings = work.log.readings
        if degrees := [r.values["temperature"] for r in readings if "temperature" in r.values]:
            told.append(f"{degrees[0]:.0f} to {max(degrees):.0f} °C")
        held = {reason for reading in readings for reason in reading.throttled}
        if held:
            told.append(f"clocks held down: {', '.join(sorted(held))}")
        runs = sum(case.repeats for case in findings.cases)
        wrong = [case.name for case in findings.cases if case.verdict == "fault"]
        rest = f" ({'; '.join(told)})" if told else " (no sensor tells its temperature)"
        if wrong:
            return f"Hot is not what was cold: {', '.join(wrong)}{rest}."
        return f"{runs} runs, cold and under load, the same bits{rest}."


def _errors(first: Reading, last: Reading, findings: Findings) -> list[str]:
    """Memory errors that were counted meanwhile; one that could not be corrected is a fault."""
    told = []
    for name in ("ecc corrected", "ecc uncorrected"):
        before, after = first.values.get(name), last.values.get(name)
        if before is None or after is None:
            continue
        if after > before:
            told.append(f"{after - before:.0f} new memory error(s), {name.removeprefix('ecc ')}")
            if name == "ecc uncorrected":
                findings.verdict = "fault"
    return told
