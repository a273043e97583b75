"""Visibility as one HTML file: a map of all states, and the cone of the one pointed at."""

from __future__ import annotations

from driftwalk.tasks.studies.visibility_result import Normalisation, Visibility

from ..door import renderer
from ..heatmap import LEVELS
from ..page import fill, inline_json
from .cones import grid, overview, page_data, places
from .visibility_view import look

NORMALISATIONS: tuple[tuple[Normalisation, str, str], ...] = (
    ("raw", "raw", "by how much a small change of one state has grown at the other"),
    ("layer", "per layer", "over the largest of the same layer: which tokens matter there"),
    ("norm", "per norm", "relative change of the one for a relative change of the other"),
)


@renderer
def render(study: Visibility) -> str:
    """The whole page as text."""
    cones = [
        (name, label, hint, grid(study.cone(normalisation=name)))
        for name, label, hint in NORMALISATIONS
    ]
    above, below = places(study)
    return fill(
        "studies/visibility.html.j2",
        scripts=("report.js", "studies/visibility.js"),
        view=look(study),
        cones=cones,
        overview=overview(study),
        above=above,
        below=below,
        row=len(study.points) - 1 - study.points.index(study.point),
        at=study.position,
        levels=LEVELS,
        data=inline_json(page_data(study)),
    )
