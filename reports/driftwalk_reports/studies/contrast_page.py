"""A contrast as one HTML file, like a drift report."""

from __future__ import annotations

from driftwalk.tasks.studies.contrast_result import Contrast

from ..chart import Chart, Column, Plot, Series, draw
from ..door import renderer
from ..heatmap import LEVELS, Heatmap
from ..numbers import cut, number, part_of
from ..page import fill, inline_json
from .contrast_view import column, look
from .fields import heatmap


@renderer
def render(study: Contrast) -> str:
    """The whole page as text."""
    maps = [found for found in (_map(study),) if found is not None]
    return fill(
        "studies/contrast.html.j2",
        view=look(study),
        heatmaps=maps,
        levels=LEVELS,
        data=inline_json([one.data for one in maps]),
        chart=_chart(study),
    )


def _map(study: Contrast) -> Heatmap | None:
    """Every row of the batch, one after the other."""
    layers = study.layers
    widths = [len(line) for line in layers[0].l2] if layers else []
    whole = [layer for layer in layers if [len(line) for line in layer.l2] == widths]
    places = [(row, at) for row, width in enumerate(widths) for at in range(width)]
    columns = [column(study, row, at) for row, at in places]
    names = [text.partition(" ")[2].partition(", token ")[2] for text in columns]
    return heatmap(
        "L2 distance",
        "between the two inputs, per point and token",
        [layer.point.name for layer in whole],
        [[value for line in layer.l2 for value in line] for layer in whole],
        columns,
        [_short(name) for name in names],
    )


def _short(name: str) -> str:
    """`5 France | Germany (differs)` above a column: `≠ France`."""
    differs = name.endswith(" (differs)")
    words = name.removesuffix(" (differs)").partition(" ")[2].partition(" | ")[0]
    return f"≠ {words}" if differs else words


def _chart(study: Contrast) -> Chart | None:
    if not any(layer.distance > 0 for layer in study.layers):
        return None
    spec = cut(study.candidate.spec, 40) if study.candidate else ""
    distance = tuple(layer.distance for layer in study.layers)
    lines = [Series("distance between the two inputs", "reference", distance)]
    plots = []
    if study.candidate:
        drift = tuple(layer.drift for layer in study.layers)
        share = tuple(layer.share for layer in study.layers)
        lines.append(Series(f"drift of {spec}", "candidate", drift))
        plots.append(
            Plot("drift as a share of the distance", (Series("share", "gain", share),), 120.0)
        )
    columns = [
        Column(layer.point.name, "", True, (), _tip(layer.point.name, *numbers))
        for layer in study.layers
        for numbers in [(layer.distance, layer.drift, layer.share)]
    ]
    return draw(
        "Distance between the two inputs along the model, on a log scale; the table has the same "
        "numbers.",
        columns,
        [Plot("root mean square per token", tuple(lines), 170.0), *plots],
    )


def _tip(name: str, distance: float, drift: float | None, share: float | None) -> tuple[str, ...]:
    told = [name, f"distance {number(distance)}"]
    if drift is not None:
        told += [f"drift {number(drift)}", f"share {part_of(share)}"]
    return tuple(told)
