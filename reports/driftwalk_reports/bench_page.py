"""A benchmark as one HTML file, like a drift report."""

from __future__ import annotations

from driftwalk.tasks.bench.result import BenchReport

from .bench_view import look
from .door import renderer
from .page import fill


@renderer
def render(report: BenchReport) -> str:
    """The whole page as text."""
    return fill("bench.html.j2", view=look(report))
