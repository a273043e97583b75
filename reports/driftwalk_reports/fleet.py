"""A fleet's report: what is shown of it, then how: on a terminal, as Markdown, as a page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from driftwalk.tasks.fleet.result import FleetReport, Record, Verdict

from . import console, marked
from .layout import SYMBOLS, Cell, Head, Sign
from .marked import Markdown
from .numbers import NOTHING, cut, names, seconds
from .page import page_renderer

BITS = "same bits"
"""The column for what only the other devices can tell."""
TONES: dict[Verdict, str] = {"pass": "pass", "fault": "drift", "unsure": "unverified"}
_WORDS: dict[str, dict[Verdict, str]] = {
    "hwcheck": {"pass": "no fault found", "fault": "fault", "unsure": "not comparable"},
    "verify": {"pass": "pass", "fault": "drift", "unsure": "unverified"},
}
MOST_NAMED = 4
_PAGE = re.compile(r"[\w-][\w./-]*\.html", re.ASCII)
"""A page below the results folder: nothing that a browser would take for an address."""


@dataclass(frozen=True)
class JobLine:
    """One job: a device, or a verification."""

    name: str
    device: str
    where: str
    verdict: Sign
    fields: tuple[Sign | None, ...]
    said: str
    seconds: str
    tries: str
    href: str


@dataclass(frozen=True, kw_only=True)
class FleetView(Head[FleetReport]):
    columns: tuple[str, ...]
    lines: tuple[JobLine, ...]
    contradicted: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[str, str, int], ...]], ...]
    """Differences of the environment: what differs; each value, who has it, and how many."""
    troubles: tuple[tuple[str, str, str, str, str], ...]
    """Attempts that gave no answer: job, place, ending, seconds, reason."""


def sign(verdict: Verdict, word: str, detail: str = "") -> Sign:
    return Sign(TONES[verdict], SYMBOLS[TONES[verdict]], word, detail)


def look(report: FleetReport) -> FleetView:
    """Everything a fleet report shows."""
    columns = _columns(report)
    return FleetView(
        document=report,
        tone=TONES[report.verdict],
        headline=headline(report),
        about=(
            ("ran on", report.cluster),
            ("jobs", _counted(report)),
            ("took", seconds(report.seconds)),
        ),
        columns=tuple(cut(name, 60) for name in columns),
        lines=tuple(_line(report, record, columns) for record in report.records),
        contradicted=tuple(_contradictions(report)),
        groups=tuple(
            (
                cut(item.key, 80),
                tuple((cut(v, 200), names(who, 12), len(who)) for v, who in item.groups),
            )
            for item in report.differences
        ),
        troubles=tuple(_troubles(report)),
        notes=tuple(_notes(report)),
    )


def headline(report: FleetReport) -> str:
    """One sentence: who is wrong, or what is not known, or that nothing was found."""
    said = _hardware(report) if report.task == "hwcheck" else _verification(report)
    return said if report.complete else f"{said} The run was interrupted."


def _hardware(report: FleetReport) -> str:
    total, unknown = len(report.records), _unknown(report)
    if report.wrong:
        who = names(report.wrong, MOST_NAMED)
        verb = "computes" if len(report.wrong) == 1 else "compute"
        return f"FAULT: {who} {verb} wrongly ({len(report.wrong)} of {total} devices).{unknown}"
    if report.splits:
        who = " against ".join(names(side, MOST_NAMED) for side in report.splits[0].sides)
        said = "devices of one kind disagree, and which is wrong cannot be said"
        return f"FAULT: {said}: {who}.{unknown}"
    if unknown:
        good = total - len(report.unsure)
        rest = f" No fault was found on the other {good}." if good else ""
        return f"NOT CHECKED:{unknown}{rest}"
    nodes = len({record.place.node for record in report.records if record.place})
    return f"NO FAULT FOUND on {many(total, 'device')} of {many(nodes, 'node')}."


def _verification(report: FleetReport) -> str:
    total, unknown = len(report.records), _unknown(report)
    if report.faults:
        who = names([record.job.label for record in report.faults], MOST_NAMED)
        return f"DRIFT in {len(report.faults)} of {many(total, 'job')}: {who}.{unknown}"
    return f"UNVERIFIED:{unknown}" if unknown else f"PASS: {many(total, 'job')} within tolerance."


def _unknown(report: FleetReport) -> str:
    """What could not be told, by name and reason; empty where all could."""
    reasons = [
        f"{cut(record.job.label, 60)} "
        f"({record.status if record.status != 'done' else 'no verdict'})"
        for record in report.unsure[:MOST_NAMED]
    ]
    more = len(report.unsure) - len(reasons)
    rest = f" and {more} more" if more > 0 else ""
    return f" Could not be told: {', '.join(reasons)}{rest}." if reasons else ""


def many(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _counted(report: FleetReport) -> str:
    counts = Counter(_judged(report, record)[0] for record in report.records)
    words = _WORDS[report.task] | {"unsure": "could not be told"}
    return ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items())


def _judged(report: FleetReport, record: Record) -> tuple[Verdict, str]:
    """What is said of a job in the end: its own check may see nothing, and the others do."""
    if record.status != "done":
        return "unsure", record.status
    bits = _bits(report, record)
    if record.verdict != "fault" and bits is not None and bits.tone == TONES["fault"]:
        return "fault", "other bits"
    return record.verdict, _WORDS[report.task][record.verdict]


def _columns(report: FleetReport) -> list[str]:
    """Hardware checks are a matrix; a verification has its one verdict."""
    if report.task != "hwcheck":
        return []
    findings = [r.finding for r in report.records if r.finding is not None]
    checks = dict.fromkeys(check.name for finding in findings for check in finding.checks)
    return [*checks, *([BITS] if any(finding.patterns for finding in findings) else [])]


def _line(report: FleetReport, record: Record, columns: Sequence[str]) -> JobLine:
    finding, words = record.finding, _WORDS[report.task]
    checks = finding.checks if finding else ()
    fields = {check.name: sign(check.verdict, words[check.verdict], check.said) for check in checks}
    bits = _bits(report, record)
    return JobLine(
        name=cut(record.job.label, 120),
        device=cut(finding.device, 80) if finding else NOTHING,
        where=cut(record.place.name, 80) if record.place else NOTHING,
        verdict=sign(*_judged(report, record)),
        fields=tuple(bits if name == BITS else fields.get(name) for name in columns),
        said=cut(finding.said if finding else record.note, 400),
        seconds=seconds(record.seconds) if record.attempts else NOTHING,
        tries="earlier run" if record.resumed else str(len(record.attempts)),
        href=record.page if _PAGE.fullmatch(record.page) else "",
    )


def _bits(report: FleetReport, record: Record) -> Sign | None:
    """What the other devices of its kind say of this one."""
    if record.finding is None or record.place is None or not record.finding.patterns:
        return None
    name = record.place.name
    for outlier in report.outliers:
        if outlier.place == name:
            return sign("fault", "alone against most", f"from {cut(outlier.patterns[0], 80)}")
    for split in report.splits:
        if any(name in side for side in split.sides):
            return sign("fault", "no majority", f"at {cut(split.pattern, 80)}")
    if name in report.alone:
        return sign("unsure", "none like it")
    return sign("pass", "as the others")


def _contradictions(report: FleetReport) -> Iterator[str]:
    for outlier in report.outliers:
        more = len(outlier.patterns) - 1
        also = f" and {more} more" if more else ""
        yield (
            f"{outlier.place}: other bits than {outlier.like} of {outlier.of} devices of "
            f"its kind ({cut(outlier.device, 80)}), first at "
            f"{cut(outlier.patterns[0], 120)}{also}."
        )
    for split in report.splits[:MOST_NAMED]:
        sides = " against ".join(names(side, 8) for side in split.sides)
        yield (
            f"{cut(split.pattern, 120)}: {sides}. No side has more than half, so which is wrong "
            "cannot be said; a golden of a trusted machine, or a third device, would tell."
        )
    if len(report.splits) > MOST_NAMED:
        yield f"The same for {len(report.splits) - MOST_NAMED} more states."


def _troubles(report: FleetReport) -> Iterator[tuple[str, str, str, str, str]]:
    for record in report.records:
        for attempt in record.attempts:
            if attempt.ending != "done":
                job, place = cut(record.job.label, 120), cut(attempt.place, 120)
                reason = cut(attempt.reason, 400)
                yield job, place, attempt.ending, seconds(attempt.seconds), reason


def _notes(report: FleetReport) -> Iterator[str]:
    if not report.complete:
        yield "Interrupted: these are the results until then. --resume goes on with them."
    resumed = sum(record.resumed for record in report.records)
    if resumed:
        yield f"{many(resumed, 'job')} had been done in an earlier run, and not again."
    if report.alone:
        yield (
            "No other device of the same model, libraries and settings to compare bits with: "
            f"{names(report.alone, 8)}."
        )
    yield from report.notes


def _parts(view: FleetView, _: Console) -> Iterator[RenderableType]:
    ran_on, *rest = view.about
    counted, took = (value for _, value in rest)
    yield console.about((ran_on, ("jobs", f"{counted}, in {took}")))
    rows: list[list[Cell | Text]] = []
    for line in view.lines:
        # Only the symbol fits beside its neighbours; what is wrong is said below.
        fields = [
            Text(one.symbol, console.STYLES[one.tone]) if one else Text(NOTHING)
            for one in line.fields
        ]
        rows.append([line.name, line.verdict, *fields, line.seconds, *_where(view, line)])
    yield console.table(_titles(view), rows)
    for line in view.lines:
        if line.verdict.tone != "pass" and line.said:
            yield Text(f"{line.name}: {line.said}")
    yield from map(Text, view.contradicted)
    if view.troubles:
        yield Text("\nAttempts without a result", style="bold")
        for job, place, ending, took, reason in view.troubles:
            where = f" on {place}" if place != job else ""
            yield Text(f"{job}{where}: {ending} after {took}: {reason}")
    if view.groups:
        yield Text("\nNot the same everywhere", style="bold")
        for key, values in view.groups:
            yield from (Text(f"{key} = {value}: {who}") for value, who, _ in values)
    yield from console.noted(view.notes)


def _titles(view: FleetView) -> list[str]:
    if view.document.task == "hwcheck":
        return ["device", "verdict", *view.columns, "time"]
    return ["job", "verdict", "time", "where"]


def _where(view: FleetView, line: JobLine) -> list[str]:
    """A device is its own place."""
    return [] if view.document.task == "hwcheck" else [line.where]


def _sections(view: FleetView) -> Iterator[Markdown]:
    (_, cluster), (_, counted), (_, took) = view.about
    yield Markdown("### driftwalk fleet: {}").format(view.document.task)
    yield Markdown("**{}**").format(marked.escaped(view.headline, 1500))
    yield Markdown("{}; {}, in {}").format(marked.paragraph(cluster), counted, took)
    rows = []
    for line in view.lines:
        fields = [one.symbol if one else "" for one in line.fields]
        where = map(marked.code, _where(view, line))
        said = marked.escaped(line.said, 200) if line.verdict.tone != "pass" else ""
        rows.append((marked.code(line.name), line.verdict, *fields, line.seconds, *where, said))
    yield marked.table((*_titles(view), "said"), rows)
    for said in view.contradicted:
        yield Markdown("- {}").format(marked.escaped(said, 600))
    if view.troubles:
        attempts = [
            (marked.code(job), marked.code(place), *more) for job, place, *more in view.troubles
        ]
        titles = ("job", "place", "ended", "after", "reason")
        yield Markdown("Attempts without a result\n\n{}").format(
            marked.table(titles, attempts, "   r")
        )
    if view.groups:
        values = [(key, value, who) for key, group in view.groups for value, who, _ in group]
        yield marked.table(("not the same everywhere", "value", "where"), values)
    yield from marked.foot(view)


render = console.text_renderer(look, _parts)
render_markdown = marked.markdown_renderer(look, _sections)
render_page = page_renderer("fleet.html.j2", look)
