"""A fleet's report as one HTML file, like a drift report."""

from __future__ import annotations

from driftwalk.tasks.fleet.result import FleetReport

from ..door import renderer
from ..page import fill
from .view import look


@renderer
def render(report: FleetReport) -> str:
    """The whole page as text."""
    return fill("fleet.html.j2", view=look(report))
