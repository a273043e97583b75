"""A result is strict JSON, comes back as it went out, and never crashes a reader."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.errors import UsageError
from driftwalk.result import Report, from_dict, load, to_dict, to_json
from unit.material import layer, report
from unit.test_jsonable import json_values, strict

some = settings(max_examples=100, deadline=None)


def test_a_report_is_not_a_bool():
    with pytest.raises(TypeError, match=r"report\.ok"):
        bool(report("pass"))


def test_ok_is_the_verdict():
    assert [report(v).ok for v in ("pass", "drift", "unverified")] == [True, False, False]


# -- the way through the layers --------------------------------------------------------------------


def test_the_first_divergence_is_the_first_row_that_is_not_ok():
    rows = [layer("embed"), layer("layer.0", "shape", 1), layer("layer.1", "drift", 2)]
    found = report(layers=rows)
    assert found.first_divergence == rows[1]
    assert found.last_ok == rows[0]
    assert repr(found) == "<Report drift, first divergence at layer.0; 2 points compared>"


def test_an_allowed_gap_is_no_divergence_and_was_not_compared():
    rows = [layer("embed"), layer("layer.0", "missing", 1, allowed=True), layer("norm", "drift", 2)]
    found = report(layers=rows)
    assert found.first_divergence == rows[2]
    assert found.last_ok == rows[0]


def test_where_all_is_well_there_is_no_divergence():
    found = report("pass", [layer("embed"), layer("norm", index=1)])
    assert found.first_divergence is None
    assert found.last_ok == found.layers[-1]


def test_where_the_first_point_diverges_none_was_ok():
    assert report(layers=[layer("embed", "drift")]).last_ok is None


def test_a_layer_is_found_by_name():
    assert report().layer("layer.0").verdict == "drift"
    with pytest.raises(KeyError, match="absent"):
        report().layer("absent")


# -- JSON ------------------------------------------------------------------------------------------


def test_the_json_is_strict_and_comes_back_as_it_went_out():
    rows = [layer("embed"), layer("layer.0", "nonfinite", 1), layer("x", "extra", 2, allowed=True)]
    for one in (report(), report("unverified", rows)):
        data = strict(to_json(one))
        assert repr(from_dict(data)) == repr(one)
        assert to_json(from_dict(data)) == to_json(one)


def test_the_document_has_the_keys_of_the_public_contract_in_order():
    contract = [
        "tool",
        "created",
        "command",
        "model",
        "probe",
        "reference",
        "candidate",
        "policy",
        "verdict",
        "first_divergence",
        "root_cause",
        "layers",
        "outputs",
        "observer",
        "coverage",
        "timings",
        "environment",
    ]
    found = [key for key in to_dict(report()) if key in contract]
    assert found == contract
    row = to_dict(report())["layers"][1]
    assert [row["point"], row["index"], row["module"]] == ["layer.0", 1, "h.1"]
    assert {
        "shape",
        "dtypes",
        "verdict",
        "metrics",
        "tolerance",
        "truth",
        "blame",
        "tokens",
    } <= set(row)
    assert row["tolerance"]["needed"] == 2.5
    assert to_dict(report())["first_divergence"] == "layer.0"


def test_load_reads_what_was_written(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(to_json(report()), encoding="utf-8")
    assert repr(load(path)) == repr(report())
    assert "hé" in path.read_text(encoding="utf-8"), "text is kept readable"


def test_keys_from_the_future_do_not_disturb():
    data = to_dict(report())
    data["new"] = data["layers"][0]["new"] = 1
    assert repr(from_dict(data)) == repr(report())


@pytest.mark.parametrize("version", [2, 10**9])
def test_a_newer_schema_is_refused_and_says_what_to_do(version):
    with pytest.raises(UsageError, match=f"schema version {version}.*Upgrade driftwalk"):
        from_dict(to_dict(report()) | {"schema_version": version})


@pytest.mark.parametrize("version", [None, "1", 1.0, [1]])
def test_a_schema_version_that_is_no_number_is_refused(version):
    with pytest.raises(UsageError, match="no schema_version"):
        from_dict(to_dict(report()) | {"schema_version": version})


# -- garbage ---------------------------------------------------------------------------------------


def read(data: Any) -> None:
    """A report or a UsageError; anything else is a bug."""
    with contextlib.suppress(UsageError):
        assert isinstance(from_dict(data), Report)


@some
@given(data=json_values)
def test_garbage_is_a_usage_error(data):
    with pytest.raises(UsageError):
        from_dict(data)


@some
@given(layers=json_values, row=json_values)
def test_garbage_for_layers_is_a_usage_error_or_read(layers, row):
    read(to_dict(report()) | {"layers": layers})
    read(to_dict(report()) | {"layers": [row]})


@settings(max_examples=300, deadline=None)
@given(choose=st.data())
def test_a_result_with_one_thing_changed_or_gone_is_a_usage_error_or_read(choose):
    data = copy.deepcopy(to_dict(report()))
    place: Any = data
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = choose.draw(st.sampled_from(keys))
        deeper = isinstance(place[key], dict | list) and len(place[key])
        if not deeper or choose.draw(st.integers(0, 3)) == 0:
            break
        place = place[key]
    if choose.draw(st.booleans()):
        place[key] = choose.draw(json_values)
    else:
        del place[key]
    read(data)


def test_a_file_that_is_not_there_or_no_json_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"Cannot read .*No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(UsageError, match="Cannot read"):
        load(tmp_path)
    for bad in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 10_000):
        (tmp_path / "bad.json").write_bytes(bad)
        with pytest.raises(UsageError, match="is not JSON"):
            load(tmp_path / "bad.json")


def test_json_that_python_writes_but_the_standard_forbids_is_read_all_the_same(tmp_path):
    path = tmp_path / "loose.json"
    data = to_dict(report())
    data["layers"][0]["metrics"]["max_abs"] = float("nan")
    path.write_text(json.dumps(data))
    metrics = load(path).layers[0].metrics
    assert metrics is not None
    assert metrics.max_abs != metrics.max_abs  # NaN
