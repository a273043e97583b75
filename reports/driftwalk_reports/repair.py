"""A repair: what is shown of it, then how: on a terminal, as Markdown, as a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from driftwalk.tasks.repair.result import Goal, Repair

from . import console, marked
from .format_costs import size
from .format_words import decibels
from .layout import Cell, Head
from .marked import Markdown
from .numbers import count, cut, number
from .page import page_renderer
from .repair_chart import Curve, curve

MOST_PARTS = 40
TITLES = ("part", "modules", "more in float32", "alone in float", "rank", "")
STEP_TITLES = ("step", "also in float", "more in all", "leaves")
LEFT = "left in float"


@dataclass(frozen=True, kw_only=True)
class RepairView(Head[Repair]):
    parts: tuple[tuple[Cell, ...], ...]
    """The most helpful first."""
    steps: tuple[tuple[Cell, ...], ...]
    lists: tuple[tuple[str, str], ...]
    curve: Curve | None
    titles: tuple[str, ...] = TITLES
    step_titles: tuple[str, ...] = STEP_TITLES


def look(result: Repair) -> RepairView:
    """Everything that is shown of a repair."""
    by_rank = sorted(result.parts, key=lambda part: part.rank)
    return RepairView(
        document=result,
        tone="pass" if result.ok else "drift",
        headline=_headline(result),
        about=(
            ("candidate", cut(result.candidate.spec, 200)),
            ("goal", str(result.goal)),
            ("measured", f"{count(result.runs)} runs, each with other parts in float"),
        ),
        parts=tuple(
            (
                cut(part.name, 80),
                count(len(part.modules)),
                size(part.bytes),
                measure(result.goal, part.alone),
                str(part.rank),
                LEFT if part.name in result.chosen else "",
            )
            for part in by_rank
        ),
        steps=tuple(
            (str(at), cut(step.part, 80), size(step.bytes), measure(result.goal, step.measure))
            for at, step in enumerate(result.steps, 1)
        ),
        lists=tuple((cut(tool, 60), cut(text, 4000)) for tool, text in result.lists.items()),
        curve=curve(result),
        notes=tuple(cut(note, 400) for note in result.notes),
    )


def measure(goal: Goal, value: float) -> str:
    """A cost in the unit of the goal."""
    return decibels(value) if goal.kind == "snr" else number(value)


def _headline(result: Repair) -> str:
    now, then = (measure(result.goal, value) for value in (result.before, result.after))
    if result.reached and not result.chosen:
        return f"nothing to repair: the format costs {now} as it is ({result.goal})"
    if not result.reached:
        return f"the goal is not reached, whatever is left in float: {now} becomes {then}"
    which = f"{count(len(result.chosen))} of {count(len(result.parts))} parts"
    share = f", {number(100 * result.more / max(1, result.bytes))} % of the rounded weights"
    made = {"pass": "; made anew, it passes", None: ""}.get(
        result.verdict, f"; made anew, it is {result.verdict}"
    )
    return f"{which} in float: {now} becomes {then}, for {size(result.more)} more{share}{made}"


def _parts(view: RepairView, _: Console) -> Iterator[RenderableType]:
    yield console.about(view.about)
    yield console.table(TITLES, view.parts[:MOST_PARTS], " rrrr ")
    if len(view.parts) > MOST_PARTS:
        yield Text(f"… {len(view.parts) - MOST_PARTS} more parts, which help less.", style="dim")
    if view.steps:
        yield console.table(STEP_TITLES, view.steps, "r rr")
    for tool, text in view.lists:
        yield Text(f"For {tool}:", style="bold")
        yield Text(text)
    yield from console.noted(view.notes)


def _sections(view: RepairView) -> Iterator[Markdown]:
    yield Markdown("### {} driftwalk repair").format(view.symbol)
    yield Markdown("**{}**").format(marked.escaped(view.headline, 1500))
    yield marked.facts(view.about)
    yield marked.table(TITLES, view.parts[:MOST_PARTS], " rrrr ")
    if view.steps:
        yield marked.table(STEP_TITLES, view.steps, "r rr")
    for tool, text in view.lists:
        yield Markdown("For {}: {}").format(tool, marked.code(text, 4000))
    yield from marked.foot(view)


render = console.text_renderer(look, _parts)
render_markdown = marked.markdown_renderer(look, _sections)
render_page = page_renderer("repair.html.j2", look)
