"""The end of a session: the index of all reports, and a line for whatever is not a pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ..document import KINDS, RESULT
from ..errors import DriftwalkError
from ..files import write_atomically
from ..project.expected import unmet
from ..registry import REPORT_INDEX, load_target
from ..result import Report, load
from .outcome import Outcome
from .settings import Settings, settings

Told = tuple[str, Outcome]
"""A test, and one outcome of it."""


def finish(config: pytest.Config, told: Sequence[tuple[str, str]]) -> tuple[list[str], bool]:
    """The lines of the summary, and whether the session fails beyond its tests."""
    outcomes = [(nodeid, Outcome.read(text)) for nodeid, text in told]
    # Workers end their tests in any order; a reader wants the same every time.
    outcomes.sort(key=lambda pair: (pair[0], pair[1].folder))
    try:
        found = settings(config)
        lines = [*_lines(outcomes), *_index(found, outcomes)]
        failures = list(_lonely(found, outcomes))
    except DriftwalkError as error:
        return [f"driftwalk: {error}"], True
    return [*lines, *(f"EXPECTED DRIFT FAILS: {line}" for line in failures)], bool(failures)


def _lines(outcomes: Sequence[Told]) -> Iterator[str]:
    for nodeid, item in outcomes:
        if item.verdict != "pass" or not item.ok:
            where = f" -> {Path(item.folder) / 'report.html'}" if item.folder else ""
            yield f"{item.line} [{nodeid}]{where}"


def _index(found: Settings, outcomes: Sequence[Told]) -> Iterator[str]:
    """The index links to what this session wrote, and to nothing else."""
    if found.report is None:
        return
    entries = list(_entries(outcomes))
    if entries:
        name, target = REPORT_INDEX
        written = write_atomically(found.report / name, load_target(target)(entries))
        yield f"{len(entries)} report{'s' if len(entries) != 1 else ''}: {written}"


def _entries(outcomes: Sequence[Told]) -> Iterator[tuple[str, Report]]:
    result, page = (KINDS[RESULT].formats[name][0] for name in ("json", "html"))
    for folder in dict.fromkeys(Path(item.folder) for _, item in outcomes if item.folder):
        if (folder / result).is_file():
            yield f"{folder.name}/{page}", load(folder / result)


def _lonely(found: Settings, outcomes: Sequence[Told]) -> Iterator[str]:
    """Entries of the files in use that speak of no test: expired, or required."""
    for file in sorted({item.expected for _, item in outcomes if item.expected}):
        seen = [(item.model, item.candidate) for _, item in outcomes if item.expected == file]
        yield from unmet(found.known(Path(file)), seen, whole=found.require)
