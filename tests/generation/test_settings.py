"""Settings that deployments change: beam search, prompts in pieces, drafted tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as tf

import decoders
import driftwalk
from driftwalk.decoding import Beams
from driftwalk.errors import BackendError, UsageError
from driftwalk.tasks.generation.feeding import Feeding, pieces

BEHIND_ENCODER = ("t5", "whisper")
since_5 = pytest.mark.skipif(
    int(tf.__version__.partition(".")[0]) < 5,
    reason="transformers 4 can neither reorder a state of Mamba nor take back from a window",
)


def generated(name, fault=None, candidate="torch,attn=eager", steps=8, rows=1, **options):
    model = decoders.build(name)
    if fault is not None:
        candidate = decoders.broken(model, fault)
    given = decoders.prompt(name, rows)
    return driftwalk.generate(model, candidate=candidate, prompt=given, steps=steps, **options)


# ---- beams ----


@pytest.mark.parametrize("name", ["llama", "gemma3", "t5", pytest.param("mamba", marks=since_5)])
def test_a_cache_that_is_not_reordered(name):
    report = generated(name, decoders.not_reordered, beams=3, rows=2)
    prefix = "decoder." if name in BEHIND_ENCODER else ""
    prompt = 2 if name in BEHIND_ENCODER else 8
    assert report.cause == "cache"
    assert report.root_cause.point.name == f"{prefix}layer.2"
    assert report.root_cause.step == 2, "the first that reads what should have changed places"
    assert "layer.2: what its cache holds as" in report.explanation
    if name not in ("mamba", *decoders.WINDOWED):  # others hold no slots, or no longer these
        assert report.root_cause.slot == prompt, "the first that beams do not share"
        assert "is what another row should have: it was not reordered" in report.explanation


def test_a_cache_that_is_not_reordered_at_all():
    report = generated("gpt2", lambda port: decoders.not_reordered(port, ()), beams=3)
    assert report.cause == "cache"
    assert report.root_cause.point.name == "layer.0"
    assert "and so it is in 4 layers" in report.explanation


@pytest.mark.parametrize(
    ("name", "candidate", "cache"),
    [("llama", "emulated:bf16", "dynamic"), ("t5", "torch,attn=eager", "static")],
)
def test_a_clean_beam_search_passes(name, candidate, cache):
    report = generated(name, candidate=candidate, beams=3, rows=2, cache=cache)
    assert report.ok, report
    assert report.beams == 3
    assert len(report.steps[0].tokens) == 6
    assert report.parted is None or report.parted.tie
    assert all(row.ok for step in report.steps for row in step.layers)


@pytest.mark.parametrize("cache", ["dynamic", "none"])
def test_the_beams_are_those_of_transformers(cache):
    model, given = decoders.build("llama"), decoders.prompt("llama")
    report = driftwalk.generate(
        model, candidate="torch", prompt=given, steps=6, beams=4, cache=cache, policy="dtype"
    )
    own = model.generate(
        torch.from_numpy(given["input_ids"]),
        **{"max_new_tokens": 6, "num_beams": 4, "num_return_sequences": 4},
        **{"do_sample": False, "eos_token_id": None},
    )
    assert np.array_equal(own[:, 8:].numpy().T, [step.tokens for step in report.steps[:-1]])


def test_where_each_beam_comes_from():
    beams = Beams(tokens=((5, 6), (7, 8), (9, 1)), origins=((0, 0), (1, 0), (1, 1)))
    assert beams.lineage() == [[0, 0], [0, 0], [1, 1], [0, 1]]
    assert beams.fed() == [[[], []], [[5], [6]], [[6, 7], [5, 8]], [[5, 8, 9], [5, 8, 1]]]
    assert beams.reorders
    assert not Beams(((5, 6),), ((0, 1),)).reorders


# ---- prompts in pieces ----


@pytest.mark.parametrize("name", ["gemma3", "whisper"])
def test_a_prompt_in_pieces_passes(name):
    report = generated(name, chunk=1 if name in BEHIND_ENCODER else 3)
    assert report.ok, report
    assert len(report.steps) == 9


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_pieces_whose_positions_begin_again(name):
    report = generated(name, decoders.pieces_begin_at_0, chunk=3)
    assert report.cause == "shared"
    assert (report.root_cause.step, report.root_cause.token) == (0, 3)
    assert "wrong from token 3 on, and not in one whole run" in report.explanation


# ---- drafted tokens ----


@pytest.mark.parametrize("name", [pytest.param("mistral", marks=since_5), "t5"])
def test_drafted_tokens_pass(name):
    report = generated(name, draft=3, steps=10)
    assert report.ok, report


@pytest.mark.parametrize(
    ("name", "fault"),
    [("gpt2", decoders.cropped_too_far), ("llama", decoders.cropped_too_little)],
)
def test_a_cache_that_is_cropped_one_off(name, fault):
    report = generated(name, fault, draft=3, steps=10)
    assert report.cause == "cache"
    assert report.root_cause.point.name == "layer.0"
    assert report.root_cause.step == 8, "all of the first draft was right"
    assert "does not hold one slot for each token (and so it is in 4 layers)" in report.explanation


def test_a_drafted_token_that_stays_in_one_layer():
    report = generated("llama", decoders.kept_of_the_draft, draft=3, steps=10)
    assert report.cause == "cache"
    assert report.root_cause.point.name == "layer.2"
    assert report.root_cause.slot == 14


def test_how_tokens_are_fed():
    assert pieces(8, 3) == (3, 3, 2)
    assert pieces(8, 4) == (4, 4)
    assert pieces(8, 0) == pieces(8, 9) == (8,)
    ids = np.array([[4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]])
    plan = Feeding(8, draft=2).drafted(3, ids)
    assert plan.chunks == (3, 3, 2, 1, 2)
    assert [len(rows[0]) for rows in plan.rejected] == [0, 0, 1, 2, 0]
    assert plan.rejected[2] == ((11,),), "an earlier token, and not the right one, 12"
    assert sum(plan.chunks) == ids.shape[1]


def test_what_cannot_be_asked_for():
    for options, said in (
        ({"beams": 0}, "at least 1 beam"),
        ({"chunk": -1}, "no negative numbers"),
        ({"beams": 2, "draft": 2}, "ask for one of the two"),
        ({"draft": 2, "cache": "static"}, "can be cropped"),
    ):
        with pytest.raises(UsageError, match=said):
            generated("gpt2", **options)
    with pytest.raises(BackendError, match="cannot take drafted tokens back"):
        generated("mamba", candidate="torch", draft=2)
