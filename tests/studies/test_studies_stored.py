"""Stored studies load, say the same when stored again, and are rendered without any framework."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driftwalk.document import KINDS, from_dict, load, to_json
from driftwalk.errors import UsageError
from driftwalk_reports.schema import load_schema
from light.program import driftwalk

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")

STORED = sorted((Path(__file__).resolve().parents[1] / "data" / "studies").glob("*.json"))
OURS = ["contrast", "geometry"]


def test_there_are_some() -> None:
    assert {path.stem for path in STORED} >= set(OURS)
    assert set(OURS) <= set(KINDS)


def _as_then(item: dict[str, Any]) -> dict[str, Any]:
    """Without what a backend could not say when these were stored, and does not say of itself."""
    return {k: v for k, v in item.items() if k not in ("dtypes", "stored") or v}


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_nothing_is_lost(path: Path) -> None:
    stored = json.loads(path.read_text("utf-8"))
    assert json.loads(to_json(load(path)), object_hook=_as_then) == stored
    jsonschema.Draft202012Validator(load_schema(kind=path.stem)).validate(stored)


def test_they_are_rendered_where_there_is_no_torch(tmp_path: Path) -> None:
    files = [str(path) for path in STORED if path.stem in OURS]
    done = driftwalk("report", *files, "-o", str(tmp_path))
    assert done.code == 0, done.err
    assert "distance between" in (tmp_path / "contrast.html").read_text("utf-8")
    assert "nearest neighbours" in (tmp_path / "geometry.html").read_text("utf-8")


def test_two_of_a_kind_would_overwrite_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(STORED[0].read_text("utf-8"), "utf-8")
    done = driftwalk("report", str(STORED[0]), str(tmp_path / "a.json"), "-o", str(tmp_path))
    assert done.code == 2
    assert "folder of its own" in done.err


@pytest.mark.parametrize("break_it", [{"layers": 3}, {"layers": [3]}, {"rows": None}, {"tool": {}}])
def test_a_broken_file_is_refused_by_name(break_it: dict[str, object]) -> None:
    data = json.loads(next(path for path in STORED if path.stem == "contrast").read_text("utf-8"))
    with pytest.raises(UsageError, match="Not a driftwalk result: contrast"):
        from_dict(data | break_it)
