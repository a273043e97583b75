"""The self-test: what it counts, what it calls right, and that a broken gate does not pass it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import driftwalk.tasks.selftest.run as under_test
import zoo
from driftwalk.document import to_json
from driftwalk.errors import BackendError, UsageError
from driftwalk.tasks.selftest.result import SelfTest
from driftwalk.tasks.selftest.run import selftest
from driftwalk_backends.faults import code, planning
from driftwalk_backends.faults.planning import Fault, Plan
from driftwalk_reports.selftest import render

WTE = "transformer.wte.weight"
IDS = {"input_ids": torch.arange(3, 19).reshape(2, 8).numpy()}


def flip(name: str, points: tuple[str, ...], element: int, bit: int = 29) -> Fault:
    settings = {"role": "exponent_low", "bit": bit, "element": element, "dtype": "fp32"}
    return Fault("bit_flip", points, name, f"{name} bit {bit} of {element}", settings)


def scaled(name: str, points: tuple[str, ...], by: float) -> Fault:
    return Fault("scaled_weight", points, name, f"{name} times 1 + {by}", {"scale": by})


Run = Callable[..., SelfTest]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The self-test with faults given by hand."""

    def run(model: nn.Module, *given: Fault, candidate: str = "torch") -> SelfTest:
        monkeypatch.setattr(planning, "plan", lambda *_: Plan(given, {}))
        return selftest(model, candidate, probe=IDS, trusted=0)

    return run


@pytest.fixture(scope="module")
def whole() -> SelfTest:
    return selftest(zoo.build("gpt2"), "torch", 44, trusted=0)


def test_a_sound_gate_catches_and_places_what_is_above_the_noise(whole: SelfTest) -> None:
    assert whole.exit_code == 0
    assert len(whole.owed) > 25
    assert all(trial.outcome == "placed" for trial in whole.owed)
    assert {t.outcome for t in whole.trials if not t.owed} <= {"placed", "hidden", "no_effect"}


def test_the_counts_add_up(whole: SelfTest) -> None:
    assert len(whole.trials) == 44
    assert sum(row.injected for row in whole.kinds) == len(whole.counted)
    for row in whole.kinds:
        assert row.injected == row.caught + row.hidden + row.missed
    assert [row.point for row in whole.layers][:2] == ["embed", "layer.0"]
    assert sum(row.faults for row in whole.layers) == len(whole.counted)


def test_what_is_caught_is_larger_than_what_hides(whole: SelfTest) -> None:
    for row in whole.layers:
        if row.smallest_caught is not None and row.largest_missed is not None:
            assert row.largest_missed < row.limit
            assert row.smallest_caught > row.limit / 100


