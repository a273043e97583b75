"""A contrast of two inputs: in words, on a terminal, and as a page with a heatmap and a chart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from driftwalk.tasks.studies.results import AlignedRow, Contrast

from .. import console
from ..chart import Chart, Column, Plot, Series, draw
from ..door import renderer
from ..heatmap import LEVELS, Heatmap, binned, heatmap, parted, scale
from ..layout import Head, model_name
from ..numbers import NOTHING, cut, number, part_of
from ..page import fill, inline_json
from ..sentences import in_units

MOST_TOKENS = 48
"""Columns of a table of single numbers; the heatmap and the JSON file have all."""
MOST_COLUMNS = 12
"""Columns of tokens on a terminal."""


@dataclass(frozen=True)
class TokenHead:
    """One position of both inputs."""

    at: int
    first: str
    second: str
    """Both empty where the token's text is not known."""
    differs: bool

    @property
    def text(self) -> str:
        both = self.first if self.first == self.second else f"{self.first} | {self.second}"
        return both or str(self.at)

    def above(self, word: str) -> str:
        return f"≠ {word}" if self.differs else word


@dataclass(frozen=True)
class PairView:
    """One row of both inputs, and what stands above its columns."""

    first: str
    second: str
    tokens: tuple[TokenHead, ...]
    more: int
    """Tokens that found no place."""


@dataclass(frozen=True, kw_only=True)
class ContrastView(Head[Contrast]):
    pairs: tuple[PairView, ...]
    rows: tuple[tuple[str, ...], ...]
    """Each point, the distance there, and with a candidate its drift, and that as a share."""


def look(study: Contrast) -> ContrastView:
    """Everything a contrast shows."""
    candidate, causal = study.candidate, {True: "yes", False: "no", None: "not told"}
    return ContrastView(
        document=study,
        tone="study failed" if study.failed else "study",
        headline=headline(study),
        sentences=tuple(_sentences(study)),
        about=(
            ("model", model_name(study.model)),
            ("backend", study.backend.spec),
            ("candidate", candidate.spec if candidate else NOTHING),
            ("causal", f"{causal[study.causal]}: {study.causal_by}"),
        ),
        pairs=tuple(_pairs(study)),
        rows=tuple(
            (
                cut(layer.point.name, 60),
                number(layer.distance),
                *((number(layer.drift), part_of(layer.share)) if candidate else ()),
            )
            for layer in study.layers
        ),
        notes=study.notes,
    )


def headline(study: Contrast) -> str:
    """One sentence: the fault, or the drift in units of meaning, or the distance."""
    if study.failed:
        return f"FAILED: {study.failed}"
    pair = " and ".join(_names(study.rows))
    worst = study.largest_share
    if worst is not None and study.candidate is not None and worst.share is not None:
        return in_units(study.candidate.spec, worst.share, pair, worst.point.name)
    hidden = [layer for layer in study.layers if layer.point.name != "logits"] or study.layers
    far = max(hidden, key=lambda layer: layer.distance)
    where = cut(far.point.name, 60)
    return f"{pair} are farthest apart at {where}: {number(far.distance)} a token."


def _names(rows: tuple[AlignedRow, ...]) -> tuple[str, ...]:
    """What to call the two inputs."""
    if len(rows) == 1 and all(rows[0].texts):
        return tuple(f"“{cut(text, 60)}”" for text in rows[0].texts)
    return "the first input", "the second"


def _sentences(study: Contrast) -> Iterator[str]:
    starts = [row.start for row in study.rows if row.start is not None]
    if study.causal and not study.failed and starts:
        early = _before(study)
        if max(starts) == 0:
            yield "The first token differs already, so that no earlier state could show a leak."
        elif early == 0:
            yield (
                "Before the first token that differs nothing differs in any layer, bit by bit, as "
                "it must be in a causal model."
            )
        else:
            yield (
                "Before the first token that differs states differ by rounding alone (up to "
                f"{number(early)}): which tokens share an expert is not the same."
            )
    if study.causal is False:
        yield "The model is not causal: a token that differs changes the states of those before it."
    same = [cut(layer.point.name, 40) for layer in study.layers if layer.distance == 0]
    if same:
        yield f"The inputs are the same at {', '.join(same[:4])}."


def _before(study: Contrast) -> float:
    """The largest distance of a token before the first that differs."""
    found = [
        value
        for layer in study.layers
        for row, line in zip(study.rows, layer.l2, strict=False)
        if len(line) >= len(row.differs)
        for value in line[: row.start or 0]
    ]
    return max((value for value in found if value is not None), default=0.0)


def _pairs(study: Contrast) -> Iterator[PairView]:
    for number_, line in enumerate(study.layers[0].l2 if study.layers else ()):
        width = sum(value is not None for value in line)
        heads = tuple(_token(study, number_, at) for at in range(min(width, MOST_TOKENS)))
        first, second = study.rows[number_].texts if number_ < len(study.rows) else ("", "")
        yield PairView(cut(first, 500), cut(second, 500), heads, max(0, width - MOST_TOKENS))


