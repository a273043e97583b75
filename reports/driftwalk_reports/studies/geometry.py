"""A geometry study, in words and places: a picture per layer, one of which is picked; a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.text import Text

from driftwalk.tasks.studies.results import Geometry, GeometryLayer, Spot

from .. import console
from ..chart import Chart, Column, Plot, Series, draw
from ..door import renderer
from ..layout import Fact, Head, model_name
from ..numbers import NOTHING, cut, number
from ..page import fill

WIDTH, HEIGHT, MARGIN = 900.0, 520.0, 24.0
MOST_SPOTS, MOST_PANELS, MOST_KINDS = 400, 48, 8
"""What a page can still show: sentences, layers, labels with a colour of their own."""


@dataclass(frozen=True)
class Spotted:
    """One sentence in one panel."""

    kind: int
    x: float
    y: float
    to: Spot | None
    """Where the candidate has it."""
    label: str


@dataclass(frozen=True)
class Panel:
    point: str
    axes: tuple[str, str]
    dots: tuple[Spotted, ...]
    numbers: tuple[Fact, ...]


@dataclass(frozen=True, kw_only=True)
class GeometryView(Head[Geometry]):
    kinds: tuple[tuple[int, str], ...]
    panels: tuple[Panel, ...]
    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Each point, and its numbers in the order of the titles."""


def look(study: Geometry) -> GeometryView:
    """Everything a geometry study shows."""
    names = list(dict.fromkeys(study.labels))
    kinds = {name: min(i, MOST_KINDS - 1) for i, name in enumerate(names)}
    chosen = _evenly(len(study.layers), MOST_PANELS)
    shown = _evenly(len(study.texts), MOST_SPOTS)
    left_out = [
        f"The page draws {most} of {of} {what}, evenly chosen; the numbers are those of all."
        for most, of, what in (
            (len(shown), len(study.texts), "sentences"),
            (len(chosen), len(study.layers), "layers"),
        )
        if most < of
    ]
    shown_kinds = [(kinds[name], cut(name, 40)) for name in names[: MOST_KINDS - 1]]
    if len(names) >= MOST_KINDS:
        rest = cut(names[-1], 40) if len(names) == MOST_KINDS else "all other labels"
        shown_kinds.append((MOST_KINDS - 1, rest))
    candidate = study.candidate
    both = (f"{study.k} neighbours kept", "CKA", "Procrustes", "moved by", "separation", "after")
    labels = f"{len(set(study.labels))} labels"
    return GeometryView(
        document=study,
        tone="study failed" if study.failed else "study",
        headline=headline(study),
        sentences=tuple(_sentences(study)),
        about=(
            ("model", model_name(study.model)),
            ("backend", study.backend.spec),
            ("candidate", candidate.spec if candidate else NOTHING),
            ("pooling", study.pooling),
            ("sentences", f"{len(study.texts)} of {cut(study.dataset, 60)}, {labels}"),
        ),
        kinds=tuple(shown_kinds),
        panels=tuple(_panel(study, study.layers[i], kinds, shown) for i in chosen),
        titles=("point", *(both if candidate else both[4:5])),
        rows=tuple(
            (cut(layer.point.name, 60), *(_cells(layer) if candidate else _cells(layer)[4:5]))
            for layer in study.layers
        ),
        notes=(*study.notes, *left_out),
    )


def headline(study: Geometry) -> str:
    """One sentence: do neighbours stay neighbours, or where do the labels part?"""
    if study.failed:
        return f"FAILED: {study.failed}"
    worst = study.least_overlap
    if worst is not None and worst.agreement is not None and study.candidate is not None:
        found, where = worst.agreement, cut(worst.point.name, 60)
        cka = min(x.agreement.cka for x in study.layers if x.agreement is not None)
        part = f"at least {percent(found.knn_overlap)}" if found.knn_overlap < 1 else "all"
        at = f"(at {where})" if found.knn_overlap < 1 else "at every layer"
        return (
            f"On {cut(study.candidate.spec, 60)} sentences keep {part} of their {study.k} "
            f"nearest neighbours {at}; CKA is at least {near_one(cka)}."
        )
    parted = [layer for layer in study.layers if layer.separation is not None]
    if not parted:
        return f"{len(study.texts)} sentences with one label, at {len(study.layers)} points."
    best = max(parted, key=lambda layer: layer.separation or 0.0)
    where = cut(best.point.name, 60)
    return f"The labels are farthest apart at {where}: separation {number(best.separation, 2)}."


