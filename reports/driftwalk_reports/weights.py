"""Compared weights: what is shown of them, then how: on a terminal, and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from driftwalk.tasks.weights.result import WeightReport, WeightSide
from driftwalk.weight_change import WeightChange

from .console import about, noted, plain_console, printed, table
from .door import renderer
from .layout import Cell, Head, Sign
from .numbers import NOTHING, count, cut, ints, number
from .page import page_renderer
from .weight_words import what_became

MOST_ROWS = 60
TITLES = ("weight", "shape", "dtypes", "rel L2", "max abs", "what became of it")
SIDES = " llrr "
_TONES = {0: "pass", 1: "drift", 3: "unverified"}
_SIGNS = {"missing": ("drift", "✗"), "extra": ("drift", "✗"), "absent": ("unverified", "?")}

Row = tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class WeightsView(Head[WeightReport]):
    differing: tuple[Row, ...]
    equal: tuple[Row, ...]
    titles: tuple[str, ...] = TITLES
    sides: str = SIDES


def look(result: WeightReport) -> WeightsView:
    """Everything that is shown of two sets of weights."""
    shown = [one for one in result.changes if _stands_out(one)]
    return WeightsView(
        document=result,
        tone=_TONES[result.exit_code],
        headline=_headline(result),
        about=(("reference", _side(result.reference)), ("candidate", _side(result.candidate))),
        differing=tuple(map(_row, shown)),
        equal=tuple(_row(one) for one in result.changes if not _stands_out(one)),
        notes=result.notes,
    )


def _stands_out(change: WeightChange) -> bool:
    return not change.ok or bool(change.tied) or change.verdict == "absent"


def _headline(result: WeightReport) -> str:
    found, differing = result.summary, result.differing
    if result.exit_code == 3:
        return "no weight of one side was found on the other: nothing was compared"
    tail = f"; {count(found.absent)} more were not found in the graph" if found.absent else ""
    if not differing:
        cast = Counter(one.dtypes.candidate for one in result.changes if one.verdict == "cast")
        words = (f"{count(many)} in {cut(str(dtype), 20)}" for dtype, many in cast.items())
        beside = f" ({', '.join(words)})" if cast else ""
        return f"all {count(found.compared)} weights compared are the same numbers{beside}{tail}"
    first = differing[0]
    verb = "differs" if len(differing) == 1 else "differ"
    text = f"{count(len(differing))} of {count(len(result.changes) - found.absent)} weights {verb}"
    return f"{text}, the first: {_name(first)}: {what_became(first)}{tail}"


def _side(side: WeightSide) -> str:
    size = f"{count(side.weights)} weights, {side.entries:,} entries"
    return f"{cut(side.label, 80)} ({side.kind}, {size})"


def _name(change: WeightChange) -> str:
    """Both names, where they differ; `≈` says that the partner was found by content."""
    if not change.name or not change.other or change.name == change.other:
        return cut(change.name or change.other, 80)
    sign = "≈" if change.matched == "content" else "="
    return f"{cut(change.name, 80)} {sign} {cut(change.other, 80)}"


def _row(change: WeightChange) -> Row:
    shapes = [ints(shape) for shape in change.shapes if shape is not None]
    dtypes = [cut(one, 20) for one in (change.dtypes.reference, change.dtypes.candidate) if one]
    tone, symbol = _SIGNS.get(change.verdict, ("pass", "✓") if change.ok else ("drift", "✗"))
    by_content = ", matched by content" if change.matched == "content" else ""
    compared = change.compared and change.verdict != "shape"
    return (
        _name(change),
        " → ".join(dict.fromkeys(shapes)),
        " → ".join(dict.fromkeys(dtypes)),
        number(change.rel_l2) if compared else NOTHING,
        number(change.max_abs) if compared else NOTHING,
        Sign(tone, symbol, what_became(change) + by_content),
    )


def _parts(view: WeightsView, everything: bool) -> Iterator[RenderableType]:
    yield about(view.about)
    rows = [*view.differing, *(view.equal if everything else ())]
    if rows:
        yield _table(rows if everything else rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS and not everything:
        yield Text(f"… {len(rows) - MOST_ROWS} more; --all lists them.", style="dim")
    yield from noted(view.notes)


def _table(rows: Iterable[Row]) -> RenderableType:
    return table(TITLES, rows, SIDES)


@renderer
def render(
    document: WeightReport, width: int | None = None, color: bool = False, show_all: bool = False
) -> str:
    """For a terminal: the weights that differ, or all of them."""
    view, console = look(document), plain_console(width, color)
    return printed(console, _parts(view, show_all), view)


render_page = page_renderer("weights.html.j2", look)
