"""What should not matter, for each side: bit-exact, within noise, or broken, and where."""

from __future__ import annotations

from dataclasses import replace

import pytest
import transformers as tf

import decoders
import driftwalk
from driftwalk.document import load
from driftwalk_reports.generation import look, render, render_markdown, render_page

CHANGES = (
    *("prefill = decode", "cached = recomputed", "chunked = whole"),
    *("batched = alone", "padded = unpadded"),
)


def generated(name, candidate="torch,attn=eager", given=None, model=None, **options):
    model = decoders.build(name) if model is None else model
    if callable(candidate):
        candidate = decoders.broken(model, candidate)
    given = decoders.prompt(name) if given is None else given
    options = {"steps": 5, "invariance": True, **options}
    return driftwalk.generate(model, candidate=candidate, prompt=given, **options)


def broken(report, side="candidate"):
    lines = [one for one in report.invariance if one.side == side]
    assert tuple(one.change for one in lines) == CHANGES
    return {one.change: one.point for one in lines if one.agreement == "broken"}


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_nothing_matters_to_a_sound_model(name):
    given = decoders.padded(name) if name == "llama" else decoders.prompt(name, 1)
    report = generated(name, given=given)
    assert report.ok, report
    assert {one.agreement for one in report.invariance} <= {"bit-exact", "within noise"}
    assert all(one.used <= 1 for one in report.invariance)
    assert broken(report) == broken(report, "reference") == {}


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        (decoders.mask_ignores_padding, "padded = unpadded"),
        (decoders.pieces_begin_at_0, "chunked = whole"),
    ],
)
def test_what_no_step_shows_is_drift_all_the_same(fault, change):
    report = generated("llama", fault)
    assert broken(report) == {change: "layer.0"}
    assert broken(report, "reference") == {}
    assert (report.verdict, report.at_fault, report.cause) == ("drift", "candidate", None)
    assert all(row.ok for row in report.layers)
    assert report.reason.startswith(f"{change} does not hold for the candidate: the two runs are ")
    assert look(report).headline.startswith(f"DRIFT: {change} does not hold")


def test_a_batch_that_mixes_its_rows():
    report = generated("llama", decoders.rows_mixed)
    assert report.cause == "cache"
    assert "is what another row should have" in report.explanation
    found = broken(report)
    assert found["batched = alone"] == "layer.2"
    assert "padded = unpadded" not in found


class CountsFromTheEdge(tf.GPT2LMHeadModel):
    """Cannot be told its positions, so that padding moves them."""

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=None):
        given = {"attention_mask": attention_mask, "past_key_values": past_key_values}
        return super().forward(input_ids, use_cache=use_cache, **given)


def test_what_the_model_itself_depends_on_is_no_fault():
    model = CountsFromTheEdge(decoders.build("gpt2").config).eval()
    report = generated("gpt2", model=model)
    assert report.ok, report
    padded = [one for one in report.invariance if one.change == "padded = unpadded"]
    assert [one.agreement for one in padded] == ["broken"] * 2
    assert all(one.by_model for one in padded)
    assert "the model itself depends on it" in render_page(report)


def test_without_a_cache_there_is_less_to_change():
    report = generated("gpt2", cache="none", steps=3)
    left = [one.change for one in report.invariance if one.agreement == "not run"]
    assert left == ["cached = recomputed", "chunked = whole"] * 2
    assert "nothing is kept between steps" in render_markdown(report)


def test_it_is_stored_shown_and_asked_for(tmp_path):
    report = generated("llama", decoders.mask_ignores_padding, command="driftwalk generate m -c x")
    report.save(tmp_path)
    again = load(tmp_path / "generation.json")
    assert again.invariance == report.invariance
    assert render(again) == render(report)
    page, text = render_page(report), render_markdown(report)
    assert "What should not matter" in page
    assert "✗ broken" in page
    assert "the allowance at layer.0" in text
    assert "the allowance at layer.0" in render(report)
    plain = replace(report, invariance=())
    assert "should not matter" not in render(plain) + render_page(plain) + render_markdown(plain)
    asked = replace(plain, cause="cache")
    assert look(asked).advice[-1].command.endswith("--invariance")
