"""A benchmark on a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from driftwalk.tasks.bench.result import BenchReport

from .bench_view import BenchRow, BenchView, CaseView, look
from .console import plain_console, printed
from .door import renderer
from .marked import Markdown, code, escaped, foot, paragraph, table, whole

_STYLES = {"faster": "green", "slower": "red", "same": "dim", "undecided": "yellow"}
_COLUMNS = ("backend", "median", "middle half", "tokens/s", "times the first", "")


@renderer
def render(report: BenchReport, width: int | None = None, color: bool = False) -> str:
    """The benchmark as text; ANSI colours only where asked for."""
    view = look(report)
    last = Text(f"\n{view.headline}", style="bold")
    return printed(plain_console(width, color), _parts(view), last)


def _parts(view: BenchView) -> Iterator[RenderableType]:
    yield Text(f"model      {view.model}")
    yield Text(f"measured   {view.how}")
    for case in view.cases:
        yield Text(f"\n{case.title}", style="bold")
        yield _table(case)
        yield from map(Text, _below(case))
    for note in view.notes:
        yield Text(f"Note: {note}")


def _table(case: CaseView) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(_COLUMNS[0], overflow="fold")
    for title in _COLUMNS[1:]:
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for row in case.rows:
        word = Text(f"{row.symbol} {row.word}".strip(), style=_STYLES.get(row.word, ""))
        table.add_row(
            Text(row.backend),
            Text(row.median),
            Text(row.spread),
            Text(row.tokens),
            _ratio(row),
            word,
        )
    return table


def _ratio(row: BenchRow) -> Text:
    return Text(f"{row.ratio} ({row.interval})" if row.ratio else "")


def _below(case: CaseView) -> list[str]:
    lines = []
    for row in case.rows:
        told = [("cold start", row.cold), ("copies", row.copies), ("peak memory", row.memory)]
        said = "; ".join(f"{label}: {value}" for label, value in told if value)
        tails = f"{row.runs} runs" + (f", {row.tails}" if row.tails else "")
        lines.append(f"{row.backend}: {tails}" + (f"; {said}" if said else ""))
        lines += [f"  noise: {noise}" for noise in row.noise]
    return lines


@renderer
def render_markdown(report: BenchReport) -> str:
    """The benchmark as a pull-request comment."""
    view = look(report)
    return whole(
        [
            Markdown("### driftwalk bench: {}").format(code(view.model)),
            Markdown("**{}**").format(escaped(view.headline, 1500)),
            paragraph(view.how),
            *map(_markdown_case, view.cases),
            *foot(view),
        ]
    )


def _markdown_case(case: CaseView) -> Markdown:
    titles = ("backend", "median", "middle half", "runs", "tokens/s", "times the first", "")
    rows = [
        (
            *(code(row.backend), row.median, row.spread, row.runs, row.tokens),
            *(f"{row.ratio} ({row.interval})" if row.ratio else "", f"{row.symbol} {row.word}"),
        )
        for row in case.rows
    ]
    return Markdown("{}\n\n{}").format(paragraph(case.title), table(titles, rows, " rrrrr"))
