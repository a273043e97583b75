"""What a test says of a run that it gated: a line of the summary, and all lines of a failure.

`verdict` is that of the gate: the report's own, or `expected`; `failures` are entries of expected
drift that fail by themselves, a sentence each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from driftwalk.result import Report
from driftwalk.tasks.generation.result import Generation

from . import generation
from .door import renderer
from .numbers import cut
from .sentences import or_before, what_happened
from .view import look


@renderer
def summary_line(report: Report, verdict: str, failures: Sequence[str]) -> str:
    """The word, the layer where there is one, the run, and why."""
    stale = _is_stale(verdict, failures)
    word, layer = "STALE" if stale else verdict.upper(), _layer(report)
    where = f"{layer} of " if layer and not stale and verdict == "drift" else ""
    model, candidate = report.model.get("label", ""), report.candidate.spec
    why = _short(report, verdict, failures)
    return f"{word} {where}{cut(model, 80)} on {cut(candidate, 80)}: {why}"


@renderer
def failure(
    report: Report, verdict: str, failures: Sequence[str], page: str = "", advice: str = ""
) -> str:
    """Where, why, how much, and where to read on: `page` is the path of the report."""
    return "\n".join(_lines(report, verdict, failures, page, advice))


@renderer
def generation_line(report: Generation, verdict: str, failures: Sequence[str]) -> str:
    model, candidate = report.model.get("label", ""), report.candidate.spec
    stale = _is_stale(verdict, failures)
    said = generation.look(report).headline.partition(": ")[2].rstrip(".")
    if stale:
        said = failures[0]
    elif verdict == "expected":
        said = _as_expected(report)
    word = "STALE" if stale else verdict.upper()
    return f"{word} {cut(model, 80)} on {cut(candidate, 80)}: {cut(said, 300)}"


@renderer
def generation_failure(
    report: Generation, verdict: str, failures: Sequence[str], page: str = ""
) -> str:
    """The same of a generation: where, when and why, and where to read on."""
    view = generation.look(report)
    stale = _is_stale(verdict, failures)
    lines = ["The expected drift is out of date." if stale else view.headline]
    lines += (f"  {label:<10} {value}" for label, value in view.about)
    lines += [f"  {text}" for text in view.sentences]
    for one in (one for one in view.points if one.row.marks):
        lines.append(f"  {one.row.name} ({', '.join(one.row.marks)}): {one.row.sentence}")
    lines += [f"  Note: {cut(note, 600)}" for note in report.notes]
    return "\n".join([*lines, *([f"  Report: {page}"] if page else [])])


def _is_stale(verdict: str, failures: Sequence[str]) -> bool:
    """Whether it fails by what was expected alone: an entry that expired, or that nothing needs."""
    return bool(failures) and verdict in ("pass", "expected")


def _layer(report: Report) -> str:
    """The layer that a reader must look at: the root cause, or where it shows."""
    layer = report.root_cause or report.first_divergence
    return cut(layer.point.name, 60) if layer is not None else ""


def _opening(report: Report) -> str:
    """The few words that pytest's short summary has room for, the layer first."""
    first, root = report.first_divergence, report.root_cause
    if first is None:
        return ""
    if root is None:
        return f"{_layer(report)} drifts"
    if root.point.name == first.point.name:
        return f"{_layer(report)} drifts, and is the root cause{or_before(report)}"
    shows = f"drift shows at {cut(first.point.name, 60)}"
    return f"{_layer(report)} is the root cause{or_before(report)}; {shows}"


def _as_expected(report: Report | Generation) -> str:
    reasons = dict.fromkeys(cut(item.reason, 200) for item in report.expected)
    return f"{len(report.expected)} points drift as expected: {'; '.join(reasons)}"


def _short(report: Report, verdict: str, failures: Sequence[str]) -> str:
    first, root = report.first_divergence, report.root_cause
    if _is_stale(verdict, failures):
        return cut(failures[0], 300)
    if report.verdict == "unverified":
        return cut(report.reason, 300)
    if verdict == "expected":
        return _as_expected(report)
    if first is None:
        return cut(report.reason, 300) or "within tolerance"
    text = what_happened(first, report)
    if root is None:
        return text
    same = root.point.name == first.point.name
    return f"{text}; root cause" if same else f"root cause; at {cut(first.point.name, 80)} {text}"


def _lines(
    report: Report, verdict: str, failures: Sequence[str], page: str, advice: str
) -> Iterator[str]:
    view = look(report)
    stale = _is_stale(verdict, failures)
    opening = _opening(report) if verdict == "drift" and not stale else ""
    if opening:
        yield f"{opening}."
    yield "The expected drift is out of date." if stale else view.headline
    yield "".join(f"\n  {label:<10} {value}" for label, value in view.about).removeprefix("\n")
    for row in (row for row in view.rows if row.marks):
        facts = dict(row.facts)
        wanted = ("rel L2", "max abs", "used", "mismatched", "worst at", "blame")
        numbers = [f"{label} {facts[label]}" for label in wanted if label in facts]
        yield f"  {row.name} ({', '.join(row.marks)}): {', '.join(numbers) or row.sentence}"
    if verdict == "drift" and view.decisions:
        yield f"  {view.decisions}"
    for line in failures:
        yield f"  {cut(line, 600)}"
    for note in report.notes:
        if note not in failures:
            yield f"  Note: {cut(note, 600)}"
    if page:
        yield f"  Report: {page}"
    if advice:
        yield f"  {advice}"
