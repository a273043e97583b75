"""A geometry study in words and places: what its page and its text show, without markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from driftwalk.tasks.studies.geometry_result import Geometry, GeometryLayer, Spot

from ..numbers import NOTHING, cut, number
from ..view import model_name

WIDTH, HEIGHT, MARGIN = 900.0, 520.0, 24.0
MOST_SPOTS, MOST_PANELS, MOST_KINDS = 400, 48, 8
"""What a page can still show: sentences, layers, labels with a colour of their own."""

Fact = tuple[str, str]


@dataclass(frozen=True)
class Dot:
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
    dots: tuple[Dot, ...]
    numbers: tuple[Fact, ...]


@dataclass(frozen=True)
class LayerRow:
    point: str
    overlap: str
    cka: str
    procrustes: str
    displacement: str
    before: str
    after: str


@dataclass(frozen=True)
class GeometryView:
    headline: str
    failed: bool
    sentences: tuple[str, ...]
    about: tuple[Fact, ...]
    kinds: tuple[tuple[int, str], ...]
    panels: tuple[Panel, ...]
    rows: tuple[LayerRow, ...]
    with_candidate: bool
    k: int
    notes: tuple[str, ...]
    command: str
    created: str
    tool: str
    environment: tuple[Fact, ...]


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
    return GeometryView(
        headline=headline(study),
        failed=bool(study.failed),
        sentences=tuple(_sentences(study)),
        about=_about(study),
        kinds=tuple(shown_kinds),
        panels=tuple(_panel(study, study.layers[i], kinds, shown) for i in chosen),
        rows=tuple(_row(layer) for layer in study.layers),
        with_candidate=study.candidate is not None,
        k=study.k,
        notes=(*study.notes, *left_out),
        command=study.command,
        created=study.created,
        tool=f"{study.tool.name} {study.tool.version}",
        environment=tuple(study.environment.items()),
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
    told = [layer for layer in study.layers if layer.separation is not None]
    if not told:
        return f"{len(study.texts)} sentences with one label, at {len(study.layers)} points."
    best = max(told, key=lambda layer: layer.separation or 0.0)
    return (
        f"The labels are farthest apart at {cut(best.point.name, 60)}: "
        f"separation {number(best.separation, 2)}."
    )


def percent(share: float) -> str:
    """Rounded down: what is not all of it never reads 100 %."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:g} %"


def near_one(value: float) -> str:
    """Near one, the distance from one is what can be read."""
    return "1" if value == 1 else f"1 − {number(1 - value, 2)}" if value > 0.99 else number(value)  # noqa: RUF001


def _sentences(study: Geometry) -> list[str]:
    ends = [layer for layer in study.layers if layer.candidate_separation is not None]
    if not ends:
        return []
    moved = max(ends, key=lambda x: abs((x.candidate_separation or 0) - (x.separation or 0)))
    before, after = number(moved.separation, 3), number(moved.candidate_separation, 3)
    if before == after:
        return ["Separation of the labels stays the same to three digits at every layer."]
    return [
        f"Separation of the labels changes most at {cut(moved.point.name, 60)}: "
        f"{before} before, {after} after."
    ]


def _about(study: Geometry) -> tuple[Fact, ...]:
    return (
        ("model", model_name(study.model)),
        ("backend", study.backend.spec),
        ("candidate", study.candidate.spec if study.candidate else NOTHING),
        ("pooling", study.pooling),
        (
            "sentences",
            f"{len(study.texts)} of {cut(study.dataset, 60)}, {len(set(study.labels))} labels",
        ),
    )


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

    dots = []
    for i in shown:
        x, y = place(layer.reference[i])
        to = place(layer.candidate[i]) if layer.candidate else None
        label = f"{cut(study.labels[i], 40)}: {cut(study.texts[i], 100)}"
        dots.append(Dot(kinds[study.labels[i]], x, y, to, label))
    return Panel(cut(layer.point.name, 40), _axes(study, layer), tuple(dots), _numbers(layer))


def _axes(study: Geometry, layer: GeometryLayer) -> tuple[str, str]:
    if layer.explained is None:
        name = study.projection.upper()
        return f"{name} 1", f"{name} 2"
    first, second = (f"{100 * part:.0f} % of the variance" for part in layer.explained)
    return f"PC 1: {first}", f"PC 2: {second}"


def _numbers(layer: GeometryLayer) -> tuple[Fact, ...]:
    row = _row(layer)
    told = [("separation", row.before)]
    if layer.broken:
        return (*told, ("candidate", f"NaN or Inf in {layer.broken} sentences"))
    if layer.agreement is None:
        return tuple(told)
    return (
        ("neighbours kept", row.overlap),
        ("CKA", row.cka),
        ("Procrustes", row.procrustes),
        ("moved by", row.displacement),
        ("separation before", row.before),
        ("after", row.after),
    )


def _row(layer: GeometryLayer) -> LayerRow:
    found = layer.agreement
    return LayerRow(
        cut(layer.point.name, 60),
        percent(found.knn_overlap) if found else NOTHING,
        near_one(found.cka) if found else NOTHING,
        number(found.procrustes) if found else NOTHING,
        number(found.displacement) if found else NOTHING,
        number(layer.separation),
        "NaN or Inf" if layer.broken else number(layer.candidate_separation),
    )
