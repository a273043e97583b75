"""Random numbers in a forward: the same in every run of either side, and the user's own stay."""

from __future__ import annotations

import random
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import driftwalk
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from torch_nets import Block

X = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)
HAS_COMPILER = (
    shutil.which("c++") is not None and Path(sysconfig.get_path("include"), "Python.h").exists()
)
Draw = Callable[[torch.Tensor], torch.Tensor]


class Noise(nn.Module):
    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.draw(x)


class Drawing(nn.Module):
    def __init__(self, draw: Draw) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.ModuleList([Block(), Block(), Block()])
        self.noise = Noise(draw)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x if number else self.noise(x))
        return x


def by_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.random.rand(*x.shape)).to(x.dtype)


def masked(x: torch.Tensor) -> torch.Tensor:
    """ViT-MAE: which patches are kept is drawn."""
    order = torch.rand(x.shape[:2]).argsort(1)
    return x.gather(1, order[..., None].expand_as(x))


DRAWS: dict[str, Draw] = {
    "randn": lambda x: torch.randn(x.shape).to(x.dtype),
    "randn_like": torch.randn_like,
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "gumbel": F.gumbel_softmax,
    "numpy": by_numpy,
    "python": lambda x: x * random.random(),
    "masked patches": masked,
    "permuted": lambda x: x[:, torch.randperm(4)],
}


@pytest.mark.parametrize("candidate", ["torch", "emulated:bf16", "torch:cpu:fp64"])
@pytest.mark.parametrize("name", DRAWS)
def test_both_sides_draw_the_same_numbers(name: str, candidate: str) -> None:
    report = driftwalk.verify(Drawing(DRAWS[name]), candidate, probe={"x": X}, cache=False)
    assert report.ok, report.reason
    assert any("draws random numbers in its forward (noise)" in note for note in report.notes)


def test_native_halves_draw_them_too() -> None:
    drawing = Drawing(DRAWS["randn_like"])
    report = driftwalk.verify(drawing, "torch:cpu:bf16", probe={"x": X}, cache=False)
    assert report.ok, report.reason


@pytest.mark.skipif(not HAS_COMPILER, reason="inductor needs a C++ compiler, and Python's headers")
def test_compiled_code_draws_them_too() -> None:
    from torch._inductor import config

    drawing = Drawing(DRAWS["randn_like"])
    with config.patch(compile_threads=1):  # no pool of processes for a few kernels
        report = driftwalk.verify(drawing, "torch,compile=inductor", probe={"x": X}, cache=False)
    assert report.ok, report.reason


@pytest.mark.parametrize("name", ["dropout", "numpy"])
def test_a_fault_behind_the_noise_is_placed(name: str) -> None:
    other = Drawing(DRAWS[name])
    with torch.no_grad():
        other.layers[1].inner.weight.mul_(1.05)
    report = driftwalk.verify(Drawing(DRAWS[name]), other, probe={"x": X}, cache=False)
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"


def test_every_run_of_a_backend_gives_the_same(tmp_path: Any) -> None:
    model = Drawing(DRAWS["randn"])
    backend, probe = driftwalk.backend("torch", model), make_probe(open_model(model), {"x": X})
    first, again, plain = backend.trace(probe), backend.trace(probe), backend.run(probe)
    assert np.array_equal(first["layer.2"], again["layer.2"])
    assert np.array_equal(first["layer.2"], plain["output"])


def test_the_user_s_own_numbers_are_untouched() -> None:
    model = Drawing(lambda x: DRAWS["randn"](x) + by_numpy(x) * random.random())
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    expected = torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    driftwalk.verify(model, "emulated:bf16", probe={"x": X}, cache=False)
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()) == expected


class OwnGenerators(Drawing):
    """Draws from generators that it holds."""

    def __init__(self) -> None:
        super().__init__(self._drawn)
        self.torch = torch.Generator().manual_seed(3)
        self.numpy = np.random.default_rng(4)
        self.old = np.random.RandomState(5)
        self.python = random.Random(6)

    def _drawn(self, x: torch.Tensor) -> torch.Tensor:
        scale = float(self.numpy.random()) + float(self.old.rand()) + self.python.random()
        return torch.randn(x.shape, generator=self.torch).to(x.dtype) * scale


@pytest.mark.parametrize("candidate", ["torch", "emulated:bf16"])
def test_generators_of_the_model_s_own_are_put_back(candidate: str) -> None:
    model = OwnGenerators()
    before = model.python.getstate(), model.torch.get_state().tolist()
    report = driftwalk.verify(model, candidate, probe={"x": X}, cache=False)
    assert report.ok, report.reason
    assert (model.python.getstate(), model.torch.get_state().tolist()) == before


def from_the_clock(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng().standard_normal(tuple(x.shape))).to(x.dtype)


def test_what_cannot_be_reset_is_unverified_and_named() -> None:
    report = driftwalk.verify(Drawing(from_the_clock), "torch", probe={"x": X}, cache=False)
    assert report.verdict == "unverified"
    assert any("something else in every run: it begins in noise" in note for note in report.notes)


class DrawsInVain(Drawing):
    """Layer drop: drawn in every call, used in training only."""

    def __init__(self) -> None:
        super().__init__(self._maybe)

    def _maybe(self, x: torch.Tensor) -> torch.Tensor:
        skipped = torch.rand([]) < 0.5
        return x * 0 if self.training and skipped else x


def test_numbers_that_do_not_matter_are_not_mentioned() -> None:
    report = driftwalk.verify(DrawsInVain().eval(), "onnxruntime", probe={"x": X}, cache=False)
    assert report.ok, report.reason
    assert not any("random" in note for note in report.notes)


def test_a_graph_would_draw_others_and_is_refused() -> None:
    with pytest.raises(driftwalk.DriftwalkError, match=r"draws random numbers .*\(noise\)"):
        driftwalk.verify(Drawing(DRAWS["randn"]), "onnxruntime", probe={"x": X}, cache=False)


def test_vit_mae() -> None:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    config = ViTMAEConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        image_size=16, patch_size=4, decoder_hidden_size=16, decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2, decoder_intermediate_size=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = ViTMAEForPreTraining(config).eval()
    pixels = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    for candidate in ("torch", "emulated:bf16"):
        report = driftwalk.verify(model, candidate, probe={"pixel_values": pixels}, cache=False)
        assert report.ok, report.reason
