"""A generation: what is shown of it, then how: on a terminal, as Markdown, as a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, RenderableType
from rich.text import Text

from driftwalk.adapter import BackendInfo
from driftwalk.mixture import Mixture
from driftwalk.names import is_of_cache
from driftwalk.tasks.generation.result import CachePath, Generation, Step

from . import console, marked
from .door import renderer
from .generation_matrix import SIDES, matrix
from .generation_tokens import Chosen, chosen, ids_of, marked_tokens
from .generation_words import advice, fed, headline, parting, shows_first, step_name, token
from .heatmap import LEVELS, Heatmap, binned, heatmap, parted, scale
from .layout import SYMBOLS, Cell, Head, Sign, model_name
from .marked import Markdown
from .next_steps import Step as Advice
from .numbers import NOTHING, count, cut, times
from .page import fill, inline_json
from .rows import FIRST, ROOT, Gap, Row, short, to_row
from .sentences import share_used

MOST_ROWS, MOST_MARKED = 40, 30
"""Points on a terminal, and in Markdown."""
MOST_NAME = 30
"""Characters of a point's name on a terminal."""
PALE = 10.0
"""Times the allowance that the darkest colour stands for at least: a pass looks pale."""
MOST_TOKENS = 200
"""Steps of the strip; the JSON file has all."""
AGREEMENTS = {
    "bit-exact": Sign("pass", "✓", "bit-exact"),
    "within noise": Sign("pass", "≈", "within noise"),
    "broken": Sign("drift", "✗", "broken"),
}
PATHS = ("side", "backend", "decoding against one run", "apart at most", "at")
POINTS = ("point", "rel L2", "max abs", "used", "most in", "all at once", "verdict")


