"""A large model in another dtype is lent its weights: the same numbers, and no copy of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import driftwalk
import zoo
from driftwalk.registry import create
from driftwalk_backends import lending
from driftwalk_backends.lending import Lent, lent, stored
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

SPECS = ("truth", "truth,casts=kept", "torch", "emulated:bf16", "emulated:fp16", "emulated:tf32")


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "LARGE", 0)
    monkeypatch.setattr(lending, "SMALLEST", 2)


def traced(spec, model, probe):
    with create(spec, model) as backend:
        trace = backend.trace(probe)
        module = backend._open()
        replayed = {}
        states = {state.point.name: state.array for state in trace}
        backend.replay(probe, states, lambda s: replayed.setdefault(s.point.name, s.array))
    return states, replayed, module


def assert_alike(copied, others):
    for one, other in zip(copied, others, strict=True):
        assert one.keys() == other.keys()
        for point, array in one.items():
            assert array.dtype == other[point].dtype
            np.testing.assert_array_equal(array, other[point], err_msg=point)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_the_truth_is_the_same_bit_by_bit(name, request):
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    *copied, _ = traced("truth", model, probe)
    request.getfixturevalue("all_are_large")
    *others, module = traced("truth", model, probe)
    own = {weight.data_ptr() for weight in model.module.parameters() if weight.numel() > 1}
    held = [stored(weight) for weight in module.parameters() if weight.numel() > 1]
    assert {weight.data_ptr() for weight in held} == own
    assert_alike(copied, others)


@pytest.mark.parametrize("spec", SPECS[1:])
@pytest.mark.parametrize("name", ["gpt2", "t5", "llama"])
def test_other_dtypes_are_the_same_bit_by_bit(name, spec, request):
    """T5 casts to the dtype of a weight: a lent one has that of a copy."""
    module = zoo.build(name)
    if spec == "torch":
        module = module.bfloat16()
    model = open_model(module)
    probe = make_probe(model)
    *copied, twin = traced(spec, model, probe)
    request.getfixturevalue("all_are_large")
    *others, module = traced(spec, model, probe)
    dtypes = [weight.dtype for weight in twin.parameters()]
    assert [weight.dtype for weight in module.parameters()] == dtypes
    assert_alike(copied, others)


def test_stream_on_lends_the_weights_of_a_small_model_and_off_those_of_none(request, monkeypatch):
    monkeypatch.setattr(lending, "SMALLEST", 2)
    model = open_model(zoo.build("llama").bfloat16())
    with create("torch,stream=on", model) as backend:
        assert any(isinstance(weight, Lent) for weight in backend._open().parameters())
    request.getfixturevalue("all_are_large")
    with create("torch,stream=off", model) as backend:
        assert not any(isinstance(weight, Lent) for weight in backend._open().parameters())
    with pytest.raises(driftwalk.DriftwalkError, match="streamed"):
        create("torch,compile=aot_eager,stream=on", model)


@pytest.mark.usefixtures("all_are_large")
def test_copies_of_one_dtype_share_their_weights():
    model = open_model(zoo.build("llama"))
    one, other = (model.at("bf16", "cpu") for _ in range(2))
    weights = [list(module.parameters()) for module in (one, other)]
    assert [w.data_ptr() for w in weights[0]] == [w.data_ptr() for w in weights[1]]
    other = model.at("bf16", "cpu", lend="large")
    assert not any(isinstance(weight, Lent) for weight in other.parameters())
    model.forget()
    new = model.at("bf16", "cpu")
    assert next(new.parameters()).data_ptr() != weights[0][0].data_ptr()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(1, 30),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
    st.integers(1, 200),
)
def test_a_product_in_pieces_is_the_product(rows, inner, outer, dtype, bias, piece):
    torch.manual_seed(rows * inner + outer)
    layer = nn.Linear(inner, outer, bias=bias).bfloat16()
    x = torch.randn(rows, inner, dtype=dtype)
    whole = nn.functional.linear(x, layer.weight.to(dtype), layer.bias.to(dtype) if bias else None)
    weight = lent(layer.weight.detach(), dtype, torch.device("cpu"))
    before, lending.PIECE = lending.PIECE, piece
    try:
        with torch.no_grad():
            got = nn.functional.linear(x, weight, layer.bias.to(dtype) if bias else None)
    finally:
        lending.PIECE = before
    torch.testing.assert_close(got, whole)
    assert (got.shape, got.dtype) == (whole.shape, dtype)


class Outside(nn.Module):
    """Uses weights of modules that it does not call: a tied head, an attention of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(3)
        )
        self.memory = nn.LSTM(16, 16, batch_first=True)

    def forward(self, input_ids):
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x)
        x = self.memory(x)[0]
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


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.filterwarnings("ignore")
def test_a_part_that_nobody_can_look_into_keeps_its_weights():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inside = torch.jit.trace(nn.Linear(8, 8), torch.zeros(1, 8))
            self.outside = nn.Linear(8, 8)

        def forward(self, x):
            return self.outside(self.inside(x))

    report = driftwalk.verify(
        Half().eval(), "torch:cpu:fp64", probe={"x": np.ones((2, 8), np.float32)}
    )
    assert report.verdict == "pass", report.reason


@pytest.mark.parametrize("name", ["gpt2", "mixtral"])
def test_what_a_probe_uses_is_seen_in_lent_weights(name, request):
    def used():
        model = open_model(zoo.build(name).bfloat16())
        with create("torch", model) as backend:
            probe = make_probe(model)
            backend.trace(probe)
            return backend.exercised(probe)

    copied = used()
    request.getfixturevalue("all_are_large")
    assert used() == copied


def test_a_model_that_is_not_large_is_copied():
    model = open_model(zoo.build("gpt2"))
    module = model.at("fp64", "cpu", lend="large")
    assert {weight.dtype for weight in module.parameters()} == {torch.float64}
    assert not any(isinstance(weight, Lent) for weight in module.parameters())
