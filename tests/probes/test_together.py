"""Probes of a large set are run together, side by side, and judged as if each had run alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import driftwalk
import zoo
from driftwalk.adapter import Backend, BackendInfo, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe, State, Trace
from driftwalk.tasks.probes import run, together
from driftwalk.tasks.probes.together import Runs, Together, run_together
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_eager import TorchEager

COUNT = 24
Log = list[tuple[str, str]]


class Noting(Backend):
    """Runs a module, notes on which probes, and cannot run one of them."""

    def __init__(self, name: str, module: torch.nn.Module, log: Log, bad: str = "") -> None:
        super().__init__(Spec(name))
        self._inner, self._log, self._bad = TorchEager.around(module), log, bad

    @classmethod
    def offers(cls) -> list[Any]:
        return []

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(self.spec.name, self.spec.name, "cpu", "fp32")

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        self._log.append((self.spec.name, probe.sha256))
        if probe.sha256 == self._bad:
            raise BackendError("this one is too much")
        return self._inner._forward(probe, sink)


@pytest.fixture
def model() -> torch.nn.Module:
    return zoo.build("gpt2")


def ids(count: int = COUNT) -> list[dict[str, Array]]:
    drawn = np.random.default_rng(0).integers(3, 60, (count, 1, 7))
    return [{"input_ids": one} for one in drawn]


def rounding_otherwise(model: torch.nn.Module) -> torch.nn.Module:
    """A copy with another attention, which is wrong for one token in a few probes."""
    other: Any = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    other.lm_head.weight = torch.nn.Parameter(other.lm_head.weight.detach().clone())
    with torch.no_grad():
        other.transformer.wte.weight[40] *= 1 + 3e-5
    return other


def test_together_or_one_by_one_every_number_is_the_same(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SMALL_SET", 4)
    found = []
    for most in (1, 7, together.MOST):
        monkeypatch.setattr(together, "MOST", most)
        report = driftwalk.verify(model, rounding_otherwise(model), probes=ids())
        found.append([astuple(row) for row in report.probes])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == COUNT
    assert {row.verdict for row in report.probes} == {"pass", "drift"}
    assert sum(row.screened for row in report.probes) > COUNT // 3


def test_a_side_runs_several_probes_before_the_next_one_does(model: torch.nn.Module) -> None:
    log: Log = []
    opened = open_model(model)
    probes = [make_probe(opened, one) for one in ids(3)]
    sides = Noting("one", model, log), Noting("two", model, log)
    made = run_together(opened, sides, probes)
    assert [name for name, _ in log] == ["one"] * 3 + ["two"] * 3
    assert [one.probe for one in made] == probes
    for one in made:
        assert [trace.backend.name for trace in one.traces] == ["one", "two"]
        assert all(trace.probe is one.probe for trace in one.traces)


@pytest.mark.parametrize("side", [0, 1])
def test_a_probe_that_one_side_cannot_run_keeps_no_other_from_it(
    model: torch.nn.Module, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SMALL_SET", 4)
    log: Log = []
    bad = make_probe(open_model(model), ids()[14]).sha256
    sides = [Noting(n, model, log, bad if at == side else "") for at, n in enumerate("ab")]
    report = driftwalk.verify(model, sides[1], sides[0], probes=ids())
    assert [row.number for row in report.probes if row.verdict == "unverified"] == [15]
    assert "too much" in next(row.reason for row in report.probes if row.number == 15)
    assert sum(row.screened for row in report.probes) > COUNT // 2


def test_a_side_that_cannot_run_in_a_row_is_run_for_each_probe(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SMALL_SET", 4)

    class Alone(Noting):
        def in_a_row(self) -> AbstractContextManager[None]:
            raise BackendError("not today")

    report = driftwalk.verify(model, Alone("alone", model, []), probes=ids())
    assert report.verdict == "pass"
    assert report.probe_set is not None
    assert (report.probe_set.count, report.probe_set.screened) == (COUNT, 0)


class Reuses(Noting):
    """Hands on arrays that it writes to in the next run, too."""

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        def reused(name: str, array: Array) -> Array:
            kept = self._kept.setdefault((name, array.shape), np.empty_like(array))
            kept[...] = array
            return kept.view()

        def hand_on(state: State) -> None:
            assert sink is not None
            sink(State(state.point, reused(state.point.name, state.array)))

        outputs = super()._forward(probe, None if sink is None else hand_on)
        return {name: reused(f"output {name}", array) for name, array in outputs.items()}

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        super().__init__(name, module, [])
        self._kept: dict[tuple[str, tuple[int, ...]], Array] = {}


@pytest.mark.parametrize("policy", ["calibrated", "dtype"])
def test_states_that_the_next_run_writes_over_hide_no_fault(
    model: torch.nn.Module, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SMALL_SET", 4)
    other = rounding_otherwise(model)
    with torch.no_grad():
        other.transformer.wte.weight[40] *= 1.05
    honest = [Noting(name, module, []) for name, module in (("a", model), ("b", other))]
    lying = Reuses("a", model), Reuses("b", other)
    found = []
    for reference, candidate in (honest, lying):
        report = driftwalk.verify(model, candidate, reference, probes=ids(), policy=policy)
        found.append([row.number for row in report.probes if row.verdict == "drift"])
    assert found[0] == found[1]
    assert len(found[0]) == 2


@given(st.integers(1, 1 << 23), st.integers(1, 1 << 12))
def test_no_more_probes_are_held_than_fit(numbers: int, length: int) -> None:
    """By what the states of the last ones took; the first time one alone is run."""
    probe = Probe({"input_ids": np.ones((1, length), np.int64)})
    together_now, waiting = Together(), [probe]
    assert together_now.enough(waiting)
    array = np.broadcast_to(np.float32(0), (numbers,))
    point, info = Point("layer.0", "h.0"), BackendInfo("side", "side", "cpu", "fp32")
    together_now.learn([Runs(probe, (Trace((State(point, array),), probe, info),))])
    together_now.learn([Runs(probe, failed="what failed says nothing of it")])
    while not together_now.enough(waiting):
        waiting.append(probe)
    held = numbers * (len(waiting) - 1)
    assert held < together.MOST_NUMBERS
    assert len(waiting) <= together.MOST
    assert len(waiting) == together.MOST or held + numbers >= together.MOST_NUMBERS
