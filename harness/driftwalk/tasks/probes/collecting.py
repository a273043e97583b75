"""The reports of a set, as they come in: a row for each, and only the worst report is kept."""

from __future__ import annotations

import heapq
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ...exercised import Exercised
from ...files import writable_folder
from ...layer_drift import LayerDrift
from ...make_report import probe_info
from ...measure.decisions import Decisions
from ...probe_set import Percentiles, ProbeRow, ProbeSet, Refused
from ...result import Report
from ...states import Probe

MOST_ROWS = 10_000
"""Rows of a set; of a larger one, the worst."""
WORST = 10
"""Probes that are named, and written as files of their own."""
MOST_REFUSED = 100
FOLDER = "probes"


def row_of(number: int, name: str, report: Report) -> ProbeRow:
    """What a set keeps of one report."""
    decided = report.outputs
    return ProbeRow(
        number=number,
        name=name,
        verdict=report.verdict,
        used=largest_use(report),
        first_divergence=report.first_name,
        root_cause=report.cause,
        kl=None if decided is None else decided.kl_max,
        flips=None if decided is None else decided.flips - decided.ties,
        shape=report.probe.shape,
        sha256=report.probe.sha256,
        reason=report.reason,
    )


def screened_row(
    number: int, name: str, probe: Probe, used: float | None, decided: Decisions | None
) -> ProbeRow:
    """What a set keeps of a probe that was screened and found clear."""
    return ProbeRow(
        number=number,
        name=name,
        verdict="pass",
        used=used,
        first_divergence=None,
        root_cause=None,
        kl=None if decided is None else decided.kl_max,
        flips=None if decided is None else decided.flips - decided.ties,
        shape=probe_info(probe).shape,
        sha256=probe.sha256,
        screened=True,
    )


def largest_use(report: Report) -> float | None:
    """The largest share of its allowance that a point used; None where nothing was compared.

    What is wrong without a number (NaN, another shape, a point that is missing) is without limit.
    """
    return largest_use_of(report.layers)


def largest_use_of(layers: Iterable[LayerDrift]) -> float | None:
    """The same of layers."""
    rows = tuple(layers)
    found = [math.inf for row in rows if not row.ok and row.verdict != "drift"]
    needed = (row.tolerance.needed for row in rows if row.tolerance is not None)
    found += [math.inf if math.isnan(one) else one for one in needed]
    return max(found, default=None)


class Collected:
    """The rows of one candidate, its worst report and its worst probes."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self._best_of_worst: list[tuple[tuple[int, float], int, ProbeRow]] = []
        self._worst: list[tuple[tuple[int, float], int, ProbeRow, Probe]] = []
        self._numbers = {name: array("d") for name in ("used", "kl", "flips")}
        self._verdicts: Counter[str] = Counter()
        self._screened = 0
        self._rank: tuple[int, float] = (-1, 0.0)

    def add(self, row: ProbeRow, report: Report | None, probe: Probe) -> None:
        """Heaps have the best on top: it leaves when there are too many; of equals, the later.

        A probe that was screened has no report.
        """
        self._verdicts[row.verdict] += 1
        self._screened += row.screened
        for name, numbers in self._numbers.items():
            value = getattr(row, name)
            if value is not None:
                numbers.append(value)
        rank, order = row.rank, -row.number
        _keep(self._best_of_worst, (rank, order, row), MOST_ROWS)
        _keep(self._worst, (rank, order, row, probe), WORST)
        if report is not None and rank > self._rank:
            self._rank, self.report = rank, report

    def replace(self, row: ProbeRow, report: Report, probe: Probe) -> None:
        """A probe that was screened has been judged whole; one that is none of the worst stays."""
        old = next((one for one, _ in self.worst if one.number == row.number), None)
        if old is None:
            return
        self._verdicts[old.verdict] -= 1
        self._screened -= old.screened
        for name, numbers in self._numbers.items():
            if (value := getattr(old, name)) is not None:
                numbers.remove(value)
        self._best_of_worst = [one for one in self._best_of_worst if one[2].number != row.number]
        self._worst = [one for one in self._worst if one[2].number != row.number]
        heapq.heapify(self._best_of_worst)
        heapq.heapify(self._worst)
        self.add(row, report, probe)

    def finished(
        self, origin: str, refused: list[Refused], refused_count: int, covered: Exercised | None
    ) -> Report:
        """The worst report, with the rows of all probes and what they come to."""
        assert self.report is not None
        rows = sorted((row for *_, row in self._best_of_worst), key=lambda row: row.number)
        used, kl, flips = (Percentiles.of(self._numbers[n]) for n in ("used", "kl", "flips"))
        count = sum(self._verdicts.values())
        told = ProbeSet(
            origin=origin,
            count=count,
            passed=self._verdicts["pass"],
            drifted=self._verdicts["drift"],
            unverified=self._verdicts["unverified"],
            worst=tuple(row.name for row, _ in self.worst),
            refused=tuple(refused),
            refused_count=refused_count,
            rows_left_out=count - len(rows),
            exercised=covered,
            screened=self._screened,
            used=used,
            kl=kl,
            flips=flips,
        )
        return replace(self.report, probe_set=told, probes=tuple(rows))

    @property
    def worst(self) -> list[tuple[ProbeRow, Probe]]:
        """The worst probes, the worst first."""
        return [(row, probe) for *_, row, probe in sorted(self._worst, reverse=True)]

    def write(self, folder: Path, report: Report, prefix: str = "") -> Report:
        """Write the worst probes as files, each to be run alone; gives the report that says so."""
        root = writable_folder(folder / FOLDER)
        files: dict[int, str] = {}
        for row, probe in self.worst:
            name = re.sub(r"[^A-Za-z0-9_-]+", "-", row.name)[:48].strip("-")
            stem = f"{prefix}{row.number:06d}-{name or 'probe'}"
            file = probe.save(root / f"{stem}.safetensors")
            files[row.number] = f"{FOLDER}/{file.name}"
        rows = (replace(row, file=files.get(row.number, "")) for row in report.probes)
        return replace(report, probes=tuple(rows))


def _keep(heap: list, item: tuple, most: int) -> None:  # type: ignore[type-arg]
    """Numbers of rows differ, so that nothing behind them is ever compared."""
    if len(heap) < most:
        heapq.heappush(heap, item)
    else:
        heapq.heappushpop(heap, item)
