"""Texts in several scripts, and code, by what they are. All were written for driftwalk."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _stored() -> dict[str, Any]:
    text = files(__package__).joinpath("texts.json").read_text("utf-8")
    return dict(json.loads(text))


def texts() -> dict[str, str]:
    """Sentences and pieces of code, by what they are."""
    return dict(_stored()["texts"])


def long_text() -> str:
    """One that can be repeated up to the number of positions that are wanted."""
    return str(_stored()["long"])
