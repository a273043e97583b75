"""A result as a pull-request comment: GitHub-flavoured Markdown, small enough to be posted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from driftwalk.result import Report

from .numbers import clean
from .rows import Gap, Row, labels, short
from .view import View, look

MOST_ROWS = 30
MOST_BYTES = 60_000
"""GitHub refuses comments of more than 65,536 characters."""

_SPECIAL = re.compile(r"([\\`*_\[|~$#@])")
_PLAIN_CODE = re.compile(r"[^`|\\<>&]*")
_ADDRESS = re.compile(r"(?:https?|ftp):(?=//)|\bwww(?=\.)", re.IGNORECASE)
_OPENING = re.compile(r"^(\d*)([-+=.)])")
_CUT = "*Cut to fit a comment; report.html has everything.*"


def render(report: Report) -> str:
    """The headline, then the first divergence, then the table; what does not fit is left out."""
    kept: list[str] = []
    size = len(_CUT) + 2
    for section in _sections(look(report)):
        size += len(section.encode()) + 2
        if size > MOST_BYTES:
            kept.append(_CUT)
            break
        kept.append(section)
    return "\n\n".join(kept) + "\n"


def _sections(view: View) -> Iterator[str]:
    yield f"### {view.symbol} driftwalk: {code(view.model)}"
    yield f"**{escaped(view.headline, 1500)}**"
    about = [f"{label} {code(value)}" for label, value in view.about if label != "model"]
    yield " · ".join(about)
    for run in view.around:
        yield _details(run)
    said = (view.tolerance, view.decisions, view.meaning, *view.effects, *view.disturbed)
    for paragraph in said:
        if paragraph:
            yield _paragraph(paragraph)
    if view.rows:
        yield _table(view.rows)
        yield _paragraph(view.coverage)
    if view.exercised:
        yield " ".join(_paragraph(text) for text in view.exercised)
    differing = [pair for pair in view.sides if pair.differs and pair.key != "spec"]
    if differing:
        lines = [
            f"| {code(pair.key)} | {code(pair.reference)} | {code(pair.candidate)} |"
            for pair in differing
        ]
        yield "\n".join(["| differs | reference | candidate |", "|---|---|---|", *lines])
    for note in view.notes:
        yield f"> {_paragraph(note)}"
    if view.command:
        yield f"Reproduce: {code(view.command)}"
    yield f"<sub>{escaped(view.tool)}, {escaped(view.created)}</sub>"


def _details(run: Sequence[Row]) -> str:
    titles = [f"{row.symbol} {code(row.name)}{_marks(row)}" for row in run]
    lines = [f"| | {' | '.join(titles)} |", f"|---|{'---|' * len(run)}"]
    facts = [dict(row.facts) for row in run]
    for label in labels(run):
        cells = [escaped(one.get(label, "")) for one in facts]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| point | rel L2 | max abs | allowance | used | verdict |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for row in short(rows, MOST_ROWS):
        if isinstance(row, Gap):
            lines.append(f"| … {row.count} more | | | | | |")
            continue
        cells = [row.rel_l2, row.max_abs, row.allowance, row.used]
        verdict = f"{row.symbol} {row.verdict}{' (allowed)' if row.allowed else ''}{_marks(row)}"
        lines.append(
            f"| {code(row.name)} | {' | '.join(escaped(cell) for cell in cells)} | {verdict} |"
        )
    return "\n".join(lines)


def _marks(row: Row) -> str:
    return "".join(f" ⟵ **{mark}**" for mark in row.marks)


def escaped(text: str, most: int = 400) -> str:
    """Foreign text that starts no markup, mention, reference or link."""
    safe = clean(text, most).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    safe = _SPECIAL.sub(r"\\\1", safe)
    # GitHub looks for @name, #1 and addresses after Markdown is done: a backslash is no help.
    safe = safe.replace("\\@", "@\u2060").replace("\\#", "#\u2060")
    return _ADDRESS.sub("\\g<0>\u2060", safe)


def _paragraph(text: str) -> str:
    """Foreign text at the start of a line, where more than elsewhere is markup."""
    return _OPENING.sub(r"\1\\\2", escaped(text).strip())


def code(text: str, most: int = 200) -> str:
    """Foreign text in a code span; as HTML where backticks or pipes would end span or cell."""
    short_text = clean(text, most)
    if not short_text.strip():
        return ""
    if _PLAIN_CODE.fullmatch(short_text):
        return f"`{short_text}`"
    return f"<code>{escaped(short_text, most)}</code>"
