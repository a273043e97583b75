"""One gate in one test: what is told of it, where its report is, and the words of a failure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ..project.expected import Gate, named
from ..result import Report


@dataclass(frozen=True)
class Outcome:
    """What the end of a session must know: plain text, fit to travel between processes."""

    verdict: str
    model: str
    candidate: str
    line: str
    ok: bool = True
    folder: str = ""
    """Where its report was written."""
    expected: str = ""
    """The file of expected drift it was held against."""

    def told(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Outcome:
        return cls(**json.loads(text))


def outcome(gate: Gate, folder: Path | None, expected: Path | None) -> Outcome:
    """What is told of a gate."""
    from driftwalk_reports.door import safe

    shown = safe(gate)
    model, candidate = named(gate.report)
    return Outcome(
        gate.verdict,
        model,
        candidate,
        f"{_word(gate)} {_who(shown)}: {_short(shown)}",
        gate.ok,
        str(folder) if folder else "",
        str(expected) if expected else "",
    )


def _who(gate: Gate) -> str:
    from driftwalk_reports.numbers import cut

    model, candidate = named(gate.report)
    return f"{cut(model, 80)} on {cut(candidate, 80)}"


def _word(gate: Gate) -> str:
    if gate.failures and gate.verdict in ("pass", "expected"):
        return "STALE"
    return gate.verdict.upper()


def _short(gate: Gate) -> str:
    """A line for a summary."""
    from driftwalk_reports.numbers import cut
    from driftwalk_reports.sentences import what_happened

    report, first, root = gate.report, gate.report.first_divergence, gate.report.root_cause
    if gate.failures and gate.verdict in ("pass", "expected"):
        return cut(gate.failures[0], 300)
    if report.verdict == "unverified":
        return cut(report.reason, 300)
    if gate.verdict == "expected":
        reasons = dict.fromkeys(cut(item.reason, 200) for item in report.expected)
        return f"{len(report.expected)} points drift as expected: {'; '.join(reasons)}"
    if first is None:
        return "within tolerance"
    text = f"{cut(first.point.name, 80)}: {what_happened(first, report)}"
    return text + (f"; root cause {cut(root.point.name, 80)}" if root is not None else "")


def failure(gate: Gate, folder: Path | None, advice: str = "") -> str:
    """What a failing test says: where, why, how much, and where to read on."""
    from driftwalk_reports.door import safe

    return "\n".join(_lines(safe(gate), folder, advice))


def _lines(gate: Gate, folder: Path | None, advice: str) -> Iterator[str]:
    from driftwalk_reports.numbers import cut
    from driftwalk_reports.view import look

    view = look(gate.report)
    if gate.failures and gate.verdict in ("pass", "expected"):
        yield "The expected drift is out of date."
    else:
        yield view.headline
    yield "".join(f"\n  {label:<10} {value}" for label, value in view.about).removeprefix("\n")
    for row in (row for row in view.rows if row.marks):
        facts = dict(row.facts)
        wanted = ("rel L2", "max abs", "used", "mismatched", "worst at", "blame")
        numbers = [f"{label} {facts[label]}" for label in wanted if label in facts]
        yield f"  {row.name} ({', '.join(row.marks)}): {', '.join(numbers) or row.sentence}"
    if gate.verdict == "drift" and view.decisions:
        yield f"  {view.decisions}"
    for line in gate.failures:
        yield f"  {cut(line, 600)}"
    for note in gate.report.notes:
        if note not in gate.failures:
            yield f"  Note: {cut(note, 600)}"
    if folder is not None:
        yield f"  Report: {folder / 'report.html'}"
    if advice:
        yield f"  {advice}"


def folder_for(root: Path, nodeid: str, number: int) -> Path:
    """A place of its own for each gate of each test, the same in whichever process it runs."""
    digest = hashlib.sha256(f"{nodeid}#{number}".encode(errors="replace")).hexdigest()[:8]
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", nodeid.rpartition("/")[2]).strip("-")[:60]
    return root / f"{plain or 'test'}-{digest}"


def save(report: Report, folder: Path) -> Path:
    """All formats of one report."""
    from ..publish import publish

    publish((report,), folder)
    return folder
