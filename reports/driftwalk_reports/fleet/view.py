"""A fleet's report in words: what every format of it shows, without markup."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from driftwalk.tasks.fleet.result import FleetReport, Record, Verdict

from ..numbers import NOTHING, cut, names, seconds

BITS = "same bits"
"""The column for what only the other devices can tell."""
SYMBOLS: dict[Verdict, str] = {"pass": "✓", "fault": "✗", "unsure": "?"}
TONES: dict[Verdict, str] = {"pass": "pass", "fault": "drift", "unsure": "unverified"}
"""The colours of the other reports."""
_WORDS: dict[str, dict[Verdict, str]] = {
    "hwcheck": {"pass": "no fault found", "fault": "fault", "unsure": "not comparable"},
    "verify": {"pass": "pass", "fault": "drift", "unsure": "unverified"},
}
MOST_NAMED = 4
_PAGE = re.compile(r"[\w-][\w./-]*\.html", re.ASCII)
"""A page below the results folder: nothing that a browser would take for an address."""


@dataclass(frozen=True)
class Field:
    """One field of the matrix."""

    symbol: str
    word: str
    tone: str
    said: str = ""


@dataclass(frozen=True)
class Line:
    """One job: a device, or a verification."""

    name: str
    device: str
    where: str
    verdict: Field
    fields: tuple[Field | None, ...]
    said: str
    seconds: str
    tries: str
    href: str


@dataclass(frozen=True)
class Trouble:
    """An attempt that gave no answer."""

    job: str
    place: str
    """Empty where the job is the check of that very place."""
    ending: str
    reason: str
    seconds: str


@dataclass(frozen=True)
class Group:
    """One difference of the environment, and who has what."""

    key: str
    values: tuple[tuple[str, str, int], ...]
    """The value, who has it, how many."""


@dataclass(frozen=True)
class FleetView:
    headline: str
    symbol: str
    tone: str
    task: str
    cluster: str
    counted: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    contradicted: tuple[str, ...]
    groups: tuple[Group, ...]
    troubles: tuple[Trouble, ...]
    notes: tuple[str, ...]
    command: str
    created: str
    tool: str
    took: str
    environment: tuple[tuple[str, str], ...]


def look(report: FleetReport) -> FleetView:
    """Everything a fleet report shows."""
    columns = _columns(report)
    return FleetView(
        headline=headline(report),
        symbol=SYMBOLS[report.verdict],
        tone=TONES[report.verdict],
        task=report.task,
        cluster=report.cluster,
        counted=_counted(report),
        columns=tuple(cut(name, 60) for name in columns),
        lines=tuple(_line(report, record, columns) for record in report.records),
        contradicted=tuple(_contradictions(report)),
        groups=tuple(
            Group(
                cut(item.key, 80),
                tuple((cut(v, 200), names(who, 12), len(who)) for v, who in item.groups),
            )
            for item in report.differences
        ),
        troubles=tuple(_troubles(report)),
        notes=tuple(_notes(report)),
        command=report.command,
        created=report.created,
        tool=f"{report.tool.name} {report.tool.version}",
        took=seconds(report.seconds),
        environment=tuple(report.environment.items()),
    )


def headline(report: FleetReport) -> str:
    """One sentence: who is wrong, or what is not known, or that nothing was found."""
    said = _hardware(report) if report.task == "hwcheck" else _verification(report)
    return said if report.complete else f"{said} The run was interrupted."


def _hardware(report: FleetReport) -> str:
    total, open_ = len(report.records), report.unsure
    unknown = f" {_unknown(report)}" if open_ else ""
    if report.wrong:
        who = names(report.wrong, MOST_NAMED)
        verb = "computes" if len(report.wrong) == 1 else "compute"
        return f"FAULT: {who} {verb} wrongly ({len(report.wrong)} of {total} devices).{unknown}"
    if report.splits:
        who = " against ".join(names(side, MOST_NAMED) for side in report.splits[0].sides)
        said = "devices of one kind disagree, and which is wrong cannot be said"
        return f"FAULT: {said}: {who}.{unknown}"
    if open_:
        good = total - len(open_)
        rest = f" No fault was found on the other {good}." if good else ""
        return f"NOT CHECKED:{unknown}{rest}"
    nodes = len({record.place.node for record in report.records if record.place})
    return f"NO FAULT FOUND on {many(total, 'device')} of {many(nodes, 'node')}."


def _verification(report: FleetReport) -> str:
    total, open_ = len(report.records), report.unsure
    unknown = f" {_unknown(report)}" if open_ else ""
    if report.faults:
        who = names([record.job.label for record in report.faults], MOST_NAMED)
        return f"DRIFT in {len(report.faults)} of {many(total, 'job')}: {who}.{unknown}"
    if open_:
        return f"UNVERIFIED:{unknown}"
    return f"PASS: {many(total, 'job')} within tolerance."


def _unknown(report: FleetReport) -> str:
    """What could not be told, by name and reason."""
    told = [
        f"{cut(record.job.label, 60)} ({_why(record)})" for record in report.unsure[:MOST_NAMED]
    ]
    more = len(report.unsure) - len(told)
    rest = f" and {more} more" if more > 0 else ""
    return f"Could not be told: {', '.join(told)}{rest}."


def _why(record: Record) -> str:
    return record.status if record.status != "done" else "no verdict"


def many(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _counted(report: FleetReport) -> str:
    counts = {"pass": 0, "fault": 0, "unsure": 0}
    for record in report.records:
        counts[_judged(report, record)[0]] += 1
    words = _WORDS[report.task]
    told = [
        f"{counts['pass']} {words['pass']}",
        f"{counts['fault']} {words['fault']}",
        f"{counts['unsure']} could not be told",
    ]
    return ", ".join(told)


def _judged(report: FleetReport, record: Record) -> tuple[Verdict, str]:
    """What is said of a job in the end: its own check may see nothing, and the others do."""
    bits = _bits(report, record)
    if record.status != "done":
        return "unsure", record.status
    if record.verdict != "fault" and bits is not None and bits.tone == TONES["fault"]:
        return "fault", "other bits"
    return record.verdict, _WORDS[report.task][record.verdict]


def _columns(report: FleetReport) -> list[str]:
    """Hardware checks are a matrix; a verification has its one verdict."""
    if report.task != "hwcheck":
        return []
    found = [r.finding for r in report.records if r.finding is not None]
    checks = dict.fromkeys(check.name for finding in found for check in finding.checks)
    return [*checks, *([BITS] if any(finding.patterns for finding in found) else [])]


def _line(report: FleetReport, record: Record, columns: Sequence[str]) -> Line:
    finding, words = record.finding, _WORDS[report.task]
    verdict, word = _judged(report, record)
    by_name = {check.name: check for check in finding.checks} if finding else {}
    fields: list[Field | None] = []
    for name in columns:
        if name == BITS:
            fields.append(_bits(report, record))
        elif name in by_name:
            check = by_name[name]
            told = words[check.verdict]
            fields.append(Field(SYMBOLS[check.verdict], told, TONES[check.verdict], check.said))
        else:
            fields.append(None)
    return Line(
        name=cut(record.job.label, 120),
        device=cut(finding.device, 80) if finding else NOTHING,
        where=cut(record.place.name, 80) if record.place else NOTHING,
        verdict=Field(SYMBOLS[verdict], word, TONES[verdict]),
        fields=tuple(fields),
        said=cut(finding.said if finding else record.note, 400),
        seconds=seconds(record.seconds) if record.attempts else NOTHING,
        tries="earlier run" if record.resumed else str(len(record.attempts)),
        href=record.page if _PAGE.fullmatch(record.page) else "",
    )


def _bits(report: FleetReport, record: Record) -> Field | None:
    """What the other devices of its kind say of this one."""
    if record.finding is None or record.place is None or not record.finding.patterns:
        return None
    name = record.place.name
    for outlier in report.outliers:
        if outlier.place == name:
            first = cut(outlier.patterns[0], 80)
            return Field(SYMBOLS["fault"], "alone against most", TONES["fault"], f"from {first}")
    for split in report.splits:
        if any(name in side for side in split.sides):
            said = f"at {cut(split.pattern, 80)}"
            return Field(SYMBOLS["fault"], "no majority", TONES["fault"], said)
    if name in report.alone:
        return Field(SYMBOLS["unsure"], "none like it", TONES["unsure"])
    return Field(SYMBOLS["pass"], "as the others", TONES["pass"])


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


def _troubles(report: FleetReport) -> Iterator[Trouble]:
    for record in report.records:
        for attempt in record.attempts:
            if attempt.ending != "done":
                yield Trouble(
                    cut(record.job.label, 120),
                    cut(attempt.place, 80) if attempt.place != record.job.label else "",
                    attempt.ending,
                    cut(attempt.reason, 400),
                    seconds(attempt.seconds),
                )


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
