"""A benchmark on a terminal, and as Markdown."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftwalk.bench_result import BenchReport

from .bench_view import BenchRow, CaseView, look
from .markdown import code, escaped

_STYLES = {"faster": "green", "slower": "red", "same": "dim", "undecided": "yellow"}
_COLUMNS = ("backend", "median", "middle half", "tokens/s", "times the first", "")


def render(report: BenchReport, width: int | None = None, color: bool = False) -> str:
    """The benchmark as text; ANSI colours only where asked for."""
    view = look(report)
    console = Console(
        file=io.StringIO(),
        width=width or 100,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )
    with console.capture() as captured:
        console.print(Text(f"model      {view.model}"))
        console.print(Text(f"measured   {view.how}"))
        for case in view.cases:
            console.print(Text(f"\n{case.title}", style="bold"))
            console.print(_table(case))
            for line in _below(case):
                console.print(Text(line))
        for note in view.notes:
            console.print(Text(f"Note: {note}"))
        console.print(Text(f"\n{view.headline}", style="bold"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


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


def render_markdown(report: BenchReport) -> str:
    """The benchmark as a pull-request comment."""
    view = look(report)
    parts = [f"### driftwalk bench: {code(view.model)}", f"**{escaped(view.headline, 1500)}**"]
    parts.append(escaped(view.how))
    parts += [_markdown_case(case) for case in view.cases]
    parts += [f"> {escaped(note)}" for note in view.notes]
    if view.command:
        parts.append(f"Reproduce: {code(view.command)}")
    parts.append(f"<sub>{escaped(view.tool)}, {escaped(view.created)}</sub>")
    return "\n\n".join(parts) + "\n"


def _markdown_case(case: CaseView) -> str:
    lines = [
        escaped(case.title),
        "",
        "| backend | median | middle half | runs | tokens/s | times the first | |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in case.rows:
        ratio = f"{row.ratio} ({row.interval})" if row.ratio else ""
        cells = (row.median, row.spread, row.runs, row.tokens, ratio, f"{row.symbol} {row.word}")
        lines.append(f"| {code(row.backend)} | {' | '.join(cells)} |")
    return "\n".join(lines)
