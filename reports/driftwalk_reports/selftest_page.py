"""A self-test as one HTML file, like a drift report."""

from __future__ import annotations

from driftwalk.selftest.result import SelfTest

from .page import fill
from .selftest_view import look


def render(result: SelfTest) -> str:
    """The whole page as text."""
    return fill("selftest.html.j2", view=look(result))
