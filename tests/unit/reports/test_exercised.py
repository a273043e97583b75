"""What a probe exercised, in every report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from driftwalk.exercised import Exercised, Touched
from driftwalk.result import Report, from_dict, to_dict, to_json
from driftwalk_reports import html, junit, markdown, terminal
from driftwalk_reports.exercised import exercised_rows, exercised_sentences
from driftwalk_reports.schema import load_schema
from unit.reports.cases import HOSTILE, passing

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")

MINILM = Exercised(
    (
        Touched("embedding rows", "embeddings.word_embeddings", 9, 30522, False, "all ids"),
        Touched("positions", "embeddings.position_embeddings", 9, 512, False, "a longer text"),
        Touched("token types", "embeddings.token_type_embeddings", 1, 2),
        Touched("unused", "pooler", 0, 1000),
        Touched("padding", "right", 0, 1, False, "text padded on the left"),
        Touched("batch", "rows", 1, 2),
        Touched("window", "config.sliding_window", 9, 4096),
        Touched("cache", "past_key_values", 0, 1),
    ),
    0.48,
)


def _with(found: Exercised | None) -> Report:
    report = passing()
    return replace(report, coverage=replace(report.coverage, exercised=found))


def test_in_a_few_sentences() -> None:
    assert exercised_sentences(MINILM) == (
        "The probe uses 48 % of the weights: 9 of 30,522 rows of embeddings.word_embeddings, "
        "9 of 512 positions, 1 of 2 token types, nothing of pooler.",
        "Not tried: left padding, more than one row, the window of 4096 positions "
        "(the probe has 9), decoding with a cache.",
        "To try more, add text padded on the left; a longer text; all ids.",
    )


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert exercised_sentences(None) == ()
    assert exercised_rows(None) == ()
    assert "What the probe exercised" not in html.render(_with(None))
    unknown = Exercised((), None, "layer.0 is compiled")
    assert exercised_sentences(unknown) == (
        "How much of the weights the probe uses cannot be told: layer.0 is compiled.",
    )


def test_all_is_said_to_be_all_and_nearly_all_is_not() -> None:
    assert exercised_sentences(Exercised((), 1.0)) == ("The probe uses all of the weights.",)
    (nearly,) = exercised_sentences(Exercised((), 1 - 1e-9))
    assert nearly == "The probe uses > 99.9 % of the weights."


@pytest.mark.parametrize(
    ("used", "told"),
    [
        ([8, 8, 8], ""),
        ([5, 8, 6], ": 5 to 6 of 8 experts in 2 of 3 layers"),
        ([5, 5, 5], ": 5 of 8 experts in 3 of 3 layers"),
        ([5], ": 5 of 8 experts"),
    ],
)
def test_experts_of_all_layers_are_one_clause(used: list[int], told: str) -> None:
    items = tuple(Touched("experts", f"layers.{i}", n, 8) for i, n in enumerate(used))
    (shown,) = exercised_sentences(Exercised(items, 0.5))
    assert shown == f"The probe uses 50 % of the weights{told}."


def test_a_tied_table_says_that_its_rows_are_read() -> None:
    tied = Exercised((Touched("embedding rows", "wte", 9, 99, shared=True),), 1.0)
    (shown,) = exercised_sentences(tied)
    assert shown.endswith("9 of 99 rows of wte (a tied layer reads the rest).")


def test_every_report_says_it() -> None:
    report = _with(MINILM)
    used, untried, advice = exercised_sentences(MINILM)
    shown = " ".join(terminal.render(report, 80).split())
    assert f"{used} {untried} {advice}" in shown
    *lines, _headline = terminal.render(report, 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "9 of 30,522 rows" in markdown.render(report)
    assert untried in markdown.render(report)
    assert f"{used} {untried} {advice}" in junit.render(report)
    page = html.render(report)
    assert f"{used} {untried} {advice}" in page
    assert "none of 1000 weights" in page
    assert json.loads(to_json(report))["coverage"]["exercised"]["weights"] == 0.48


def test_it_fits_the_schema_and_comes_back() -> None:
    schema = jsonschema.Draft202012Validator(load_schema())
    data = json.loads(to_json(_with(MINILM)))
    schema.validate(data)
    assert from_dict(data).coverage.exercised == MINILM
    data["coverage"]["exercised"]["weights"] = 1.5
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(data)
    data = to_dict(_with(MINILM))
    data["coverage"]["exercised"]["items"][0]["used"] = -1
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(data)


def test_hostile_names_stay_text() -> None:
    items = (Touched(HOSTILE, HOSTILE, 1, 2, False, HOSTILE), Touched("unused", HOSTILE, 0, 2))
    report = _with(Exercised(items, None, HOSTILE))
    page = html.render(report)
    assert "<script>alert" not in page
    assert "\x1b" not in terminal.render(report)
    for render in (markdown.render, junit.render):
        assert "\x1b" not in render(report)
        assert "<script" not in render(report)