@dataclass(frozen=True)
class PointRow:
    """One point over all steps."""

    row: Row
    most_in: str
    """The step that used most of the allowance."""
    at_once: str
    """The share used in one run on the whole sequence."""
    kept: bool
    """Whether it is what a cache holds."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        one = self.row
        tone = "pass" if one.ok else "drift"
        sign = Sign(tone, one.symbol, one.verdict, ", ".join(one.marks))
        return one.name, one.rel_l2, one.max_abs, one.used, self.most_in, self.at_once, sign


@dataclass(frozen=True, kw_only=True)
class GenerationView(Head[Generation]):
    advice: tuple[Advice, ...]
    tokens: tuple[Chosen, ...]
    ids: tuple[str, ...]
    """The whole sequence, a line for each row."""
    paths: tuple[tuple[Cell, ...], ...]
    points: tuple[PointRow, ...]
    matrix: tuple[tuple[Cell, ...], ...]
    """What should not matter, for each side."""


def look(report: Generation) -> GenerationView:
    """Everything a generation shows."""
    return GenerationView(
        document=report,
        tone=report.verdict,
        headline=headline(report),
        sentences=tuple(filter(None, (shows_first(report), _said(report)))),
        about=(
            ("model", model_name(report.model)),
            ("reference", _side(report.reference)),
            ("candidate", _side(report.candidate)),
            ("policy", report.policy.name),
            ("cache", cut(report.cache, 40)),
            *fed(report),
            ("decoded", _sequence(report)),
        ),
        notes=report.notes,
        advice=tuple(advice(report)),
        tokens=tuple(chosen(report, step) for step in report.steps[:MOST_TOKENS]),
        ids=tuple(ids_of(row, report.prompt) for row in report.ids),
        paths=tuple(_path(report, side, path) for side, path in report.cache_paths.items()),
        points=tuple(_points(report)),
        matrix=matrix(report),
    )


def _said(report: Generation) -> str:
    return parting(report) if report.steps else ""


def _side(info: BackendInfo) -> str:
    extra = ", ".join(filter(None, (info.device, str(Mixture.of(info)))))
    return f"{info.spec} ({extra})" if extra else info.spec


def _sequence(report: Generation) -> str:
    rows = len(report.steps[0].tokens) if report.steps else 0
    text = f"{count(report.prompt)} tokens of prompt and {count(len(report.steps) - 1)} steps"
    text += f", {count(rows)} rows" if rows > 1 else ""
    return f"{text} · {report.probe.sha256[:12]}"


def _path(report: Generation, side: str, path: CachePath) -> tuple[Cell, ...]:
    info = report.reference if side == "reference" else report.candidate
    most = NOTHING if path.agreement == "bit-exact" else share_used(path.used)
    return side, info.spec, AGREEMENTS[path.agreement], most, path.point or NOTHING


def _points(report: Generation) -> Iterator[PointRow]:
    at_once = {layer.point.name: to_row(layer) for layer in report.whole}
    marks, fields = ((FIRST, report.first_divergence), (ROOT, report.root_cause)), _fields(report)
    for layer in report.layers:
        name = layer.point.name
        mine = tuple(mark for mark, at in marks if at is not None and at.point == layer.point)
        there = at_once.get(name)
        seen = [(value, step) for step, value in enumerate(fields[name]) if value is not None]
        most = max(seen, key=lambda pair: pair[0], default=(0.0, 0))
        yield PointRow(
            to_row(layer, mine),
            step_name(report.steps[most[1]].step) if most[0] > 0 else NOTHING,
            there.used if there is not None else NOTHING,
            is_of_cache(name),
        )


def _some(points: Sequence[PointRow], most: int) -> Iterator[PointRow | Gap]:
    """About so many, as `short` chooses them."""
    by_index = {one.row.index: one for one in points}
    for row in short([one.row for one in points], most):
        yield row if isinstance(row, Gap) else by_index[row.index]


# The heatmaps.


def heatmaps(report: Generation) -> tuple[Heatmap, ...]:
    """Points by steps, the states and what the cache holds, on one scale of colours."""
    by_name = {layer.point.name: layer.ok for layer in report.layers}
    fields = _fields(report)
    drawn = [name for name in by_name if any(value is not None for value in fields[name])]
    if not drawn:
        return ()
    ends = scale(fields.values(), [PALE])
    names = [_fed(report, step.step) for step in report.steps]
    columns = [_column(report, step, fed) for step, fed in zip(report.steps, names, strict=True)]
    fields_of = parted([len(columns)])
    parts = (
        ("States", "of the token that each step is fed", False),
        ("What the cache holds", "at the end, below the token that it is of", True),
    )
    return tuple(
        replace(
            heatmap(
                title,
                hint,
                [(name, by_name[name]) for name in chosen],
                columns,
                names,
                fields_of,
                binned([fields[name] for name in chosen], fields_of),
                ends,
                times,
            ),
            along="step",
            blank="no token in this step",
        )
        for title, hint, kept in parts
        if (chosen := [name for name in drawn if is_of_cache(name) is kept])
    )


def _fields(report: Generation) -> dict[str, list[float | None]]:
    """By point: the share of the allowance used in each step."""
    found: dict[str, list[float | None]] = {
        layer.point.name: [None] * len(report.steps) for layer in report.layers
    }
    for at, step in enumerate(report.steps):
        for row in step.layers:
            if row.tolerance is not None and row.point.name in found:
                found[row.point.name][at] = row.tolerance.needed
    return found


def _fed(report: Generation, step: int) -> str:
    """What a step is fed: the prompt, or what the one before it chose, in the first row."""
    if step == 0 or step > len(report.steps):
        return "prompt"
    before = report.steps[step - 1]
    return token(before.text, before.token)


def _column(report: Generation, step: Step, fed: str) -> str:
    gives = token(step.text, step.token)
    return f"{step_name(step.step)}{f', fed {fed}' if step.step else ''}, then {gives}"


# On a terminal.


_LEVELS = ((0.1, "·"), (0.5, "-"), (1.0, "+"))
_KEY = "· at most 10 % of the allowance, - 50 %, + 100 %, ✗ beyond"


def _parts(view: GenerationView, screen: Console) -> Iterator[RenderableType]:
    report = view.document
    yield console.about(view.about)
    shown = [one for one in view.points if not one.kept or not one.row.ok]
    yield from _grid(report, shown, screen.width)
    if shown:
        yield console.table(POINTS, map(_line, _some(shown, MOST_ROWS)), "lrrrll ")
    left = len(view.points) - len(shown)
    if left:
        yield Text(f"{left} more points are what the caches hold, all within tolerance.")
    if view.paths:
        yield console.table(PATHS, view.paths, "l lrl")
    if view.matrix:
        rows = ((name, *map(_outcome, signs)) for name, *signs in view.matrix)
        yield console.table(("what should not matter", *SIDES), rows, " ll")
    if view.tokens:
        words = (f"{''.join(one.texts[:1])}{'' if not one.flips else '≠'}" for one in view.tokens)
        yield Text("Chosen, ≠ where the candidate chooses another: ").append(" ".join(words))
    yield from map(Text, view.sentences)
    yield from (Text(f"{one.text}: {one.command}") for one in view.advice[1:])
    yield from console.noted(view.notes)


def _outcome(sign: Cell) -> Cell:
    """With where it is broken; the page says it of all."""
    if isinstance(sign, Sign) and sign.detail and sign.tone != "pass":
        return Sign(sign.tone, sign.symbol, f"{sign.word}, {sign.detail}")
    return sign


def _line(point: PointRow | Gap) -> tuple[Cell | Text, ...]:
    if isinstance(point, Gap):
        return (Text(f"… {point.count} more", style="dim"),)
    name, *cells, sign = point.cells
    arrow = "".join(f"  <--- {mark}" for mark in point.row.marks)
    verdict = Text(f"{sign}{arrow}", "green" if point.row.ok else "red")
    return (cut(str(name), MOST_NAME), *cells, verdict)


def _grid(report: Generation, points: Sequence[PointRow], width: int) -> Iterator[Text]:
    """Points by steps, one character each; where there is no room, one for the worst of a few."""
    fields = _fields(report)
    chosen = [one.row for one in _some(points, MOST_ROWS) if isinstance(one, PointRow)]
    rows = [row for row in chosen if any(value is not None for value in fields[row.name])]
    if not rows or len(report.steps) < 2:
        return
    label = min(24, max(len(row.name) for row in rows))
    every = math.ceil(len(report.steps) / max(10, width - label - 2))
    several = f"; a sign stands for {every} steps" if every > 1 else ""
    yield Text(f"\nstep 0 to {len(report.steps) - 1}: {_KEY}{several}", "dim")
    for row in rows:
        line = Text(f"{console.padded(console.fit(row.name, label), label)}  ")
        values = fields[row.name]
        for start in range(0, len(values), every):
            sign = _level(values[start : start + every], row.ok)
            line.append(sign, "red" if sign == "✗" else "")
        yield line


def _level(values: Sequence[float | None], ok: bool) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return " "
    worst = next((value for value in known if math.isnan(value)), max(known))
    limit = next((sign for most, sign in _LEVELS if worst <= most), "✗")
    # Single tokens of a point that is fine as a whole may be beyond what the worst should be.
    return "+" if limit == "✗" and ok else limit


# As Markdown.


def _sections(view: GenerationView) -> Iterator[Markdown]:
    yield Markdown("### {} driftwalk generate: {}").format(view.symbol, marked.code(view.model))
    yield Markdown("**{}**").format(marked.escaped(view.headline, 1500))
    yield marked.facts(view.about[1:])
    yield from map(marked.paragraph, view.sentences)
    shown = [one for one in view.points if not one.kept or not one.row.ok]
    if shown:
        yield marked.table(POINTS, map(_marked, _some(shown, MOST_MARKED)), " rrr r")
    if view.paths:
        yield marked.table(PATHS, [tuple(map(str, row)) for row in view.paths], "   r")
    if view.matrix:
        yield marked.table(("what should not matter", *SIDES), map(_with_detail, view.matrix))
    yield from marked_tokens(view.tokens, view.ids)
    for one in view.advice[1:]:
        yield Markdown("{}: {}").format(one.text, marked.code(one.command))
    yield from marked.foot(view)


def _with_detail(row: tuple[Cell, ...]) -> tuple[object, ...]:
    change, *signs = row
    known = (one for one in signs if isinstance(one, Sign))
    return (change, *(f"{one} ({one.detail})" if one.detail else one for one in known))


def _marked(point: PointRow | Gap) -> tuple[object, ...]:
    if isinstance(point, Gap):
        return (f"… {point.count} more", *[""] * (len(POINTS) - 1))
    name, *cells, sign = point.cells
    marks = (Markdown(" ⟵ **{}**").format(mark) for mark in point.row.marks)
    return (marked.code(str(name)), *cells, Markdown("").join([str(sign), *marks]))


render = console.text_renderer(look, _parts)
render_markdown = marked.markdown_renderer(look, _sections)


@renderer
def render_page(report: Generation, others: Sequence[tuple[str, Generation]] = ()) -> str:
    """The page of one candidate; `others` are links to, and results of, candidates beside it."""
    maps = heatmaps(report)
    return fill(
        "generation.html.j2",
        look(report),
        heatmaps=maps,
        levels=LEVELS,
        data=inline_json([one.data for one in maps]),
        path_titles=PATHS,
        point_titles=POINTS,
        sides=SIDES,
        others=[
            (href, SYMBOLS[other.verdict], other.verdict, cut(other.candidate.spec, 60))
            for href, other in others
        ],
    )