def test_the_same_seed_gives_the_same_result() -> None:
    runs = [
        selftest(zoo.build("vit"), "torch", 10, seed=seed, trusted=0).trials for seed in (3, 3, 4)
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_tied_weight_is_right_where_it_first_acts(run: Run) -> None:
    points = ("embed", "logits")
    used, unused = flip(WTE, points, 5 * 32 + 3), flip(WTE, points, 90 * 32 + 3)
    result = run(zoo.build("gpt2"), used, unused)
    assert [trial.right for trial in result.trials] == ["embed", "logits"]
    assert [trial.root_cause for trial in result.trials] == ["embed", "logits"]
    assert [trial.outcome for trial in result.trials] == ["placed", "placed"]


def test_a_shared_block_is_right_at_its_first_layer(run: Run) -> None:
    name = "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    result = run(zoo.build("albert"), scaled(name, ("layer.0", "layer.1", "layer.2"), 0.1))
    assert result.trials[0].right == result.trials[0].root_cause == "layer.0"
    assert result.trials[0].outcome == "placed"


def test_a_fault_without_effect_is_listed_apart(run: Run) -> None:
    model = zoo.build("gpt2")
    bias = model.get_parameter("transformer.h.1.ln_1.bias")
    bias.data.zero_()
    dropped = Fault("dropped_bias", ("layer.1",), "transformer.h.1.ln_1.bias", "dropped")
    result = run(model, dropped)
    assert result.trials[0].outcome == "no_effect"
    assert result.exit_code == 3, "nothing was shown"
    assert "no fault" in render(result)


def test_a_fault_in_the_noise_is_an_honest_miss(run: Run) -> None:
    result = run(zoo.build("gpt2"), scaled("transformer.h.1.mlp.c_fc.weight", ("layer.1",), 2e-7))
    trial = result.trials[0]
    assert trial.outcome == "hidden"
    assert 0 < trial.effect < 1e-7
    assert trial.excess < 1
    assert result.exit_code == 0


def test_a_fault_that_overflows_is_caught(run: Run) -> None:
    result = run(
        zoo.build("llama"), flip("model.layers.1.mlp.down_proj.weight", ("layer.1",), 7, 30)
    )
    assert result.trials[0].outcome == "placed"
    assert result.trials[0].right == "layer.1"
    json.loads(to_json(result), parse_constant=pytest.fail)


@pytest.mark.parametrize("candidate", ["emulated:fp16", "emulated:bf16"])
def test_half_precision_candidates(run: Run, candidate: str) -> None:
    name, points = "model.layers.1.mlp.down_proj.weight", ("layer.1",)
    result = run(
        zoo.build("llama"),
        scaled(name, points, 0.5),
        scaled(name, points, 1e-6),
        candidate=candidate,
    )
    assert [trial.outcome for trial in result.trials] == ["placed", "hidden"]


FAULT = scaled("transformer.h.1.mlp.c_fc.weight", ("layer.1",), 0.1)


def test_a_gate_that_sees_nothing_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test._Gate, "_judge", lambda *_: ("pass", None, None))
    result = run(zoo.build("gpt2"), FAULT)
    assert result.trials[0].outcome == "missed"
    assert result.exit_code == 1
    assert "not caught" in render(result)


def test_a_gate_that_blames_the_wrong_layer_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test._Gate, "check_clean", lambda *_: None)
    monkeypatch.setattr(under_test, "root_cause", lambda *_: "embed")
    result = run(zoo.build("gpt2"), FAULT)
    assert result.trials[0].outcome == "misplaced"
    assert result.exit_code == 1
    assert "blamed on embed" in " ".join(render(result).split())


def test_a_candidate_that_drifts_without_a_fault_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(under_test, "root_cause", lambda *_: "embed")
    with pytest.raises(BackendError, match="without any fault"):
        selftest(zoo.build("gpt2"), "torch", 3, trusted=0)


def test_a_faulty_model_that_cannot_run_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(code._CHANGES, "leaking_mask", lambda *_: torch.zeros(3, 5))
    settings = {"argument": "attention_mask"}
    odd = Fault("leaking_mask", ("layer.1",), "transformer.h.1", "odd", settings)
    result = run(zoo.build("gpt2"), odd, FAULT)
    assert [trial.outcome for trial in result.trials] == ["not_built", "placed"]
    assert "could not run" in render(result)


@pytest.mark.parametrize("candidate", ["trace:golden.trace", "command:./port", "truth"])
def test_a_candidate_that_can_take_no_fault_is_refused(candidate: str) -> None:
    with pytest.raises(UsageError):
        selftest(zoo.build("gpt2"), candidate)


def test_the_json_is_strict_and_complete(whole: SelfTest) -> None:
    data: dict[str, Any] = json.loads(to_json(whole), parse_constant=pytest.fail)
    assert data["summary"]["exit_code"] == 0
    assert data["summary"]["above_noise"] == data["summary"]["above_noise_placed"]
    assert len(data["trials"]) == 44
    assert {row["kind"] for row in data["kinds"]} == {trial["kind"] for trial in data["trials"]}
