"""A fleet's report on a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from driftwalk.tasks.fleet.result import FleetReport

from ..console import plain_console, printed
from ..door import renderer
from ..marked import Markdown, code, escaped, foot, paragraph, table, whole
from ..numbers import NOTHING
from .view import Field, FleetView, Line, look

_STYLES = {"pass": "green", "drift": "red", "unverified": "yellow"}


@renderer
def render(report: FleetReport, width: int | None = None, color: bool = False) -> str:
    """The report as text; ANSI colours only where asked for."""
    view = look(report)
    last = Text(f"\n{view.symbol} {view.headline}", style=f"bold {_STYLES[view.tone]}")
    return printed(plain_console(width, color), _parts(view), last)


def _parts(view: FleetView) -> Iterator[RenderableType]:
    yield Text(f"ran on     {view.cluster}")
    yield Text(f"jobs       {view.counted}, in {view.took}")
    yield _table(view)
    for line in view.lines:
        if line.verdict.tone != "pass" and line.said:
            yield Text(f"{line.name}: {line.said}")
    yield from map(Text, view.contradicted)
    if view.troubles:
        yield Text("\nAttempts without a result", style="bold")
        for item in view.troubles:
            where = f" on {item.place}" if item.place else ""
            yield Text(f"{item.job}{where}: {item.ending} after {item.seconds}: {item.reason}")
    if view.groups:
        yield Text("\nNot the same everywhere", style="bold")
        for group in view.groups:
            for value, who, _ in group.values:
                yield Text(f"{group.key} = {value}: {who}")
    for note in view.notes:
        yield Text(f"Note: {note}")


def _table(view: FleetView) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in _titles(view):
        table.add_column(title, overflow="fold")
    for line in view.lines:
        fields = [_short(item) for item in line.fields]
        verdict = Text(f"{line.verdict.symbol} {line.verdict.word}", _STYLES[line.verdict.tone])
        table.add_row(Text(line.name), verdict, *fields, Text(line.seconds), *_more(view, line))
    return table


def _titles(view: FleetView) -> list[str]:
    if view.task == "hwcheck":
        return ["device", "verdict", *view.columns, "time"]
    return ["job", "verdict", "time", "where"]


def _more(view: FleetView, line: Line) -> list[Text]:
    return [] if view.task == "hwcheck" else [Text(line.where)]


def _short(item: Field | None) -> Text:
    """Only the symbol fits beside its neighbours; what is wrong is said below."""
    return Text(NOTHING) if item is None else Text(item.symbol, _STYLES[item.tone])


@renderer
def render_markdown(report: FleetReport) -> str:
    """The report as a pull-request comment."""
    return whole(_sections(look(report)))


def _sections(view: FleetView) -> Iterator[Markdown]:
    yield Markdown("### driftwalk fleet: {}").format(view.task)
    yield Markdown("**{}**").format(escaped(view.headline, 1500))
    yield Markdown("{}; {}, in {}").format(paragraph(view.cluster), view.counted, view.took)
    yield _markdown_table(view)
    for said in view.contradicted:
        yield Markdown("- {}").format(escaped(said, 600))
    if view.troubles:
        rows = [(code(t.job), code(t.place), t.ending, t.seconds, t.reason) for t in view.troubles]
        titles = ("job", "place", "ended", "after", "reason")
        yield Markdown("Attempts without a result\n\n{}").format(table(titles, rows, "   r"))
    if view.groups:
        values = [(g.key, value, who) for g in view.groups for value, who, _ in g.values]
        yield table(("not the same everywhere", "value", "where"), values)
    yield from foot(view)


def _markdown_table(view: FleetView) -> Markdown:
    rows = []
    for line in view.lines:
        fields = ["" if item is None else item.symbol for item in line.fields]
        where = [] if view.task == "hwcheck" else [code(line.where)]
        cells = [f"{line.verdict.symbol} {line.verdict.word}", *fields, line.seconds, *where]
        said = escaped(line.said, 200) if line.verdict.tone != "pass" else ""
        rows.append((code(line.name), *cells, said))
    return table((*_titles(view), "said"), rows)
