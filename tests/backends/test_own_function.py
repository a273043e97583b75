"""The truth and the yardsticks compute the model's own function, whatever the model is made of."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from driftwalk.errors import UsageError
from driftwalk.registry import create
from driftwalk.states import Probe
from driftwalk_backends.precision import converted
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from own_runs import WIDTH, Stack, apart, given, probe, same_bits, seeded, to_float


class ComplexRotary(nn.Module):
    """Rotation by complex numbers, as in Llama's own code."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(6).float(), 1 / 10.0 ** torch.arange(WIDTH // 2))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        self.weight = nn.Parameter(torch.randn(WIDTH // 2, dtype=torch.complex64))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2).contiguous())
        turned = torch.view_as_real(pairs * self.turns * self.weight).flatten(-2)
        return self.out(turned.type_as(x))


def test_complex_tensors_keep_their_imaginary_part() -> None:
    model = seeded(ComplexRotary)
    x = probe().inputs["x"].astype(np.float64)
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * model.turns.numpy() * model.weight.detach().numpy()
    flat = np.stack([turned.real, turned.imag], -1).reshape(x.shape)
    right = flat @ model.out.weight.detach().numpy().T.astype(np.float64)
    right += model.out.bias.detach().numpy()
    for spec in ("truth", "truth,casts=kept"):
        assert apart(given(spec, model), right) < (1e-12 if spec == "truth" else 1e-6)
    assert apart(given("torch", model), right) < 1e-6
    for spec in ("torch:cpu:bf16", "emulated:bf16", "emulated:fp16"):
        assert apart(to_float(given(spec, model)), right) < 2e-2
    twin = converted(model, "fp64", "cpu")
    assert (twin.turns.dtype, twin.weight.dtype) == (torch.complex128, torch.complex128)
    assert converted(model, "bf16", "cpu").turns.dtype == torch.complex64


def test_truth_keeps_the_attention_that_the_model_has() -> None:
    """With eager attention this encoder takes masked for unmasked."""
    name = "transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming"
    its = pytest.importorskip(name, reason="transformers 4 does not have this model")
    config = its.NemotronAsrStreamingEncoderConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        subsampling_conv_channels=8,
        num_mel_bins=16,
    )
    model = seeded(lambda: its.NemotronAsrStreamingEncoder(config))
    rng = np.random.default_rng(0)
    features = rng.standard_normal((2, 64, 16), np.float32)
    mask = (rng.random((2, 64)) > 0.5).astype(np.int64)
    inputs = Probe({"input_features": features, "attention_mask": mask})
    with create("truth", model) as truth, create("torch", model) as torch_:
        right, plain = truth.trace(inputs), torch_.trace(inputs)
    for name in right.names:
        assert apart(plain[name], right[name]) < 1e-5, name


@pytest.mark.parametrize("name", ["llama", "t5", "bert", "whisper"])
def test_a_second_opinion_is_near_the_first(name: str) -> None:
    model = open_model(zoo.build(name))
    on = make_probe(model, None)
    with create("truth", model) as truth, create("truth,casts=kept", model) as second:
        first, other = truth.trace(on), second.trace(on)
    assert all(apart(other[point], first[point]) < 1e-6 for point in first.names)
    with pytest.raises(UsageError, match="casts=thrown"):
        create("truth,casts=thrown", model)


