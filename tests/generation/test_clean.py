"""Decoding that is right: no alarm, whatever the model, its dtype, its cache and its batch."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import decoders
import driftwalk

CANDIDATES = ("torch", "emulated:bf16")
STEPS = 9
"""With a prompt of 8 tokens, and windows of 8: the last step sees no token of the prompt."""


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        *product(CANDIDATES, decoders.MAKERS),
        # What is emulated is rounded in one place, to whichever format: a few kinds of models.
        *product(["emulated:fp16"], ["gpt2", "gemma3", "t5"]),
    ],
)
def test_clean_decoding_passes(name, candidate):
    report = driftwalk.generate(
        decoders.build(name), candidate=candidate, prompt=decoders.prompt(name), steps=STEPS
    )
    assert report.ok, report
    assert report.cause is None
    assert report.first_divergence is None
    assert report.root_cause is None
    assert report.parted is None or report.parted.tie
    assert len(report.steps) == STEPS + 1
    assert all(row.ok for step in report.steps for row in step.layers)
    assert {one.agreement for one in report.cache_paths.values()} <= {"bit-exact", "within noise"}


@pytest.mark.parametrize("name", ["gpt2", *decoders.ROTARY, "mamba"])
def test_rows_of_unequal_length_pass(name):
    model, given = decoders.build(name), decoders.padded(name)
    report = driftwalk.generate(model, candidate="emulated:bf16", prompt=given, steps=STEPS)
    assert report.ok, report


@pytest.mark.parametrize("cache", ["static", "none"])
@pytest.mark.parametrize("name", decoders.MAKERS)
def test_other_caches_pass(name, cache):
    model = decoders.build(name)
    report = driftwalk.generate(
        model, candidate="torch", prompt=decoders.prompt(name), steps=STEPS, cache=cache
    )
    assert report.ok, report


def test_the_tokens_are_those_of_generate():
    model, given = decoders.build("llama"), decoders.prompt("llama")
    report = driftwalk.generate(model, candidate="torch", prompt=given, steps=6)
    import torch

    ids = torch.from_numpy(given["input_ids"])
    own = model.generate(ids, max_new_tokens=7, do_sample=False, eos_token_id=None)
    assert np.array_equal(own[:, 8:].numpy().T, [step.tokens for step in report.steps])


def test_padded_rows_say_what_they_say_alone():
    model, given = decoders.build("llama"), decoders.padded("llama")
    together = driftwalk.generate(model, candidate="torch", prompt=given, steps=6)
    for row, length in enumerate((8, 5, 3)):
        ids = given["input_ids"][row : row + 1, :length]
        alone = driftwalk.generate(model, candidate="torch", prompt={"input_ids": ids}, steps=6)
        assert [s.tokens[row] for s in together.steps] == [s.token for s in alone.steps]


def test_a_model_is_left_as_it_was():
    model = decoders.build("llama")
    before = driftwalk.verify(model, candidate="torch")
    driftwalk.generate(model, candidate="torch", prompt=decoders.prompt("llama"), steps=2)
    after = driftwalk.verify(model, candidate="torch")
    assert [row.point.name for row in after.layers] == [row.point.name for row in before.layers]
