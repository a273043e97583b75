"""Runs in a row look at a module once; each of them still finds it as the first one did."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.adapter import RunsInARow
from driftwalk.dtypes import Array
from driftwalk.registry import create
from driftwalk.states import Probe, Trace, same_bits
from driftwalk.tasks.probes import run


class Remembering(nn.Module):
    """Every run changes what the next one gives: a number, a buffer, a list, a kept tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("mean", torch.zeros(8))
        self.calls, self.kept, self.latest = 0, [0.0], torch.zeros(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.kept.append(float(x.mean()))
        for block in self.blocks:
            x = x + torch.tanh(block(x)) * self.calls + sum(self.kept) + self.mean + self.latest
        self.mean += x.mean(dim=(0, 1))
        self.latest = x.mean(dim=(0, 1))
        return x


def probes(count: int) -> list[Probe]:
    rng = np.random.default_rng(0)
    return [Probe({"x": rng.standard_normal((1, 4, 8), np.float32)}) for _ in range(count)]


def arrays(trace: Trace) -> dict[str, Array]:
    return {state.point.name: state.array for state in trace}


@pytest.mark.parametrize("spec", ["torch", "emulated:bf16"])
def test_each_run_gives_what_it_gives_alone(spec: str) -> None:
    model, given = Remembering(), probes(4)
    before = copy.deepcopy(model.state_dict())
    alone = []
    for probe in given:
        with create(spec, model) as backend:
            alone.append(backend.trace(probe))
    with create(spec, model) as backend:
        assert isinstance(backend, RunsInARow)
        with backend.in_a_row():
            in_a_row = [backend.trace(probe) for probe in given]
        after = backend.trace(given[0])
    for one, other in zip([*alone, alone[0]], [*in_a_row, after], strict=True):
        assert same_bits(arrays(one), arrays(other))
    assert (model.calls, model.kept) == (0, [0.0])
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_a_run_that_fails_leaves_nothing_for_the_next() -> None:
    model, (first, second) = Remembering(), probes(2)
    bad = Probe({"x": np.zeros((1, 4, 5), np.float32)})
    with create("torch", model) as backend:
        alone = backend.trace(second)
        assert isinstance(backend, RunsInARow)
        with backend.in_a_row():
            backend.trace(first)
            with pytest.raises(driftwalk.DriftwalkError):
                backend.trace(bad)
            after = backend.trace(second)
    assert same_bits(arrays(alone), arrays(after))
    assert model.calls == 0


def test_what_a_set_uses_is_counted_in_runs_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks that count rows are there before a row begins, and stay for all of its runs."""
    monkeypatch.setattr(run, "SMALL_SET", 4)
    model = zoo.build("gpt2")
    ids = [np.array([[1, 2, 3 + n]]) for n in range(20)]
    given: dict[str, Any] = {"probes": [{"input_ids": one} for one in ids]}
    report = driftwalk.verify(model, copy.deepcopy(model), **given)
    assert report.probe_set is not None
    assert report.probe_set.screened > 10
    assert report.probe_set.exercised is not None
    table = next(one for one in report.probe_set.exercised.items if "wte" in one.where)
    assert table.used == len(np.unique(ids))
