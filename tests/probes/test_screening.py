"""Large sets are screened: what judging every probe whole finds, screening finds as well."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import driftwalk
from driftwalk.adapter import Backend, BackendInfo, Sink
from driftwalk.dtypes import Array
from driftwalk.exercised import Exercised
from driftwalk.judge.constants import REMEMBERED_PROBES, UNUSUAL_SIZES, YARDSTICKS
from driftwalk.judge.habit import STEP, Habit, sizes_of, step_of
from driftwalk.judge.honest import honest
from driftwalk.measure.norms import NORM_NAMES, distance
from driftwalk.result import Report
from driftwalk.spec import Spec
from driftwalk.states import Probe
from driftwalk.tasks.probes import run
from driftwalk.tasks.probes.collecting import Collected
from driftwalk_backends.torch_eager import TorchEager
from driftwalk_reports.probe_words import set_view

WRONG, COUNT, FAULTY = 59, 16, [5, 8, 9, 12]
"""A token that few probes of many have, and the numbers of these probes."""


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, initializer_range=0.1)
    return GPT2LMHeadModel(config).eval()


def with_wrong_row(model: torch.nn.Module, factor: float, attention: str = "") -> Any:
    """A copy that is wrong for one token alone; another attention rounds otherwise everywhere."""
    other: Any = copy.deepcopy(model)
    if attention:
        other.set_attn_implementation(attention)
    table = other.transformer.wte
    other.lm_head.weight = torch.nn.Parameter(table.weight.detach().clone())
    with torch.no_grad():
        table.weight[WRONG] *= factor
    return other


def probes(count: int = COUNT) -> list[dict[str, Array]]:
    ids = np.random.default_rng(0).integers(3, WRONG, (count, 2, 12))
    ids[np.array(FAULTY) - 1, 1, 7] = WRONG
    return [{"input_ids": one} for one in ids]


def rows_of(report: Report) -> list[tuple[str, str | None, str | None]]:
    return [(row.verdict, row.first_divergence, row.root_cause) for row in report.probes]


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SMALL_SET", 4)


@pytest.fixture
def model() -> GPT2LMHeadModel:
    return gpt2()


@pytest.mark.parametrize(
    ("factor", "attention", "verdict"),
    [(1 + 2e-5, "", "drift"), (1 + 2e-5, "eager", "drift"), (1.0, "eager", "pass")],
)
def test_screened_or_judged_whole_a_set_comes_to_the_same(
    model: GPT2LMHeadModel, factor: float, attention: str, verdict: str
) -> None:
    candidate = with_wrong_row(model, factor, attention)
    given: dict[str, Any] = {"probes": probes()}
    whole = driftwalk.verify(model, candidate, **given, thorough=True)
    report = driftwalk.verify(model, candidate, **given)
    assert whole.probe_set is not None
    assert report.probe_set is not None
    assert whole.probe_set.screened == 0
    assert report.probe_set.screened > COUNT // 3
    assert rows_of(report) == rows_of(whole)
    assert report.verdict == verdict
    assert report.worst is not None
    assert not report.worst.screened
    if verdict == "drift":
        assert [row.number for row in report.probes if row.verdict == "drift"] == FAULTY
        assert report.worst.number in FAULTY
    # How far units of activations were driven is known of probes that were judged whole.
    assert used_rows(report) == used_rows(whole)


def used_rows(report: Report) -> Exercised:
    assert report.probe_set is not None
    assert report.probe_set.exercised is not None
    return replace(report.probe_set.exercised, driven=())


def test_a_policy_without_a_truth_is_the_same_screened_or_not(model: GPT2LMHeadModel) -> None:
    candidate = with_wrong_row(model, 1 + 1e-6, "eager")
    given: dict[str, Any] = {"probes": probes(), "policy": "dtype"}
    report = driftwalk.verify(model, candidate, **given)
    whole = driftwalk.verify(model, candidate, **given, thorough=True)
    assert report.probe_set is not None
    assert report.probe_set.screened > COUNT // 3
    assert [r.used for r in report.probes] == pytest.approx([r.used for r in whole.probes])
    assert [r.kl for r in report.probes] == pytest.approx([r.kl for r in whole.probes])


class Fused(Backend):
    """Gives other bits when nobody looks, and for one token something else altogether."""

    name = "fused"

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(Spec("fused"))
        self._inner = TorchEager.around(copy.deepcopy(module))

    @classmethod
    def offers(cls) -> list[Any]:
        return []

    @property
    def info(self) -> BackendInfo:
        return BackendInfo("fused", "fused", "cpu", "fp32")

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        outputs = dict(self._inner._forward(probe, sink))
        if sink is None:
            factor = 1.5 if WRONG in probe.inputs["input_ids"] else 1 + 1e-7
            outputs["logits"] = outputs["logits"] * np.float32(factor)
        return outputs


def test_a_fault_that_nobody_looking_brings_is_found_in_few_probes_of_many(
    model: GPT2LMHeadModel,
) -> None:
    report = driftwalk.verify(model, Fused(model), probes=probes())
    assert report.probe_set is not None
    assert report.probe_set.screened > COUNT // 3
    assert [row.number for row in report.probes if row.verdict == "unverified"] == FAULTY
    assert "capturing states changed" in report.reason


def test_a_small_set_is_judged_whole(model: GPT2LMHeadModel) -> None:
    report = driftwalk.verify(model, copy.deepcopy(model), probes=probes()[: run.SMALL_SET])
    assert report.probe_set is not None
    assert (report.probe_set.count, report.probe_set.screened) == (run.SMALL_SET, 0)


def test_the_first_probe_of_each_rough_shape_is_judged_whole(model: GPT2LMHeadModel) -> None:
    given = [{"input_ids": one["input_ids"][:, : 3 + n % 9]} for n, one in enumerate(probes())]
    report = driftwalk.verify(model, copy.deepcopy(model), probes=given)
    first = {n: row for n, row in enumerate(report.probes) if not row.screened}
    assert set(first) >= {0, 1, 2, 6}  # lengths 3 and 4, 5 to 8, 9 to 11; two in any case
    assert "were screened" in " ".join(set_view(report).screened)  # type: ignore[union-attr]


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "unverified"), (1.5, "drift")])
def test_what_was_run_before_ctrl_c_is_told(
    model: GPT2LMHeadModel,
    factor: float,
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = probes()
    plain = Collected.add

    def add(self: Collected, row: Any, *rest: Any) -> None:
        plain(self, row, *rest)
        if row.number == FAULTY[0] + 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Collected, "add", add)
    report = driftwalk.verify(model, with_wrong_row(model, factor), probes=given)
    assert report.verdict == verdict
    assert report.probe_set is not None
    assert report.probe_set.stopped
    assert len(report.probes) == FAULTY[0] + 2


def test_a_step_is_free_of_the_error_that_a_layer_was_handed() -> None:
    rng = np.random.default_rng(0)
    before, added, handed, own = (rng.standard_normal((1, 40, 64)) for _ in range(4))
    true, noise = before + added, 1e-7 * own
    known = honest(true + noise, true, None, 2.0**-24)
    wrong = noise.copy()
    wrong[0, 7] *= 40
    sizes = []
    for made in (noise, wrong):
        error = 1e-5 * handed + made
        assert sizes_of(distance(true + error, true, None, known.weights), known)[0] > 50
        step = step_of((true + error, true), (before + 1e-5 * handed, before), None, known)
        sizes.append(sizes_of(step, known))
    assert max(sizes[0]) == pytest.approx(1.0, abs=0.3)
    usual = Habit()
    usual.learn({"layer.0": sizes[0]})
    assert usual.unusual({"layer.0": sizes[1]}) == "layer.0"


class TestHabit:
    USUAL = (1.0,) * len(NORM_NAMES)

    def learned(self, *sizes: float) -> Habit:
        habit = Habit()
        for size in sizes:
            habit.learn({"layer.0": self.USUAL, "layer.1": (size,) * len(NORM_NAMES)})
        return habit

    def cases(self) -> Iterator[tuple[str, float]]:
        yield from UNUSUAL_SIZES.items()

    def test_a_size_beyond_what_is_usual_is_told_by_its_point(self) -> None:
        habit = self.learned(1.0, 1.0, 1.0)
        for at, (name, most) in enumerate(self.cases()):
            assert NORM_NAMES[at] == name
            for factor, told in ((0.99, ""), (1.01, "layer.1")):
                sizes = [1.0] * len(NORM_NAMES)
                sizes[at] = factor * most
                assert habit.unusual({"layer.0": self.USUAL, "layer.1": tuple(sizes)}) == told

    def test_nothing_is_usual_before_anything_was_learned(self) -> None:
        assert Habit().unusual({"layer.0": self.USUAL}) == "layer.0"
        assert self.learned(1.0).unusual({"layer.7": self.USUAL}) == "layer.7"

    def test_what_is_no_number_is_never_usual(self) -> None:
        nan = (float("nan"),) * len(NORM_NAMES)
        assert self.learned(1.0, 1.0).unusual({"layer.1": nan}) == "layer.1"

    def test_where_there_was_no_error_any_is_unusual(self) -> None:
        tiny = (1e-9,) * len(NORM_NAMES)
        assert self.learned(0.0, 0.0).unusual({"layer.1": tiny}) == "layer.1"

    def test_a_step_that_is_mostly_what_a_layer_was_handed_tells_nothing(self) -> None:
        many, more = ((size,) * len(NORM_NAMES) for size in (2 * YARDSTICKS, 9 * YARDSTICKS))
        for name, told in (("layer.0", "layer.0"), (f"layer.0{STEP}", "")):
            habit = Habit()
            habit.learn({name: many})
            assert habit.unusual({name: more}) == told

    def test_the_latest_probes_say_what_is_usual(self) -> None:
        sizes = {"layer.1": (9.0,) * len(NORM_NAMES)}
        assert self.learned(9.0, *[1.0] * 3).unusual(sizes) == ""
        assert self.learned(9.0, *[1.0] * REMEMBERED_PROBES).unusual(sizes) == "layer.1"
