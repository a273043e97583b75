"""A reduction: what is shown of it, then how: on a terminal, as an issue, as a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from driftwalk.tasks.reduce.result import Extent, Reduction

from . import console, marked
from .layout import Cell, Head
from .marked import Markdown
from .numbers import count, cut, number
from .page import page_renderer

MOST_STEPS, MOST_LINES = 60, 400
STEP_TITLES = ("step", "nodes", "longest axis", "values", "ratio")
EXAMPLE_TITLES = ("index", "expected (float64)", "found")
WHOSE = {
    "runtime": "the runtime: it computes something else than its graph says",
    "graph": "the graph: it is another function than the model",
    "module": "the module, as the candidate runs it",
}


@dataclass(frozen=True, kw_only=True)
class ReductionView(Head[Reduction]):
    steps: tuple[tuple[Cell, ...], ...]
    examples: tuple[tuple[Cell, ...], ...]
    versions: tuple[tuple[str, str], ...]
    operations: str
    script: tuple[str, ...]
    printed: tuple[str, ...]
    titles: tuple[str, ...] = STEP_TITLES
    example_titles: tuple[str, ...] = EXAMPLE_TITLES


def look(result: Reduction) -> ReductionView:
    """Everything that is shown of a reduction."""
    rows = [("the block as it is", result.before), *((s.text, s.left) for s in result.steps)]
    shown = [_row(text, extent) for text, extent in rows if extent is not None]
    if len(shown) > MOST_STEPS:
        half = MOST_STEPS // 2
        left_out = f"… {count(len(shown) - MOST_STEPS)} more steps …"
        shown = [*shown[:half], (left_out, "", "", "", ""), *shown[-half:]]
    return ReductionView(
        document=result,
        tone="drift" if result.found else "pass",
        headline=_headline(result),
        about=tuple(_about(result)),
        steps=tuple(shown),
        examples=tuple(
            (str(list(one.index)), _exact(one.expected), _exact(one.found))
            for one in result.examples
        ),
        versions=tuple((cut(n, 60), cut(v, 60)) for n, v in result.candidate.versions.items()),
        operations=cut(", ".join(result.operations), 1000),
        script=result.script[:MOST_LINES],
        printed=result.printed[:MOST_LINES],
        notes=tuple(cut(note, 400) for note in result.notes),
    )


def _row(text: str, extent: Extent) -> tuple[Cell, ...]:
    sizes = (extent.nodes, extent.longest, extent.values)
    return (cut(text, 120), *map(count, sizes), number(extent.ratio))


def _exact(value: float) -> str:
    return repr(value) if math.isfinite(value) else str(value)


def _headline(result: Reduction) -> str:
    before, after = result.before, result.after
    if before is None or after is None:
        return "nothing to reduce: the candidate is within tolerance"
    what = "node" if after.nodes == 1 else "nodes"
    return (
        f"{result.point}: {count(after.nodes)} {what} ({cut(', '.join(result.operations), 200)}) "
        f"with at most {count(after.longest)} values an axis, {number(after.ratio)} times as far "
        "off as honest arithmetic"
    )


def _about(result: Reduction) -> Iterator[tuple[str, str]]:
    yield "candidate", cut(result.candidate.spec, 200)
    before, after = result.before, result.after
    if before is None or after is None or result.fault is None:
        return
    yield "whose fault", WHOSE[result.fault]
    off = "an error that is not finite" if math.isinf(result.error) else number(result.error)
    yield "error", f"{off} (L2); an honest run: {number(result.honest)}"
    yield "ratio", f"{number(after.ratio)}, before {number(before.ratio)}"
    if result.fault != "module":
        yield "with nothing optimised", f"{number(result.as_written)} times what is honest"
    yield "share", f"{number(100 * result.share)} % of the drift at {cut(result.point, 80)}"
    yield "size", f"{count(after.nodes)} of {count(before.nodes)} nodes"
    yield "weights", _weights(result)
    ended = "" if result.finished else "; stopped before its end, it may become smaller"
    yield "tried", f"{count(result.runs)} times{ended}"
    if result.files:
        yield "files", ", ".join(result.files)


def _weights(result: Reduction) -> str:
    if not result.own:
        return "none of the model's own"
    return f"of the model itself, {count(len(result.own))}: {cut(', '.join(result.own), 300)}"


def _parts(view: ReductionView, _: Console) -> Iterator[RenderableType]:
    yield console.about(view.about)
    if view.steps:
        yield console.table(STEP_TITLES, view.steps, " rrrr")
    if view.examples:
        yield console.table(EXAMPLE_TITLES, view.examples, " rr")
    if view.printed:
        yield Text("repro.py printed:", style="bold")
        yield Text("\n".join(view.printed))
    yield from console.noted(view.notes)


def _sections(view: ReductionView) -> Iterator[Markdown]:
    """An issue: what happens, what should, with which versions, and how to see it."""
    result = view.document
    yield Markdown("### {}").format(marked.escaped(view.headline, 1500))
    yield marked.facts(view.about)
    if not result.found:
        yield from marked.foot(view)
        return
    yield Markdown("**Found and expected** (expected: computed in float64)")
    yield marked.table(EXAMPLE_TITLES, view.examples, " rr")
    if view.script:
        yield Markdown("**To reproduce**: `python repro.py`, beside {}").format(
            marked.escaped(", ".join(f for f in result.files if f != "repro.py") or "nothing", 200)
        )
        yield marked.block(view.script, "python")
        yield Markdown("It prints")
        yield marked.block(view.printed, "text")
    yield Markdown("**Versions**")
    yield marked.facts(view.versions)
    yield from marked.foot(view)


render = console.text_renderer(look, _parts)
render_markdown = marked.markdown_renderer(look, _sections)
render_page = page_renderer("reduction.html.j2", look)
