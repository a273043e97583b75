"""Stored results of every schema version: they load, say the same when stored again, and render.

Made by the tool: pass.json by `verify demo:decoder -c emulated:fp16`, drift.json by
`demo --fault 3`, nan.json by `verify cli.factories:too_large_for_fp16 -c torch:cpu:fp16`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driftwalk.result import load, to_json
from driftwalk_reports import terminal
from driftwalk_reports.schema import load_schema

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")

RESULTS = sorted((Path(__file__).resolve().parents[2] / "data" / "results").glob("*.json"))


def lost(before: Any, after: Any, path: str = "$") -> list[str]:
    """What the first document says and the second does not; it may say more."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = [f"{path}.{key} is gone" for key in before.keys() - after.keys()]
        both = before.keys() & after.keys()
        return found + [x for key in both for x in lost(before[key], after[key], f"{path}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [x for i, pair in pairs for x in lost(*pair, f"{path}[{i}]")]
    return [] if before == after else [f"{path}: {before!r} became {after!r}"]


def test_there_are_some() -> None:
    assert [path.stem for path in RESULTS] == ["drift", "nan", "pass"]
    assert all(path.stat().st_size < 150_000 for path in RESULTS)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_nothing_is_lost(path: Path) -> None:
    stored = json.loads(path.read_text("utf-8"))
    again = json.loads(to_json(load(path)))
    assert lost(stored, again) == []
    jsonschema.Draft202012Validator(load_schema()).validate(again)


def test_a_loss_would_be_found() -> None:
    assert lost({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2, "c": 3}], "d": 4}) == []
    assert lost({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ["$.a[1].b: 2 became 3"]
    assert lost({"a": 1}, {}) == ["$.a is gone"]


def test_they_say_what_they_said() -> None:
    reports = {path.stem: load(path) for path in RESULTS}
    assert reports["pass"].ok
    drift = reports["drift"]
    assert drift.first_divergence is not None
    assert drift.first_divergence.point.name == drift.cause == "layer.3"
    assert drift.culprit is not None
    assert drift.culprit.channel == 11
    text = terminal.render(drift, width=100)
    assert "<--- first divergence  <--- root cause\n│  └─ mlp.c_proj  introduced" in text
    for fact in ("  L2 from the truth reference ", " of the error is its own, made by this layer"):
        assert fact in text
    assert "NaN" in terminal.render(reports["nan"])
