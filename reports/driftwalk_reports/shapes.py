"""One model at several shapes of input, on a terminal: a line for each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from .console import STYLES, plain_console, table
from .door import renderer
from .index import Judged, runs_of, summary
from .layout import SYMBOLS, Cell

TITLES = ("shape", "candidate", "verdict", "first divergence", "root cause", "used")


@renderer
def render(reports: Sequence[Judged], width: int | None = None, color: bool = False) -> str:
    """The table of all runs, and their verdicts in a sentence."""
    console = plain_console(width, color)
    worst, headline = summary(reports)
    runs = runs_of([("", report) for report in reports])
    rows: list[tuple[Cell, ...]] = [
        (report.probe.shape, run.candidate, run.sign, *run.facts[1:4])
        for report, run in zip(reports, runs, strict=True)
    ]
    with console.capture() as captured:
        console.print(table(TITLES, rows, "l l  r"))
        text = f"{SYMBOLS[worst]} {headline}"
        console.print(Text(text, f"bold {STYLES.get(worst, '')}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"