def _token(study: Contrast, batch_row: int, at: int) -> TokenHead:
    row = study.rows[batch_row] if batch_row < len(study.rows) else None
    if row is None:
        return TokenHead(at, "", "", False)
    differs = at < len(row.differs) and row.differs[at]
    if at >= len(row.first) or at >= len(row.second):
        return TokenHead(at, "", "", differs)
    return TokenHead(at, cut(row.first[at], 24), cut(row.second[at], 24), differs)


def _parts(view: ContrastView, screen: Console) -> Iterator[RenderableType]:
    yield console.about(view.about)
    for number_, pair in enumerate(view.pairs):
        yield Text(f"\nL2 distance per token, row {number_}; ≠ marks tokens that differ", "bold")
        if pair.first:
            yield Text(f"  A  {pair.first}\n  B  {pair.second}")
        yield _fitting(view, number_, pair, screen)
    yield from map(Text, view.sentences)
    yield from console.noted(view.notes)


def _fitting(view: ContrastView, number_: int, pair: PairView, screen: Console) -> Table:
    """The table with the most tokens that fits; at least one."""
    wide = screen.options.update(max_width=10_000)
    for most in range(MOST_COLUMNS, 1, -1):
        table = _table(view, number_, pair, most)
        if Measurement.get(screen, wide, table).maximum <= screen.width:
            return table
    return _table(view, number_, pair, 1)


def _shown(pair: PairView, most: int) -> list[int]:
    """The columns that fit: one where nothing differs yet, those that differ, others."""
    start = next((head.at for head in pair.tokens if head.differs), 0)
    ordered = sorted(
        pair.tokens, key=lambda head: (head.at != start - 1, not head.differs, head.at)
    )
    return sorted(head.at for head in ordered[:most])


def _table(view: ContrastView, number_: int, pair: PairView, most: int) -> Table:
    shown = _shown(pair, most)
    titles = ["point", "per token", *(["drift", "of it"] if view.document.candidate else [])]
    sides = "r" * (len(titles) - 1 + len(shown))
    heads = [pair.tokens[at] for at in shown]
    titles += [head.above(console.fit(head.first or str(head.at), 8)) for head in heads]
    left = len(pair.tokens) + pair.more - len(shown)
    rows = []
    for row, layer in zip(view.rows, view.document.layers, strict=True):
        line = layer.l2[number_] if number_ < len(layer.l2) else ()
        values = [value for value in line[: len(pair.tokens)] if value is not None]
        rows.append([*row, *(number(values[at]) if at < len(values) else "" for at in shown)])
    return console.table([*titles, *([f"… {left} more"] if left > 0 else [])], rows, f" {sides}")


render = console.text_renderer(look, _parts)


@renderer
def render_page(study: Contrast) -> str:
    maps = list(_maps(study))
    return fill(
        "studies/contrast.html.j2",
        look(study),
        heatmaps=maps,
        levels=LEVELS,
        data=inline_json([one.data for one in maps]),
        chart=_chart(study),
    )


def _maps(study: Contrast) -> Iterator[Heatmap]:
    """Every row of the batch, one after the other."""
    widths = [len(line) for line in study.layers[0].l2] if study.layers else []
    whole = [layer for layer in study.layers if [len(line) for line in layer.l2] == widths]
    heads = [
        (row, _token(study, row, at)) for row, width in enumerate(widths) for at in range(width)
    ]
    if not heads:
        return
    columns = [
        f"row {row}, token {head.at}"
        + (f" {head.text}" if head.first or head.second else "")
        + (" (differs)" if head.differs else "")
        for row, head in heads
    ]
    parts = parted(widths)
    fields = binned([[value for line in layer.l2 for value in line] for layer in whole], parts)
    yield heatmap(
        "L2 distance",
        "between the two inputs, per point and token",
        [(layer.point.name, True) for layer in whole],
        columns,
        [head.above(head.first) for _, head in heads],
        parts,
        fields,
        scale(fields),
    )


def _chart(study: Contrast) -> Chart | None:
    layers = study.layers
    if not any(layer.distance > 0 for layer in layers):
        return None
    distance = [layer.distance for layer in layers]
    lines, plots = [Series("distance between the two inputs", "reference", distance)], []
    if study.candidate:
        label = f"drift of {cut(study.candidate.spec, 40)}"
        lines.append(Series(label, "candidate", [layer.drift for layer in layers]))
        share = Series("share", "gain", [layer.share for layer in layers])
        plots.append(Plot("drift as a share of the distance", [share], 120.0, written=part_of))
    return draw(
        "Distance between the two inputs along the model, on a log scale; the table has the same "
        "numbers.",
        [Column(layer.point.name) for layer in layers],
        [Plot("root mean square per token", lines, 170.0), *plots],
    )
