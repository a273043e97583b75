"""Whole numbers that honest arithmetic chooses by chance are no drift, and excuse no other."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
from driftwalk.layer_drift import LayerDrift
from driftwalk.result import Report

WIDTH, TOKENS, CODES = 16, 40, 64


class Coder(nn.Module):
    """Blocks, and the number of the nearest of many codes for each token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.book = nn.Parameter(torch.randn(CODES, WIDTH) / WIDTH**0.5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return {"last": x, **self.chosen(x)}

    def chosen(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"codes": (x @ self.book.T).argmax(-1)}


class Counter(Coder):
    """How often each token is to be repeated, rounded; `long`: as often as that it is."""

    long = False

    def chosen(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        often = (
            torch.round(1.5 + 0.5 * (x @ self.book.T).tanh()[..., :4].sum(-1)).clamp(min=0).long()
        )
        if not self.long:
            return {"often": often}
        return {"frames": x[0].repeat_interleave(often[0], dim=0)}


def probe(tokens: int = TOKENS) -> dict[str, np.ndarray[Any, Any]]:
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(1, tokens, WIDTH, generator=generator).numpy()}


def row(report: Report, name: str) -> LayerDrift:
    found: LayerDrift = report.layer(name)
    return found


@pytest.mark.parametrize(("kind", "output"), [(Coder, "codes"), (Counter, "often")])
def test_what_half_precision_chooses_by_chance_is_no_drift(kind: type[Coder], output: str) -> None:
    module, inputs = kind(), probe(400)
    report = driftwalk.verify(module, "emulated:bf16", probe=inputs)
    judged = row(report, f"output.{output}")
    assert report.ok, (report.reason, report.first_divergence)
    assert judged.metrics is not None
    assert judged.metrics.max_abs > 0, "some choices must differ, or nothing is tested"
    assert judged.metrics.mismatched == 0
    assert "by chance" in judged.note


def test_another_half_precision_may_choose_otherwise_at_the_same_ties() -> None:
    """fp16 kernels of torch itself, not the emulation that is also the yardstick."""
    module, inputs = Coder(), probe(400)
    report = driftwalk.verify(module, copy.deepcopy(module).bfloat16(), probe=inputs)
    assert report.ok, (report.reason, report.first_divergence)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_choice_that_is_clear_must_be_the_same(dtype: torch.dtype) -> None:
    module, inputs = Coder(), probe()
    wrong = copy.deepcopy(module)
    with torch.inference_mode():
        used = module(torch.as_tensor(inputs["x"]))["codes"].flatten()
    codes, counts = used.unique(return_counts=True)
    wrong.book.data[int(codes[counts.argmax()])] *= -1  # one code is never found
    report = driftwalk.verify(module, wrong.to(dtype), probe=inputs)
    assert report.verdict == "drift"
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == "output.codes"


def test_a_length_that_is_rounded_by_chance_leaves_the_run_unverified() -> None:
    module = Counter()
    module.long = True
    report = driftwalk.verify(module, "emulated:bf16", probe=probe(400))
    assert report.verdict == "unverified", report.first_divergence
    assert "output.frames" in report.reason
    assert "rounded" in report.reason
    wrong = copy.deepcopy(module)
    wrong.layers[1].weight.data *= 1.1
    report = driftwalk.verify(module, wrong.bfloat16(), probe=probe(400))
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert driftwalk.verify(module, copy.deepcopy(module), probe=probe(400)).ok


def test_a_length_that_is_clear_must_be_the_same() -> None:
    module = Counter()
    module.long = True
    wrong = copy.deepcopy(module)
    wrong.book.data[:4] = 0
    report = driftwalk.verify(module, wrong, probe=probe())
    assert report.verdict == "drift"
    assert row(report, "output.frames").verdict == "shape"


def test_what_is_chosen_by_chance_is_stored_with_a_calibration(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))
    first, second = (driftwalk.verify(Coder(), "emulated:bf16", probe=probe(400)) for _ in range(2))
    assert first.ok
    assert first.layers == second.layers


class Rounded(nn.Module):
    """Whole numbers of floats: of integers and constants, and of what is computed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.place = nn.Embedding(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = (torch.arange(x.shape[1]).float() * 2 / 2).long()
        for layer in self.layers:
            x = torch.tanh(layer(x))
        cell = torch.floor(3 + 20 * x[..., 0])
        return x + self.place(at) + self.place(cell.long().clamp(0, 63))


def test_roundoffs_do_not_move_what_is_whole() -> None:
    """floor() gives 3, not 3 - 1e-3, of which an index would be 2."""
    from driftwalk.registry import create
    from driftwalk_backends.probes import make_probe
    from driftwalk_backends.sources import open_model

    model = open_model(Rounded())
    inputs = np.random.default_rng(0).standard_normal((1, 12, 8)).astype(np.float32)
    fixed = make_probe(model, {"x": inputs})
    found: dict[str, Any] = {}
    with create("truth", model) as truth:
        exact = truth.trace(fixed)
        truth.jittered(fixed, 2.0**-14, lambda s: found.update({s.point.name: s.array}))
    assert np.abs(found["logits"] - exact["logits"]).max() < 1e-2


class Hopeless(Counter):
    """Frames by chance, and beside them a number of which float32 leaves no digit."""

    long = True

    def chosen(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {**super().chosen(x), "lost": (x * 1e9).sin()}


def test_shapes_are_by_chance_where_the_truth_is_in_doubt_as_well():
    report = driftwalk.verify(Hopeless(), "emulated:bf16", probe=probe(200))
    assert report.verdict == "unverified", report.first_divergence
    assert row(report, "output.frames").verdict == "unknown"


class Keypoints(Coder):
    """Where a map of scores is equal to its own maximum nearby."""

    def chosen(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = (x @ self.book.T)[:, None]
        largest = nn.functional.max_pool2d(scores, 5, stride=1, padding=2)
        return {"keypoints": scores[scores == largest]}


def test_the_largest_of_some_numbers_is_one_of_them_whatever_is_rounded():
    model = Keypoints()
    report = driftwalk.verify(model, copy.deepcopy(model), probe=probe())
    assert report.verdict == "pass"
    assert row(report, "output.keypoints").shape[0] > 10
    wrong = copy.deepcopy(model)
    wrong.book.data *= 0
    report = driftwalk.verify(model, wrong, probe=probe())
    assert report.verdict == "drift", "how many there are is no matter of chance in float32"
    assert row(report, "output.keypoints").verdict == "shape"