class Buckets(nn.Module):
    """Position buckets made in float32: some fall on the other side in float64."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.in_place = in_place
        self.table = nn.Embedding(2000, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(x.shape[1]).to(torch.float32)
        if self.in_place:
            steps.mul_(0.7).floor_()
            numbers = torch.zeros(x.shape[1], dtype=torch.float32)
            numbers[:] = steps
        else:
            numbers = torch.floor(steps * 0.7) + (steps * 0.7 - 7.0 >= 0).to(torch.float32)
        return self.out(x + self.table(numbers.long()))


@pytest.mark.parametrize("in_place", [False, True])
def test_jumps_stay_where_the_model_has_them(in_place: bool) -> None:
    model = seeded(lambda: Buckets(in_place))
    on = probe(1, 2000, WIDTH)
    steps = torch.arange(2000)
    narrow, wide = ((steps.to(kind) * 0.7).floor() for kind in (torch.float32, torch.float64))
    assert (narrow != wide).any()  # or this test would show nothing
    assert apart(given("torch", model, on), given("truth", model, on)) < 1e-6


class MaskedAttention(nn.Module):
    """A mask that is added, in rows that may be masked all over."""

    def __init__(self, mask: float) -> None:
        super().__init__()
        self.mask = mask
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.arange(x.shape[1]) < x.shape[1] // 2
        mask = torch.where(seen[:, None] & seen, 0.0, self.mask).to(x.dtype)
        scores = 5 * self.query(x) @ x.transpose(-1, -2) + mask
        return self.out(torch.softmax(scores.float(), -1).to(x.dtype) @ x)


@pytest.mark.parametrize("mask", [-1e4, -1e9, -1e10, torch.finfo(torch.float32).min])
def test_a_mask_leaves_as_much_of_a_score_as_in_float32(mask: float) -> None:
    model = seeded(lambda: MaskedAttention(mask))
    assert apart(given("torch", model), given("truth", model)) < (1e-2 if mask == -1e4 else 1e-5)


class Smallest(nn.Module):
    """The smallest of the numbers that count, and nothing where none does."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counts = (x > 0) & (torch.arange(x.shape[1])[:, None] > 2)
        most = torch.tensor(torch.finfo(x.dtype).max)  # a float32 whatever the model is in
        smallest = torch.where(counts, x, most).min(-1, keepdim=True).values
        return self.out(x + smallest * counts.any(-1, keepdim=True))


@pytest.mark.parametrize("truth", ["truth", "truth,casts=kept"])
def test_the_largest_number_is_one_that_the_model_can_hold(truth: str) -> None:
    model = seeded(Smallest)
    assert apart(given("torch", model), given(truth, model)) < 1e-6


class Angles(nn.Module):
    """Sines of positions: continuous, so that the truth computes them in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[1]).float()[:, None] / torch.arange(1, WIDTH + 1).float()
        return self.out(x + torch.sin(angles).to(x.dtype))


def test_what_is_continuous_is_computed_in_float64() -> None:
    model = seeded(Angles)
    on = probe(1, 500, WIDTH)
    x = on.inputs["x"].astype(np.float64)
    x += np.sin(np.arange(500)[:, None] / np.arange(1, WIDTH + 1))
    right = x @ model.out.weight.detach().numpy().T.astype(np.float64)
    right += model.out.bias.detach().numpy()
    assert apart(given("truth", model, on), right) < 1e-14
    assert apart(given("truth,casts=kept", model, on), right) > 1e-9


class Drawing(nn.Module):
    """Noise in evaluation, as in samplers and random masks."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(x) + torch.rand(x.shape[-1], dtype=x.dtype) + torch.randn(WIDTH)
        return self.out(x + noise + torch.empty_like(x).uniform_())


def test_every_run_draws_the_same_numbers() -> None:
    model = seeded(Drawing)
    before = torch.random.get_rng_state()
    plain = given("torch", model)
    assert torch.equal(before, torch.random.get_rng_state())
    assert same_bits(plain, given("torch", model))
    assert apart(plain, given("truth", model)) < 1e-6


