"""Visibility on a terminal: the cone in shades, the strongest token of each layer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from driftwalk.dtypes import Array
from driftwalk.tasks.studies.visibility_result import Visibility

from ..console import plain_console, printed
from ..door import renderer
from ..fitting import fit
from .cones import DECADES
from .visibility_view import VisibilityView, look

_SHADES = "░▒▓█"


@renderer
def render(study: Visibility, width: int | None = None, color: bool = False) -> str:
    """The study as text; ANSI colours only where asked for."""
    view, console = look(study), plain_console(width, color)
    last = Text(f"\n{view.headline}", style="bold red" if view.failed else "bold")
    return printed(console, _parts(study, view, console.width), last)


def _parts(study: Visibility, view: VisibilityView, width: int) -> Iterator[RenderableType]:
    for label, value in view.about:
        yield Text(f"{label:<12} {value}")
    yield Text("\nInfluence, the last layer on top; ◆ is the state, · is exactly zero", "bold")
    yield from _shaded(study, view, width)
    yield _table(view)
    for text in (*view.sentences, *(f"Note: {note}" for note in view.notes)):
        yield Text(text)


def _shaded(study: Visibility, view: VisibilityView, width: int) -> Iterator[Text]:
    cone = study.cone()
    chosen = study.points.index(study.point)
    side = max(len(fit(name, 16)) for name in view.points)
    room = max(8, width - side - 2)
    first = max(0, min(study.position - room // 2, cone.shape[1] - room))
    high = _decade(cone)
    for row in reversed(range(len(cone))):
        line = "".join(_shade(float(v), high) for v in cone[row, first : first + room])
        if row == chosen:
            at = study.position - first
            line = f"{line[:at]}◆{line[at + 1 :]}"
        yield Text(f"{fit(view.points[row], 16):>{side}}  {line}")


def _decade(cone: Array) -> float:
    return math.log10(float(cone.max()))


def _shade(value: float, high: float) -> str:
    if value <= 0:
        return "·"
    part = 1 + (math.log10(value) - high) / DECADES
    return _SHADES[min(len(_SHADES) - 1, max(0, int(part * len(_SHADES))))]


def _table(view: VisibilityView) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("point", overflow="fold")
    table.add_column("", no_wrap=True)
    table.add_column("strongest at token", overflow="fold")
    for title in ("influence", "same token", "from others"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in view.rows:
        cells = (row.point, row.side, row.token, row.influence, row.own, row.share)
        table.add_row(*map(Text, cells))
    return table
