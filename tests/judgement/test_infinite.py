"""Scores that a model has masked out are minus infinity on purpose; nothing else may be."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
from driftwalk.measure.norms import distance, row_sizes
from torch_nets import Block

PROBE = {"x": np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)}
MASKED = slice(5, None)


class Chooser(nn.Module):
    """Blocks and a head, whose last classes can never be chosen: as detectors pad their texts."""

    def __init__(self, masked: float = -np.inf) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(8, 12)
        self.masked = masked

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for block in self.blocks:
            x = block(x)
        scores = self.head(x).clone()
        scores[..., MASKED] = self.masked
        return {"logits": scores}


@pytest.mark.parametrize("candidate", [None, "emulated:bf16", "emulated:fp16", "torch:cpu:fp64"])
def test_what_a_model_masks_out_is_a_value_of_it(candidate):
    model = Chooser()
    report = driftwalk.verify(model, candidate or copy.deepcopy(model), probe=PROBE)
    assert report.verdict == "pass", report.reason
    row = report.layer("logits")
    assert "84 elements are infinite on both sides alike" in row.note
    assert row.truth is not None, "and the others are judged by the truth"
    assert row.metrics.nonfinite.reference == 0
    assert report.outputs is not None
    assert report.outputs.positions == 12


def test_a_fault_beside_them_is_seen_and_placed():
    model = Chooser()
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        wrong.blocks[1].inner.weight.mul_(1.02)
    report = driftwalk.verify(model, wrong, probe=PROBE)
    assert report.verdict == "drift"
    assert report.cause == "layer.1"
    head = copy.deepcopy(model)
    with torch.no_grad():
        head.head.weight[2].mul_(1.02)
    report = driftwalk.verify(model, head, probe=PROBE)
    assert report.verdict == "drift"
    assert report.cause == "head.layer.0"


@pytest.mark.parametrize("instead", [0.0, -1e4, np.inf, np.nan, float(np.finfo(np.float32).min)])
def test_a_candidate_must_mask_out_the_same(instead):
    report = driftwalk.verify(Chooser(), Chooser(instead), probe=PROBE)
    assert report.verdict == "drift"
    assert report.first_divergence.point.name == "logits"
    assert report.at_fault == "candidate"


def test_a_candidate_that_masks_out_what_the_model_does_not():
    report = driftwalk.verify(Chooser(-3.0), Chooser(), probe=PROBE)
    assert report.verdict == "drift"
    assert report.layer("logits").verdict == "nonfinite"


class Overflows(Chooser):
    """In float32, not in float64: no value of the model."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = super().forward(x)["logits"]
        scores[..., MASKED] = -1e30
        return {"logits": torch.where(scores < -1e29, scores * 1e30, scores)}


def test_an_overflow_on_both_sides_is_none_of_these():
    report = driftwalk.verify(Overflows(), Overflows(), probe=PROBE)
    assert report.verdict == "unverified"
    assert "84 non-finite value(s) at logits" in report.reason


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_a_number_and_plus_infinity_are_never_meant(bad):
    report = driftwalk.verify(Chooser(bad), Chooser(bad), probe=PROBE)
    assert report.verdict == "unverified"


class NothingLeft(Chooser):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": torch.full_like(super().forward(x)["logits"], -torch.inf)}


def test_where_nothing_can_be_chosen_nothing_was_compared():
    report = driftwalk.verify(NothingLeft(), NothingLeft(), probe=PROBE)
    assert report.verdict == "unverified"
    assert "at logits" in report.reason


def test_the_same_infinity_differs_by_nothing():
    a = np.array([[1.0, -np.inf], [np.inf, 3.0]])
    assert distance(a, a.copy()).max_abs == 0
    assert row_sizes(a + np.array([[0.5, 0], [0, 0]]), a).tolist() == [0.5, 0.0]
    assert distance(a, np.array([[1.0, np.inf], [np.inf, 3.0]])).max_abs == np.inf
    assert distance(a, np.array([[1.0, 0.0], [np.inf, 3.0]])).max_abs == np.inf
