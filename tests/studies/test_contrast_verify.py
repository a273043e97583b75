"""Drift in units of meaning, as the second axis of a drift report."""

from __future__ import annotations

import json
import math

import pytest

import driftwalk
from cli.program import invoke
from driftwalk.errors import UsageError
from driftwalk.result import from_dict, to_json
from driftwalk_reports import html, markdown
from driftwalk_reports.schema import load_schema
from studies import subjects

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")


def test_shares_are_drift_over_distance() -> None:
    pair = ("The sun is up.", "The sun is out.")
    report = driftwalk.verify("demo:decoder", candidate="emulated:fp16", contrast=pair)
    alone = driftwalk.contrast("demo:decoder", *pair)
    assert report.ok
    assert report.contrast is not None
    assert (report.contrast.first, report.contrast.second) == pair
    for layer in report.layers:
        known = [v for row in layer.tokens or () for v in row if v is not None]
        drift = math.sqrt(sum(v * v for v in known) / len(known))
        distance = alone.layer(layer.point.name).distance
        share = report.contrast.shares[layer.point.name]
        assert share == pytest.approx(drift / distance, rel=1e-12)
    data = json.loads(to_json(report))
    jsonschema.Draft202012Validator(load_schema()).validate(data)
    assert from_dict(data).contrast == report.contrast
    page, text = html.render(report), markdown.render(report)
    assert "In units of meaning" in page
    assert "drift over the distance between" in page
    assert page.count("c-meaning") >= len(report.layers)
    assert "is at most" in text


def test_a_report_without_one_is_as_it_was() -> None:
    report = driftwalk.verify("demo:decoder", candidate="torch")
    assert report.contrast is None
    assert "contrast" not in json.loads(to_json(report))
    assert "c-meaning" not in html.render(report).partition("<body>")[2]


def test_on_the_command_line() -> None:
    done = invoke("verify", "demo:decoder", "-c", "torch", "--contrast", "default")
    assert done.code == 0, done.err
    assert "of contrast" in done.out
    assert "The drift of torch is at most 0 % of the distance between “The capital" in done.out
    invoke("verify", "demo:decoder", "-c", "torch", "--contrast", "one").refused(2, "one |")


def test_token_ids_where_there_is_no_tokenizer() -> None:
    report = driftwalk.verify(subjects.gpt2(2), candidate="torch", contrast="1 2 3 4|1 2 5 4")
    assert report.contrast is not None
    assert set(report.contrast.shares.values()) == {0.0}
    built_in = driftwalk.verify(subjects.gpt2(2), candidate="torch", contrast=True)
    assert built_in.contrast is not None
    assert all(value > 0 for value in built_in.contrast.distances.values())


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="contrast"):
        driftwalk.verify("demo:decoder", candidate="torch", contrast=3)
