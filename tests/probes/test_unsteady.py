"""A fault that one run of a probe shows, and the next does not."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import driftwalk
import zoo
from driftwalk.tasks.probes import run

COUNT, GLITCH = 9, 7
Model = Any


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr(run, "SMALL_SET", 4)
    return zoo.build("gpt2")


def probes() -> list[Any]:
    drawn = np.random.default_rng(0).integers(3, 60, (COUNT, 1, 7))
    return [{"input_ids": one} for one in drawn]


def glitching(model: Model, size: float) -> Model:
    """A copy, one block of which is off by a factor when it first meets one of the probes."""
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    marked, met = torch.as_tensor(probes()[GLITCH]["input_ids"]), [False]
    inner = other.transformer.h[1].mlp
    plain = inner.forward

    def note(module: object, given: tuple[torch.Tensor, ...]) -> None:
        met.append(torch.equal(given[0], marked))

    def forward(states: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = plain(states)
        return made * size if met[-1] and met.count(True) == 1 else made

    other.transformer.wte.register_forward_pre_hook(note)
    inner.forward = forward
    return other


@pytest.mark.parametrize("policy", ["calibrated", "dtype"])
@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_what_one_run_shows_is_no_pass_though_the_next_does_not(
    model: Model, policy: str, side: str
) -> None:
    sides = {"candidate": "torch,attn=eager", "reference": "torch"} | {side: glitching(model, 1.5)}
    report = driftwalk.verify(model, **sides, probes=probes(), policy=policy)
    verdicts = [row.verdict for row in report.probes]
    assert verdicts == ["pass"] * GLITCH + ["unverified"] + ["pass"] * (COUNT - GLITCH - 1)
    assert report.verdict == "unverified"
    assert f"the {side} gives other numbers in each run: at layer.1" in report.reason


def test_a_run_that_is_otherwise_and_within_what_is_allowed_is_a_pass(model: Model) -> None:
    report = driftwalk.verify(model, glitching(model, 1 + 1e-8), probes=probes())
    assert report.verdict == "pass"