def percent(share: float) -> str:
    """Rounded down: what is not all of it never reads 100 %."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:g} %"


def near_one(value: float) -> str:
    """Near one, the distance from one is what can be read."""
    return "1" if value == 1 else f"1 − {number(1 - value, 2)}" if value > 0.99 else number(value)  # noqa: RUF001


def _sentences(study: Geometry) -> Iterator[str]:
    ends = [layer for layer in study.layers if layer.candidate_separation is not None]
    if not ends:
        return
    moved = max(ends, key=lambda x: abs((x.candidate_separation or 0) - (x.separation or 0)))
    before, after = number(moved.separation, 3), number(moved.candidate_separation, 3)
    if before == after:
        yield "Separation of the labels stays the same to three digits at every layer."
    else:
        where = cut(moved.point.name, 60)
        yield f"Separation of the labels changes most at {where}: {before} before, {after} after."


def _evenly(count: int, most: int) -> list[int]:
    return list(range(count)) if count <= most else [i * count // most for i in range(most)]


def _panel(
    study: Geometry, layer: GeometryLayer, kinds: dict[str, int], shown: Sequence[int]
) -> Panel:
    everything = [*layer.reference, *(layer.candidate or ())]
    low_x, low_y = (min(spot[axis] for spot in everything) for axis in (0, 1))
    high_x, high_y = (max(spot[axis] for spot in everything) for axis in (0, 1))
    wide, tall = (high_x - low_x) or 1.0, (high_y - low_y) or 1.0
    # One scale for both axes: distances in the picture are distances.
    scale = min((WIDTH - 2 * MARGIN) / wide, (HEIGHT - 2 * MARGIN) / tall)

    def place(spot: Spot) -> Spot:
        x = WIDTH / 2 + (spot[0] - (low_x + high_x) / 2) * scale
        y = HEIGHT / 2 - (spot[1] - (low_y + high_y) / 2) * scale
        return round(x, 1), round(y, 1)

    dots = tuple(
        Spotted(
            kinds[study.labels[i]],
            *place(layer.reference[i]),
            place(layer.candidate[i]) if layer.candidate else None,
            f"{cut(study.labels[i], 40)}: {cut(study.texts[i], 100)}",
        )
        for i in shown
    )
    return Panel(cut(layer.point.name, 40), _axes(study, layer), dots, _numbers(layer))


def _axes(study: Geometry, layer: GeometryLayer) -> tuple[str, str]:
    if layer.explained is None:
        name = study.projection.upper()
        return f"{name} 1", f"{name} 2"
    first, second = (f"{100 * part:.0f} % of the variance" for part in layer.explained)
    return f"PC 1: {first}", f"PC 2: {second}"


def _numbers(layer: GeometryLayer) -> tuple[Fact, ...]:
    """What stands above a picture."""
    if layer.broken:
        bad = f"NaN or Inf in {layer.broken} sentences"
        return ("separation", number(layer.separation)), ("candidate", bad)
    if layer.agreement is None:
        return (("separation", number(layer.separation)),)
    labels = ("neighbours kept", "CKA", "Procrustes", "moved by", "separation before", "after")
    return tuple(zip(labels, _cells(layer), strict=True))


def _cells(layer: GeometryLayer) -> tuple[str, ...]:
    found = layer.agreement
    return (
        percent(found.knn_overlap) if found else NOTHING,
        near_one(found.cka) if found else NOTHING,
        number(found.procrustes) if found else NOTHING,
        number(found.displacement) if found else NOTHING,
        number(layer.separation),
        "NaN or Inf" if layer.broken else number(layer.candidate_separation),
    )


def _parts(view: GeometryView, _: Console) -> Iterator[RenderableType]:
    yield console.about(view.about)
    yield console.table(view.titles, view.rows, " rrrrrr"[: len(view.titles)])
    yield from map(Text, view.sentences)
    yield from console.noted(view.notes)


render = console.text_renderer(look, _parts)


@renderer
def render_page(study: Geometry) -> str:
    view, chart = look(study), _chart(study)
    return fill("studies/geometry.html.j2", view, chart=chart, width=WIDTH, height=HEIGHT)


def _chart(study: Geometry) -> Chart | None:
    """How far both clouds are apart, along the model."""
    found = [(layer.point.name, layer.agreement) for layer in study.layers if layer.agreement]
    if not found:
        return None
    series = (
        Series("neighbours lost", "other0", [1 - one.knn_overlap for _, one in found]),
        Series("1 − CKA", "gain", [1 - one.cka for _, one in found]),  # noqa: RUF001
        Series("Procrustes distance", "candidate", [one.procrustes for _, one in found]),
        Series("displacement", "reference", [one.displacement for _, one in found]),
    )
    return draw(
        "How far both clouds are apart along the model, on a log scale; the table has the same "
        "numbers.",
        [Column(name) for name, _ in found],
        [Plot("0: the same", series, 210.0)],
    )
