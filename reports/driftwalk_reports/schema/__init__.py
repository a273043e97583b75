"""The JSON Schemas of result.json, shipped with the package."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def load_schema(version: int = 1) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one version of result.json."""
    text = files(__name__).joinpath(f"result.v{version}.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