class Remembering(nn.Module):
    """Caches of every kind, all filled by the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(1))
        self.known: dict[str, torch.Tensor] = {}
        self.holder = types.SimpleNamespace(kept={})
        self.past: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "x" not in self.known:
            self.known["x"] = torch.tanh(self.out(x))
        if not self.holder.kept:
            self.holder.kept["x"] = self.out(x)
        if not hasattr(self, "lazy"):
            self.lazy = self.out(x)
        self.calls += 1
        self.past.append(x)
        kept = self.known["x"] + self.holder.kept["x"] + self.lazy
        return self.out(x + kept + self.calls.to(x.dtype) * len(self.past))


def test_a_run_does_not_depend_on_the_runs_before_it() -> None:
    model = seeded(Remembering)
    first = given("torch", model)
    given("torch", model, Probe({"x": probe().inputs["x"] + 1}))
    assert (model.known, model.past, hasattr(model, "lazy")) == ({}, [], False)
    assert model.calls.item() == 0
    assert same_bits(first, given("torch", model))
    with create("truth", model) as backend:
        (right,) = backend.run(probe()).values()
        (again,) = backend.run(probe()).values()
    assert same_bits(right, again)
    assert 1e-9 < apart(first, right) < 1e-6


class RemembersBlocks(nn.Module):
    """A stack that runs for inputs not seen before only, as OmDet-Turbo's language backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack()
        self.seen: dict[float, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = float(x.sum())
        if key not in self.seen:
            self.seen[key] = self.stack(x)
        return self.seen[key]


def test_blocks_run_again_in_a_model_that_remembers() -> None:
    model = seeded(RemembersBlocks)
    with create("torch", model) as backend:
        first, second = backend.trace(probe()), backend.trace(probe())
    assert first.names == second.names == ("embed", "layer.0", "layer.1", "layer.2", "logits")
    assert all(same_bits(first[name], second[name]) for name in first.names)


class InferenceInside(nn.Module):
    """Casts and products inside inference mode, where a dispatch mode sees whole functions."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    @torch.inference_mode()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.out(x.float().to(x.dtype)), -1, dtype=torch.float32).to(x.dtype)


def test_inference_mode_inside_a_model_is_seen_through() -> None:
    model = seeded(InferenceInside)
    x = torch.from_numpy(probe().inputs["x"].copy()).double()
    with torch.no_grad():
        out = converted(model.out, "fp64", "cpu")
        right = torch.softmax(out(x), -1).numpy()
    assert apart(given("truth", model), right) < 1e-14
    assert apart(to_float(given("emulated:bf16", model)), right) > 1e-4
    assert apart(to_float(given("emulated:bf16", model)), right) < 5e-2


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


AROUND: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "double by default": lambda: default_dtype(torch.float64),
    "half by default": lambda: default_dtype(torch.float16),
    "inference mode": torch.inference_mode,
    "meta by default": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("spec", ["truth", "torch", "emulated:bf16"])
@pytest.mark.parametrize("around", AROUND)
def test_settings_around_the_call_do_not_reach_a_run(around: str, spec: str) -> None:
    model = zoo.build("llama")
    on = make_probe(open_model(model), None)
    with create(spec, model) as backend:
        quiet = backend.trace(on)
    with AROUND[around](), create(spec, model) as backend:
        loud = backend.trace(on)
    assert loud.names == quiet.names
    assert all(same_bits(loud[name], quiet[name]) for name in quiet.names)


def test_autocast_around_the_call_is_named() -> None:
    model = zoo.build("bert")
    on = make_probe(open_model(model), None)
    with create("torch", model) as backend:
        plain = backend.trace(on)
        assert "autocast" not in backend.info.flags
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = backend.trace(on)
            assert backend.info.flags["autocast"] == "switched off (was bfloat16)"
        assert torch.is_autocast_enabled("cpu") is False
    assert all(same_bits(plain[name], inside[name]) for name in plain.names)


class AutocastInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.first(x)
        return self.second(x.to(self.second.weight.dtype))


def test_a_models_own_autocast_stays() -> None:
    model = seeded(AutocastInside)
    on = probe()
    right = given("truth", model, on)
    plain = given("torch", model, on)
    with torch.no_grad():
        own = model(torch.from_numpy(on.inputs["x"].copy())).numpy()
    assert same_bits(plain, own)
    assert 1e-5 < apart(plain, right) < 2e-2
    x = torch.from_numpy(on.inputs["x"].copy()).double()
    double = converted(model, "fp64", "cpu")
    with torch.no_grad():
        assert apart(right, double.second(double.first(x)).numpy()) < 1e-14
