"""The truth is a witness that is cross-examined."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.dtypes import FORMATS
from driftwalk.judge.calibrate import calibrate
from driftwalk.judge.conditioning import doubt_of
from driftwalk.registry import create
from driftwalk.states import BackendInfo, Point, Probe, State, Trace
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model


class Dodging(nn.Module):
    """Computes another function in float64 than in float32, as a lossy conversion would make it."""

    def __init__(self, off: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.off = off

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = x + torch.tanh(layer(x))
            if x.dtype == torch.float64 and number == 1:
                x = x * (1 + self.off)
        return x


@pytest.mark.parametrize("off", [1e-3, 0.1, 1.0])
def test_a_truth_that_computes_something_else_is_no_truth(off):
    module = Dodging(off)
    wrong = copy.deepcopy(module)
    wrong.layers[2].weight.data *= 1.002
    report = driftwalk.verify(module, candidate=wrong)
    assert report.verdict == "unverified"
    assert "layer.2" in report.reason
    assert "float64" in report.reason


def test_two_sides_that_agree_pass_even_then_and_the_report_says_by_what():
    report = driftwalk.verify(Dodging(0.1), candidate=Dodging(0.1))
    assert report.ok
    assert any("dtype table" in note and "layer.2" in note for note in report.notes)


def test_an_ill_conditioned_probe_is_unverified():
    """Differences of nearly equal numbers, multiplied up: no digit of the result is right."""

    class Cancelling(Dodging):
        def forward(self, x):
            for layer in self.layers:
                x = 1e7 * ((x + 1e7) - 1e7 - x) + torch.tanh(layer(x))
            return x

    module = Cancelling(0.0)
    port = copy.deepcopy(module)
    port.layers[1].weight.data *= 1.5
    report = driftwalk.verify(module, candidate=port)
    assert report.verdict == "unverified"
    assert "ill-conditioned" in report.reason


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "vit", "mixtral"])
def test_honest_truths_are_trusted(name):
    model = open_model(zoo.build(name))
    with create("truth", model) as truth, create("torch:cpu:fp32", model) as yardstick:
        assert calibrate(truth, yardstick, make_probe(model)).doubt == ""


class Coarse(Dodging):
    """Keeps so few digits in half precision."""

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
            if x.dtype == torch.float16:
                x = (x * self.off).round() / self.off
        return x


def judged_by(digits, factor):
    """A candidate of four blocks, one of them off by a factor; the yardstick alone is coarse."""
    candidate = Dodging(0.0)
    candidate.layers[2].weight.data *= factor
    return driftwalk.verify(
        Coarse(digits),
        candidate=create("emulated:fp16", candidate),
        reference=create("torch", Dodging(0.0)),
    )


def test_a_half_precision_yardstick_coarser_than_its_name_gives_no_allowance():
    right, wrong = judged_by(8, 1.0), judged_by(8, 1.05)
    assert right.ok
    assert any("fp16" in note and "dtype table" in note for note in right.notes)
    assert wrong.verdict == "unverified"
    assert "fp16" in wrong.reason


def test_one_that_is_still_stricter_than_the_dtype_table_judges():
    report = judged_by(128, 1.05)
    assert (report.verdict, report.cause) == ("drift", "layer.2")


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "tf32", "fp8"])
@pytest.mark.parametrize("name", ["gpt2", "albert", "t5"])
def test_honest_yardsticks_of_coarse_formats_are_trusted(name, dtype):
    model = open_model(zoo.build(name))
    with create("truth", model) as truth, create(f"emulated:{dtype}", model) as yardstick:
        assert calibrate(truth, yardstick, make_probe(model)).doubt == ""


@pytest.mark.parametrize(("tokens", "trusted"), [(1, True), (2, True), (40, False)])
def test_one_token_says_little_about_a_coarse_yardstick(tokens, trusted):
    """Of SmolLM2 in bf16 a single token is 15 times off where it becomes an attention sink."""
    rng = np.random.default_rng(0)
    true, noise = rng.standard_normal((2, 1, tokens, 64))
    probe = Probe({"x": np.ones((1, tokens))}, "test")
    info = BackendInfo("truth", "truth", "cpu", "fp64", {}, {})
    roundoff = FORMATS["bf16"].roundoff

    def trace(array):
        return Trace((State(Point("layer.0"), array),), probe, info, {})

    noisy, made = (trace(true + factor * roundoff * noise) for factor in (0.5, 15 * 1.5))
    doubt = doubt_of(trace(true), made, noisy, FORMATS["bf16"])
    assert (doubt == "") == trusted


@pytest.mark.parametrize(
    ("tipped", "off", "trusted"),
    [
        (range(0, 30), range(10, 40), True),
        (range(0, 30), range(0, 100), False),
        (range(0, 2), range(50, 80), False),
    ],
    ids=["others tip over", "all are off", "few can tip over"],
)
def test_where_many_tokens_stand_at_a_tie_it_is_chance_which_tip_over(tipped, off, trusted):
    rng = np.random.default_rng(0)
    true, noise, jump = rng.standard_normal((3, 1, 100, 16))
    probe = Probe({"x": np.ones((1, 100))}, "test")
    info = BackendInfo("truth", "truth", "cpu", "fp64", {}, {})

    def trace(jumping):
        array = true + FORMATS["fp32"].roundoff * noise
        array[:, list(jumping)] += 0.1 * jump[:, list(jumping)]
        return Trace((State(Point("layer.0"), array),), probe, info, {})

    exact = Trace((State(Point("layer.0"), true),), probe, info, {})
    other = {"layer.0": trace(tipped)["layer.0"]}
    doubt = doubt_of(exact, trace(off), trace([]), FORMATS["fp32"], other)
    assert (doubt == "") == trusted


def test_a_state_that_the_format_cannot_hold_is_no_doubt():
    """Boxes and probabilities of 1e-60: zero in float32."""
    rng = np.random.default_rng(0)
    true = rng.standard_normal((1, 100, 4))
    true[:, ::2] *= 1e-60
    probe = Probe({"x": np.ones((1, 100))}, "test")
    info = BackendInfo("truth", "truth", "cpu", "fp64", {}, {})

    def trace(array):
        return Trace((State(Point("output.boxes"), array),), probe, info, {})

    made = trace(true.astype(np.float32).astype(np.float64))
    assert doubt_of(trace(true), made, trace(true * (1 + 1e-8)), FORMATS["fp32"]) == ""


def test_jitter_is_as_large_as_was_asked_for_and_the_same_each_time():
    model = open_model(zoo.build("gpt2"))
    probe = make_probe(model)
    with create("truth", model) as truth:
        exact = truth.trace(probe)
        runs = []
        for size in (1e-7, 1e-7, 1e-5):
            found = {}
            truth.jittered(
                probe, size, lambda s, found=found: found.update({s.point.name: s.array})
            )
            runs.append(found)
        again = truth.trace(probe)
    off = [np.abs(run["layer.2"] - exact["layer.2"]).max() for run in runs]
    assert off[0] == off[1]
    assert 1e-8 < off[0] < 1e-5
    assert 30 < off[2] / off[0] < 300
    assert (again["layer.2"] == exact["layer.2"]).all(), "and it is over afterwards"


class FilledIn(nn.Module):
    """Scores, with the lowest number of their dtype where no token may be chosen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        scores = x @ x.transpose(-1, -2)
        return scores.masked_fill(
            torch.eye(scores.shape[-1], dtype=torch.bool), torch.finfo(scores.dtype).min
        )


def test_the_lowest_number_is_that_of_the_models_own_dtype() -> None:
    module, probe = FilledIn(), {"x": torch.randn(2, 6, 8).numpy()}
    faulty = copy.deepcopy(module)
    with torch.no_grad():
        faulty.layers[1].weight.mul_(1.05)
    assert driftwalk.verify(module, copy.deepcopy(module), probe=probe, cache=False).ok
    report = driftwalk.verify(module, faulty, probe=probe, cache=False)
    assert report.verdict == "drift"
    assert report.cause == "layer.1"
