"""Gradients in the search for the worst input: floats are moved where a module gives more."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import ViTConfig, ViTModel

from driftwalk.api import verify_all
from driftwalk.stage import make_probe, open_model
from driftwalk.states import Probe
from driftwalk.tasks.probes import search as searching
from driftwalk.tasks.probes.run import own_set
from driftwalk_backends.probe_sets import gradients
from driftwalk_backends.probe_sets.gradients import climbed, reworded
from probes.test_sets import gpt2

PATH = "layers.1.mlp.activation_fn"
RUNS = 20


def vit() -> Any:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        initializer_range=0.3,
    )
    return ViTModel(config, add_pooling_layer=False).eval()


def largest(model: Any, probe: Probe) -> float:
    """The largest value that the activation gives."""
    seen: list[float] = []
    part = dict(model.named_modules())[PATH]
    handle = part.register_forward_hook(lambda _, __, out: seen.append(float(out.abs().max())))
    with torch.no_grad():
        model(pixel_values=torch.tensor(probe.inputs["pixel_values"]))
    handle.remove()
    return seen[0]


def cut_off(model: nn.Module, limit: float) -> nn.Module:
    other = copy.deepcopy(model)
    part = dict(other.named_modules())[PATH]
    part.register_forward_hook(lambda _, __, out: out.clamp(max=limit))
    return other


def searched(model: Any, corpus: Path, runs: int = RUNS) -> searching.Found:
    candidate = cut_off(model.module, LIMIT)
    given: dict[str, Any] = {"policy": "dtype", "blame": False, "runs": runs}
    return searching.search(verify_all, model, candidate, corpus, probes="builtin:edge", **given)


LIMIT = 7.4
"""One and a half times what any probe of the built-in set has there."""


def test_a_fault_above_a_threshold_is_found_by_climbing_and_not_by_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SHRINKS", 0)
    model = open_model(vit())
    usual: list[Any] = [entry.given for entry in own_set(model, "builtin:edge").read()]
    assert max(largest(model.module, one) for one in usual) * 1.4 < LIMIT
    found = searched(model, tmp_path / "uphill")
    assert found.start <= 1 < found.worst.used
    monkeypatch.setattr(searching, "UPHILL_SHARE", 0.0)
    assert searched(model, tmp_path / "by chance").worst.used <= 1


def test_the_same_seed_climbs_alike_stopped_in_between_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SHRINKS", 0)
    for runs in (3, 7):
        searched(open_model(vit()), tmp_path / "stopped", runs)
    searched(open_model(vit()), tmp_path / "at once", 7)
    lists = [json.loads((tmp_path / n / "search.json").read_text()) for n in ("stopped", "at once")]
    assert lists[0] == lists[1]
    assert lists[0]["runs"] == 7


def test_a_climb_drives_its_module_farther_and_stays_within_bounds() -> None:
    model = open_model(vit())
    probe = make_probe(model)
    rng = np.random.default_rng(0)
    many = climbed(model, probe, PATH, 0.2, {"pixel_values": 2.0}, 5, rng)
    assert len(many) == 5
    for made in many:
        assert np.abs(made["pixel_values"]).max() <= 2.0
        assert made["pixel_values"].dtype == probe.inputs["pixel_values"].dtype
    assert len({Probe(made).sha256 for made in many}) == 5
    other = Probe(many[0], "climbed")
    assert largest(model.module, other) > 1.1 * largest(model.module, probe)
    assert all(weight.grad is None for weight in model.module.parameters())


class Forgets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.layer(x)  # type: ignore[no-any-return]


def test_where_there_is_no_gradient_nothing_is_climbed() -> None:
    model = open_model(Forgets().eval())
    probe = Probe({"x": np.ones((2, 4), np.float32)})
    rng = np.random.default_rng(0)
    assert climbed(model, probe, "layer", 0.2, {"x": 1.0}, 3, rng) == []
    assert climbed(model, probe, "no such module", 0.2, {"x": 1.0}, 3, rng) == []
    assert climbed(model, probe, "layer", 0.2, {"x": 0.0}, 3, rng) == []


def test_tokens_are_exchanged_for_those_that_drive_a_module_farther(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = open_model(gpt2())
    path = "transformer.h.1.mlp.act"
    probe = make_probe(model)
    many = reworded(model, probe, path, 8, np.random.default_rng(0))
    assert len(many) == 8
    again = reworded(model, probe, path, 8, np.random.default_rng(0))
    padded = probe.inputs["attention_mask"] == 0
    for made, other in zip(many, again, strict=True):
        assert (made["input_ids"] == other["input_ids"]).all()
        assert (made["input_ids"] == probe.inputs["input_ids"])[padded].all()
        assert made["input_ids"].max() < model.module.config.vocab_size
    before, drives = (
        _driven(model.module, path, probe),
        [_driven(model.module, path, Probe(made)) for made in many],
    )
    assert max(drives) > 1.05 * before
    assert np.median(drives) > before
    monkeypatch.setattr(gradients, "STEPS", 1)
    one_step = reworded(model, probe, path, 8, np.random.default_rng(0))
    assert max(_driven(model.module, path, Probe(made)) for made in one_step) < max(drives)
    monkeypatch.undo()
    floats = Probe({"input_ids": np.ones(3, dtype=np.int64)})
    assert reworded(model, floats, path, 4, np.random.default_rng(0)) == []


def _driven(module: nn.Module, path: str, probe: Probe) -> float:
    """The largest number that a module gives in each row, padding left out; the rows added up."""
    seen: list[float] = []
    part = dict(module.named_modules())[path]
    keep = torch.tensor(probe.inputs["attention_mask"])[..., None]
    handle = part.register_forward_hook(
        lambda _, __, out: seen.append(float((out * keep).abs().flatten(1).amax(1).sum()))
    )
    with torch.no_grad():
        module(**{name: torch.tensor(array) for name, array in probe.inputs.items()})
    handle.remove()
    return seen[0]
