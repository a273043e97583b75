"""A geometry study as one HTML file: a picture per layer, one of which is picked."""

from __future__ import annotations

from driftwalk.tasks.studies.geometry_result import Agreement, Geometry

from ..chart import Chart, Column, Plot, Series, draw
from ..door import renderer
from ..numbers import number
from ..page import fill
from .geometry_view import HEIGHT, WIDTH, look


@renderer
def render(study: Geometry) -> str:
    """The whole page as text."""
    view = look(study)
    return fill(
        "studies/geometry.html.j2", view=view, chart=_chart(study), width=WIDTH, height=HEIGHT
    )


def _chart(study: Geometry) -> Chart | None:
    """How far both clouds are apart, along the model."""
    found = [(layer.point.name, layer.agreement) for layer in study.layers if layer.agreement]
    if not found:
        return None
    agreements = [one for _, one in found]
    series = (
        Series("neighbours lost", "other0", tuple(1 - a.knn_overlap for a in agreements)),
        Series("1 − CKA", "gain", tuple(1 - a.cka for a in agreements)),  # noqa: RUF001
        Series("Procrustes distance", "candidate", tuple(a.procrustes for a in agreements)),
        Series("displacement", "reference", tuple(a.displacement for a in agreements)),
    )
    columns = [Column(name, "", True, (), _tip(name, one)) for name, one in found]
    return draw(
        "How far both clouds are apart along the model, on a log scale; the table has the same "
        "numbers.",
        columns,
        [Plot("0: the same", series, 210.0)],
    )


def _tip(name: str, found: Agreement) -> tuple[str, ...]:
    return (
        name,
        f"neighbours lost {number(1 - found.knn_overlap)}",
        f"1 - CKA {number(1 - found.cka)}",
        f"Procrustes {number(found.procrustes)}",
        f"displacement {number(found.displacement)}",
    )
