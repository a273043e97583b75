"""result.json: strict JSON that fits its schema, and comes back as the same report."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from driftwalk.result import Report, from_dict, load, to_dict, to_json
from driftwalk_reports.schema import load_schema
from unit.reports.cases import bad_reference, drifting, exact, nonfinite

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")

VALIDATOR = jsonschema.Draft202012Validator(load_schema())


def test_the_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema())


def test_every_report_fits_the_schema(report: Report) -> None:
    VALIDATOR.validate(json.loads(to_json(report)))


def _refuse(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def test_json_is_strict_and_names_what_is_not_finite() -> None:
    data = json.loads(to_json(bad_reference()), parse_constant=_refuse)
    assert data["layers"][2]["metrics"]["worst"]["reference"] == "-inf"
    data = json.loads(to_json(nonfinite()), parse_constant=_refuse)
    assert data["layers"][3]["metrics"]["worst"]["candidate"] == "nan"
    data = json.loads(to_json(exact()), parse_constant=_refuse)
    assert data["layers"][0]["metrics"]["snr_db"] == "inf"


def test_a_report_comes_back_as_it_was(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    text = to_json(report)
    file.write_text(text, encoding="utf-8")
    again = load(file)
    assert to_json(from_dict(to_dict(again))) == to_json(again)
    # NaN is not equal to itself, so equality is asked of the JSON; blame is not stored yet.
    expected = to_dict(report) | {"root_cause": None}
    assert to_dict(again) == expected


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        at: Any = data
        for name in parents:
            at = at[int(name)] if name.isdigit() else at[name]
        at[last] = value

    return change


@pytest.mark.parametrize(
    "break_it",
    [
        _set("surprise", 1),
        _set("verdict", "fine"),
        _set("schema_version", 2),
        _set("layers.0.verdict", "good"),
        _set("layers.0.surprise", 1),
        _set("layers.0.metrics.max_abs", -1),
        _set("layers.0.metrics.max_abs", "NaN"),
        _set("layers.0.metrics.surprise", 0),
        _set("layers.0.tokens", [[["deep"]]]),
        _set("layers.0.tolerance.needed", None),
        _set("coverage.compared", "9"),
        _set("outputs.top5_overlap", 1.5),
        _set("reference.versions", {"torch": 2}),
        lambda data: data.pop("probe"),
        lambda data: data["layers"][0].pop("module"),
        lambda data: data["layers"][0]["metrics"].pop("cosine"),
    ],
)
def test_the_schema_refuses_what_is_not_a_result(
    break_it: Callable[[dict[str, Any]], object],
) -> None:
    data = copy.deepcopy(to_dict(drifting()))
    VALIDATOR.validate(data)
    break_it(data)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(data)
