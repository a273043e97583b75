"""A result as a pull-request comment: GitHub-flavoured Markdown, small enough to be posted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from driftwalk.result import Report

from .door import renderer
from .format_costs import HEAD, LEGEND, STORED_HEAD, TITLE, CostView, few
from .marked import Markdown, code, escaped, facts, foot, paragraph, table, whole
from .probe_words import PERCENTILES, WORST, SetView
from .routing_words import RoutingView
from .rows import Gap, Row, labels, short
from .view import View, look
from .vocabulary import FROM_TRUTH, has_truth, legend

MOST_ROWS = 30
MOST_BYTES = 60_000
"""GitHub refuses comments of more than 65,536 characters."""

_CUT = Markdown("*Cut to fit a comment; report.html has everything.*")


@renderer
def render(report: Report) -> str:
    """The headline, then the first divergence, then the table; what does not fit is left out."""
    kept: list[Markdown] = []
    size = len(_CUT) + 2
    for section in _sections(look(report)):
        size += len(section.encode()) + 2
        if size > MOST_BYTES:
            kept.append(_CUT)
            break
        kept.append(section)
    return whole(kept)


def _sections(view: View) -> Iterator[Markdown]:
    yield Markdown("### {} driftwalk: {}").format(view.symbol, code(view.model))
    yield Markdown("**{}**").format(escaped(view.headline, 1500))
    yield facts(view.about[1:])
    if view.probes is not None:
        yield from _set(view.probes)
    for run in view.around:
        yield _details(run)
    yield from map(paragraph, view.said)
    if view.rows:
        yield _table(view.rows)
        words = legend(view.rows, (FROM_TRUTH,), view.format is not None)
        yield from (paragraph(text) for text in (words, view.coverage) if text)
    if view.format is not None:
        yield from _costs(view.format)
    if (routing := RoutingView.of(view.document)) is not None and routing.flipped:
        lines = [(code(row[0]), code(row[1]), *row[2:]) for row in routing.places[:MOST_ROWS]]
        yield table(routing.head, lines, "   rrrrrrr")
    if view.exercised and view.probes is None:
        yield Markdown(" ").join(paragraph(text) for text in view.exercised)
    differing = [pair for pair in view.sides if pair.differs and pair.key != "spec"]
    if differing:
        rows = [list(map(code, (pair.key, pair.reference, pair.candidate))) for pair in differing]
        yield table(("differs", "reference", "candidate"), rows)
    yield from foot(view)


def _set(found: SetView) -> Iterator[Markdown]:
    """A set of probes: how its numbers spread, and the worst of it."""
    yield paragraph(f"The set: {found.sentence}.")
    if found.numbers:
        yield table(PERCENTILES, found.numbers, " rrrr")
    yield table(WORST, [tuple(map(str, row)) for row in found.worst], "  r  rr")
    yield from map(paragraph, (*found.refused, *found.screened, *found.coverage))


def _details(run: Sequence[Row]) -> Markdown:
    titles = [Markdown("{} {}{}").format(row.symbol, code(row.name), _marks(row)) for row in run]
    known = [dict(row.facts) for row in run]
    rows = [(label, *(one.get(label, "") for one in known)) for label in labels(run)]
    return table(("", *titles), rows)


def _table(rows: Sequence[Row]) -> Markdown:
    lines: list[Sequence[str]] = []
    truth = has_truth(rows)
    for row in short(rows, MOST_ROWS):
        if isinstance(row, Gap):
            lines.append((f"… {row.count} more", "", "", "", "", ""))
            continue
        allowed = " (allowed)" if row.allowed else ""
        verdict = Markdown("{} {}{}{}").format(row.symbol, row.verdict, allowed, _marks(row))
        cells = (row.rel_l2, row.max_abs, row.from_truth if truth else row.allowance, row.used)
        lines.append((code(row.beside(row.name)), *cells, verdict))
    measure = FROM_TRUTH if truth else "allowance"
    titles = ("point", "rel L2", "max abs", measure, "used", "verdict")
    return table(titles, lines, " rrrr")


def _costs(found: CostView) -> Iterator[Markdown]:
    """What the format costs: in words, how weights are stored, and layer by layer."""
    yield Markdown("**{}**").format(TITLE)
    yield from map(paragraph, found.wrong)
    yield Markdown(" ").join(paragraph(text) for text in found.sentences)
    if found.stored:
        yield table(STORED_HEAD, found.stored, "   rrrr")
    if found.rows:
        lines = [
            (f"… {row.count} more", *("",) * (len(HEAD) - 1))
            if isinstance(row, Gap)
            else (code(row.name), *row.cells[1:])
            for row in few(found.rows, MOST_ROWS)
        ]
        yield table(HEAD, lines, " rrrrrr")
        yield paragraph(LEGEND)


def _marks(row: Row) -> Markdown:
    return Markdown("").join(Markdown(" ⟵ **{}**").format(mark) for mark in row.marks)
