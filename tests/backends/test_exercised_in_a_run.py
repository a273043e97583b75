"""What a probe exercised of a model, as a run counts and reports it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.states import Probe
from driftwalk_backends.exercised import Watch
from driftwalk_backends.sources import open_model
from watched_models import Odd, exercised, item_of


def test_a_report_says_what_was_looked_at_and_still_passes() -> None:
    model = zoo.build("llama")
    probe = {"input_ids": np.array([[5, 6, 7]])}
    broken = zoo.build("llama")
    rows = [row for row in range(99) if row not in (5, 6, 7)]
    broken.model.embed_tokens.weight.data[rows] = math.nan
    report = driftwalk.verify(model, candidate=broken, probe=probe, policy="dtype")
    assert report.ok
    found = report.coverage.exercised
    assert found is not None
    total = sum(p.numel() for p in model.parameters())
    assert found.weights == (total - 96 * zoo.WIDTH) / total
    assert item_of(found, "embedding rows").used == 3


def test_each_probe_is_counted_by_itself() -> None:
    model = open_model(zoo.build("llama"))
    for count in (3, 5, 4):
        probe = {"input_ids": np.arange(1, 1 + count)[None]}
        report = driftwalk.verify(model, candidate="torch", probe=probe, policy="dtype")
        assert report.coverage.exercised is not None
        assert item_of(report.coverage.exercised, "embedding rows").used == count


def test_no_run_is_made_for_it_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.build("llama")
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    report = driftwalk.verify(model, candidate="torch", policy="dtype")
    assert report.coverage.exercised is not None
    with_it = len(calls)
    calls.clear()
    monkeypatch.setattr("driftwalk.verification.exercised", lambda *_: None)
    monkeypatch.setattr(Watch, "run", lambda self, module, inputs, run: run())
    driftwalk.verify(zoo.build("llama"), candidate="torch", policy="dtype")
    again = zoo.build("llama")
    again.register_forward_pre_hook(lambda *_: calls.append(1))
    driftwalk.verify(again, candidate="torch", policy="dtype")
    assert with_it == len(calls)


def test_a_recorded_reference_uses_the_run_of_the_candidate(tmp_path: Any) -> None:
    model = zoo.build("llama")
    driftwalk.record(model).save(tmp_path / "golden.trace")
    golden = f"trace:{tmp_path / 'golden.trace'}"
    report = driftwalk.verify(model, candidate="torch", reference=golden, policy="dtype")
    assert report.coverage.exercised is not None
    alone = driftwalk.verify(zoo.build("llama"), golden, golden, policy="dtype")
    assert alone.coverage.exercised is None
    assert any("was not run here" in note for note in alone.notes)


class Spoilsport(nn.Module):
    """A parameter that breaks whoever watches it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.overrides._get_current_function_mode() is not None:
            raise RuntimeError("watched")
        for block in self.blocks:
            x = block(x)
        return x


def test_a_model_that_cannot_be_watched_is_verified_all_the_same() -> None:
    probe = {"x": np.ones((2, 4), dtype=np.float32)}
    report = driftwalk.verify(Spoilsport(), candidate="torch", probe=probe, policy="dtype")
    assert report.ok
    found = report.coverage.exercised
    assert found is not None
    assert found.weights is None
    assert "watched" in found.unknown


def test_a_function_that_is_given_a_function_hides_weights() -> None:
    class Mapped(Odd):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = super().forward(ids)
            x.map_(x.clone(), lambda a, b: a + float(self.adapter.bias[0]))
            return x

    found = exercised(Mapped(), Probe({"ids": np.array([[3, 3, 1, 7, 9]])}))
    assert found.weights is None
    assert found.unknown
