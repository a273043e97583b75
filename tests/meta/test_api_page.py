"""docs/api.md is what the docstrings say, and has an example of every public name."""

from __future__ import annotations

import driftwalk
from meta import api_page


def test_every_public_name_has_an_example() -> None:
    assert sorted(api_page.EXAMPLES) == sorted(driftwalk.__all__)
    for name, example in api_page.EXAMPLES.items():
        assert name in example or name in (
            "Report",
            "LayerDrift",
            "Backend",
            "BackendInfo",
            "State",
        )


def test_the_page_is_up_to_date() -> None:
    stored = api_page.PAGE.read_text("utf-8")
    assert stored == api_page.page(), "run: python tests/meta/api_page.py"


def test_a_changed_docstring_would_be_seen() -> None:
    assert "Read a stored result" in api_page.section("load")
    assert "path: str | Path" in api_page.section("load")
