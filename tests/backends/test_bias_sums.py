"""Sums that begin with the bias: as good as such sums are, declared, and no cover for a fault."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import driftwalk
import zoo
from driftwalk.errors import UsageError
from driftwalk.judge.cautions import BIAS_SUMS
from driftwalk.mixture import FROM_BIAS, Mixture
from driftwalk.registry import create
from driftwalk_backends import bias_sums as arithmetic
from driftwalk_backends.bias_sums import bias_sums, summed
from driftwalk_backends.sources import LoadedModel

SPEC = f"emulated:fp32,sums={FROM_BIAS}"


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.sampled_from([0.0, 1.0, 100.0]))
def test_a_sum_begins_with_the_bias_and_is_rounded_after_each_term(seed, terms, size):
    a, b = drawn(3, terms, seed=seed), drawn(terms, 4, seed=seed + 1)
    bias = size * drawn(4, seed=seed + 2)
    expected = np.empty((3, 4), np.float32)
    for row in range(3):
        for column in range(4):
            total = np.float32(bias[column])
            for left, right in zip(a[row].tolist(), b[:, column].tolist(), strict=True):
                total = np.float32(left * right + float(total))  # the product is exact in float64
            expected[row, column] = total
    np.testing.assert_array_equal(summed(a, b, bias).numpy(), expected)


def test_a_large_matrix_is_summed_in_pieces_alike(monkeypatch):
    a, b, bias = drawn(3, 50), drawn(50, 4, seed=1), drawn(4, seed=2)
    whole = summed(a, b, bias)
    monkeypatch.setattr(arithmetic, "_BLOCK", 4 * 7)
    assert torch.equal(summed(a, b, bias), whole)


def test_a_large_bias_costs_digits_in_such_sums():
    a, b, bias = drawn(64, 64), drawn(64, 64, seed=1), 1000 * drawn(64, seed=2)
    true = bias.double() + a.double() @ b.double()
    first, last = summed(a, b, bias), summed(a, b, None) + bias
    assert (first - true).norm() > 4 * (last - true).norm()


@pytest.mark.parametrize(
    "shape", [(7, 16), (2, 7, 16), (16,)], ids=["matrix", "batch of them", "vector"]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_every_linear_layer_is_summed_so(shape, transposed):
    layer, x = nn.Linear(16, 8), drawn(*shape)
    if transposed and x.ndim > 1:
        x = drawn(*shape).mT.contiguous().mT
    with torch.no_grad():
        layer.bias += 100
        with bias_sums():
            found = layer(x)
        expected = summed(x.reshape(-1, 16), layer.weight.T, layer.bias)
    assert torch.equal(found, expected.reshape(*shape[:-1], 8))


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("axes", "how"),
    [
        (1, {"stride": 2, "padding": 3}),
        (2, {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}),
        (2, {"stride": 4}),
        (3, {"padding": 1}),
    ],
)
def test_convolutions_are_summed_so(groups, biased, axes, how):
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    layer, x = kind(6, 12, 3, groups=groups, bias=biased, **how), drawn(2, 6, *range(9, 9 + axes))
    with torch.no_grad():
        true = copy.deepcopy(layer).double()(x.double())
        with bias_sums():
            found = layer(x)
    assert found.dtype is torch.float32
    assert found.shape == true.shape
    assert (found - true).norm() < 1e-6 * true.norm()
    if biased:
        with torch.no_grad(), bias_sums():
            layer.weight.fill_(1)
            layer.bias.fill_(2**24)
            lost = layer(torch.ones_like(x))  # 2**24 + 1 is no float32
        assert (lost == 2**24).all()


def test_what_is_not_float32_or_is_transposed_is_left_alone():
    x, layer = drawn(2, 16).double(), nn.Linear(16, 8).double()
    transposed = nn.ConvTranspose1d(16, 8, 3)
    with torch.no_grad():
        plain = layer(x), transposed(x.float().T[None].mT.mT)
        with bias_sums():
            assert torch.equal(layer(x), plain[0])
            assert torch.equal(transposed(x.float().T[None].mT.mT), plain[1])


def test_a_side_that_sums_so_says_so():
    model = zoo.build("gpt2")
    mixture = Mixture.of(driftwalk.backend(SPEC, model).info)
    assert mixture.sums == FROM_BIAS
    assert str(mixture) not in (str(Mixture("fp32")), "")
    assert not Mixture.of(driftwalk.backend("torch", model).info).sums
    for spec, says in (
        ("emulated:fp16,sums=from-bias", "is for emulated:fp32"),
        ("emulated:fp32,sums=odd", "expected one of from-bias"),
        ("emulated:fp32", "needs a dtype"),
    ):
        with pytest.raises(UsageError, match=says):
            driftwalk.backend(spec, model)


def with_large_biases(name: str) -> nn.Module:
    """Biases ten times the size of what is added to them: what makes the order of a sum count."""
    model = zoo.build(name)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("bias") and ".mlp." in path:
                parameter.mul_(30)
    return model


class Undeclared(nn.Module):
    """A model that sums from the bias, and does not say so."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.transformer, self.lm_head = model.transformer, model.lm_head
        self.config, self.model = model.config, [model]

    def forward(self, **inputs: Any) -> Any:
        with bias_sums():
            return self.model[0](**inputs)


def test_the_yardstick_of_such_a_side_sums_so_too():
    model = with_large_biases("gpt2")
    report = driftwalk.verify(model, candidate=SPEC, policy="calibrated")
    assert report.ok, report
    assert BIAS_SUMS in report.notes
    worst = max(one.tolerance.needed for one in report.layers if one.tolerance)
    assert worst < 0.5
    undeclared = driftwalk.verify(model, candidate=Undeclared(model), policy="calibrated")
    assert max(one.tolerance.needed for one in undeclared.layers if one.tolerance) > 2 * worst


@pytest.mark.parametrize("fault", ["weight", "bias"])
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_faults_are_seen_and_placed_all_the_same(name, fault):
    model = with_large_biases(name)
    faulty = copy.deepcopy(model)
    path = {"gpt2": "transformer.h.1.mlp.c_proj", "bert": "bert.encoder.layer.1.output.dense"}
    layer = faulty.get_submodule(path[name])
    with torch.no_grad():
        if fault == "weight":
            layer.weight[5, 7] *= 1.03
        else:
            layer.bias[3] = 0
    with create(SPEC, LoadedModel(faulty, "faulty")) as candidate:
        report = driftwalk.verify(model, candidate=candidate, policy="calibrated")
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
