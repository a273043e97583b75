"""What a session says at its end: the index of all reports, and a line for all that is no pass."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from ..document import KINDS, RESULT, load
from ..errors import DriftwalkError
from ..files import write_atomically
from ..project.expected import unmet
from ..registry import REPORT_INDEX, load_target
from .settings import Settings, settings


@dataclass(frozen=True)
class GateRecord:
    """One gate in one test: plain text, fit to travel between processes."""

    verdict: str
    model: str
    candidate: str
    line: str
    ok: bool = True
    folder: str = ""
    """Where its report was written."""
    expected: str = ""
    """The file of expected drift that it was compared with."""
    kind: str = RESULT
    """Of the report."""

    def file(self, format: str) -> Path:
        """Where its report is, in one of its formats."""
        return Path(self.folder) / KINDS[self.kind].formats[format][0]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


Gated = Sequence[tuple[str, GateRecord]]
"""Tests by their node ids, each with a gate in it."""


def finish(config: pytest.Config, told: Sequence[tuple[str, str]]) -> tuple[list[str], bool]:
    """The lines of the summary, and whether the session fails beyond its tests."""
    gated = [(nodeid, GateRecord(**json.loads(text))) for nodeid, text in told]
    # Workers end their tests in any order; a reader wants the same every time.
    gated.sort(key=lambda pair: (pair[0], pair[1].folder))
    try:
        chosen = settings(config)
        lines = [*_lines(gated), *_index(chosen, gated)]
        failures = list(_lonely(chosen, gated, config.option.drift_require))
    except DriftwalkError as error:
        return [f"driftwalk: {error}"], True
    return [*lines, *(f"EXPECTED DRIFT FAILS: {line}" for line in failures)], bool(failures)


def _lines(gated: Gated) -> Iterator[str]:
    for nodeid, gate in gated:
        if gate.verdict != "pass" or not gate.ok:
            where = f" -> {gate.file('html')}" if gate.folder else ""
            yield f"{gate.line} [{nodeid}]{where}"


def _index(chosen: Settings, gated: Gated) -> Iterator[str]:
    """The index links to what this session wrote, and to nothing else."""
    if chosen.report is None:
        return
    files = dict.fromkeys((g.file("json"), g.file("html").name) for _, g in gated if g.folder)
    entries = [
        (f"{stored.parent.name}/{page}", load(stored)) for stored, page in files if stored.is_file()
    ]
    if entries:
        name, target = REPORT_INDEX
        written = write_atomically(chosen.report / name, load_target(target)(entries))
        yield f"{len(entries)} report{'s' if len(entries) != 1 else ''}: {written}"


def _lonely(chosen: Settings, gated: Gated, required: bool) -> Iterator[str]:
    """Entries of the files in use that speak of no test: expired, or required."""
    for file in sorted({gate.expected for _, gate in gated if gate.expected}):
        seen = [(gate.model, gate.candidate) for _, gate in gated if gate.expected == file]
        yield from unmet(chosen.known(Path(file)), seen, whole=required)
