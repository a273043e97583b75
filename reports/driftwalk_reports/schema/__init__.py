"""The JSON Schemas of all kinds of results, shipped with the package; made.py makes them."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def load_schema(version: int = 1, kind: str = "result") -> dict[str, Any]:
    """The JSON Schema (2020-12) of one version of result.json, or of another kind's file."""
    text = files(__name__).joinpath(f"{kind}.v{version}.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
