"""A hardware check as one HTML file, like a drift report."""

from __future__ import annotations

from driftwalk.tasks.hardware.result import HardwareReport

from ..door import renderer
from ..page import fill
from .view import look


@renderer
def render(report: HardwareReport) -> str:
    """The whole page as text."""
    return fill("hardware.html.j2", view=look(report))
