"""A self-test as one HTML file, like a drift report."""

from __future__ import annotations

from driftwalk.selftest.result import SelfTest

from .door import renderer
from .page import fill
from .selftest_view import look


@renderer
def render(result: SelfTest) -> str:
    """The whole page as text; the sentence about what failed stands on top."""
    view = look(result)
    said = sorted(view.headlines, key=lambda line: line.startswith("✗"))[::-1]
    return fill("selftest.html.j2", view=view, top=said[0], rest=said[1:])
