"""A large model in float64 borrows its weights: the same numbers, and no copy of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.registry import create
from driftwalk_backends import lending
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "LARGE", 0)
    monkeypatch.setattr(lending, "SMALLEST", 2)


def traced(model, probe):
    with create("truth", model) as truth:
        trace = truth.trace(probe)
        module = truth._open()
        replayed = {}
        given = {state.point.name: state.array for state in trace}
        truth.replay(probe, given, lambda state: replayed.setdefault(state.point.name, state.array))
    return {state.point.name: state.array for state in trace}, replayed, module


@pytest.mark.parametrize("name", zoo.NAMES)
def test_the_truth_is_the_same_bit_by_bit(name, request):
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    *copied, _ = traced(model, probe)
    request.getfixturevalue("all_are_large")
    *lent, module = traced(model, probe)
    own = {weight.data_ptr() for weight in model.module.parameters()}
    shared = sum(weight.data_ptr() in own for weight in module.parameters())
    assert shared == sum(1 for _ in model.module.parameters())
    for one, other in zip(copied, lent, strict=True):
        assert one.keys() == other.keys()
        for point, array in one.items():
            np.testing.assert_array_equal(array, other[point], err_msg=point)


@pytest.mark.usefixtures("all_are_large")
def test_a_truth_that_keeps_casts_is_a_copy():
    """T5 casts to the dtype of a weight: that of a lent one would narrow it."""
    model = open_model(zoo.build("t5"))
    with create("truth,casts=kept", model) as truth:
        assert {weight.dtype for weight in truth._open().parameters()} == {torch.float64}


class Outside(nn.Module):
    """Uses weights of modules that it does not call: a tied head, an attention of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(3)
        )

    def forward(self, input_ids):
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(x, self.table.weight / self.table.weight.norm())


@pytest.mark.usefixtures("all_are_large")
def test_weights_that_are_used_outside_of_their_module_are_wide_there_too():
    module = Outside().eval()
    probe = {"input_ids": np.arange(12).reshape(2, 6)}
    report = driftwalk.verify(module, "emulated:bf16", probe=probe)
    assert report.verdict == "pass", report.reason
    wrong = Outside().eval()
    wrong.layers[1].linear1.weight.data *= 1.05
    found = driftwalk.verify(module, wrong, probe=probe)
    assert found.root_cause.point.name == "layer.1"


def test_a_weight_is_given_back_when_its_module_fails(all_are_large):
    model = open_model(zoo.build("gpt2"))
    module = model.at("fp64", "cpu", lend=True)
    part = module.transformer.h[0].mlp.c_fc
    before = part.weight
    with pytest.raises(RuntimeError):
        part(torch.zeros(1, 3, dtype=torch.float64))
    assert part.weight is before
    assert before.dtype == torch.float32


def test_a_model_that_is_not_large_is_copied():
    model = open_model(zoo.build("gpt2"))
    module = model.at("fp64", "cpu", lend=True)
    assert {weight.dtype for weight in module.parameters()} == {torch.float64}
