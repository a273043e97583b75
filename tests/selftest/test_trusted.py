"""Faults in what the gate trusts: none gets through, and a gate that trusts blindly is caught."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk import meeting
from driftwalk.document import to_json
from driftwalk.judge import calibrate
from driftwalk.judge.walk import Walk
from driftwalk.judge.witness import Witness
from driftwalk.mixture import Mixture
from driftwalk.progress import Progress
from driftwalk.registry import create
from driftwalk.tasks.selftest.result import FAILED, SelfTest, TrustedTrial
from driftwalk.tasks.selftest.run import _Gate, selftest
from driftwalk.tasks.selftest.trusted import Told, _tried, answer, own_cache, tell_lies
from driftwalk_backends import given, padding
from driftwalk_backends.anatomy import examine
from driftwalk_backends.faults.trusted import planning
from driftwalk_backends.faults.trusted.lie import Ground, Setup
from driftwalk_backends.faults.trusted.witnesses import keep_bits, void_truth
from driftwalk_backends.fingerprint import Evidence
from driftwalk_backends.model_outputs import OutputPoints
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_reports.selftest import render

Tell = Callable[..., Told]
Blind = Callable[[pytest.MonkeyPatch], None]


def grounded(module: nn.Module, opened: Any, probe: Any = None) -> Ground:
    """What lies are made from, for a torch candidate."""
    model = open_model(module)
    fixed = make_probe(model, probe)
    clean, reference = (opened(create("torch", model)) for _ in range(2))
    trace = reference.trace(fixed)
    gate = _Gate(Witness(model, fixed, False, Progress()), clean.info, reference, trace)
    (layout,) = model._layouts.values()
    anatomy = examine(model, fixed, layout)
    return Ground(model, fixed, anatomy, clean, 0, gate.weigh, gate.is_plain)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    mask = np.ones((3, 8), np.int64)
    mask[0, 6:] = mask[1, :2] = 0
    ids = np.random.default_rng(0).integers(3, 99, mask.shape)
    with ExitStack() as stack:
        probe = {"input_ids": ids, "attention_mask": mask}
        yield grounded(zoo.build("bert"), stack.enter_context, probe)


@pytest.fixture
def tell(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Tell lies of one kind."""

    def tell(kind: str, number: int = 1, about: Ground = ground, seed: int = 0) -> Told:
        monkeypatch.setattr(planning, "TRUSTED", {kind: TRUSTED[kind]})
        return tell_lies(replace(about, seed=seed), number, Progress())

    return tell


TRUSTED = planning.TRUSTED


@pytest.fixture(scope="module")
def whole() -> SelfTest:
    return selftest(zoo.build("gpt2"), "torch", 1, trusted=1)


def test_no_kind_of_lie_gets_through(whole: SelfTest) -> None:
    assert [row.kind for row in whole.trusted_kinds] == list(TRUSTED)
    assert all(trial.answer in ("caught", "unverified") for trial in whole.trusted)
    sound = {t.kind: t.answer for t in whole.trusted if t.kind not in WITNESSES}
    assert set(sound.values()) == {"caught"}, "with a sound truth nothing is left open"
    assert whole.exit_code == 0


WITNESSES = ("void_truth", "swollen_yardstick")


def test_it_is_told_in_json_and_on_a_terminal(whole: SelfTest) -> None:
    data = json.loads(to_json(whole), parse_constant=pytest.fail)
    assert data["summary"]["trusted"] == {"told": 7, "caught": 5, "unverified": 2, "failed": 0}
    assert data["summary"]["injected"] == 1, "counted apart"
    text = render(whole)
    assert "7 of 7 faults in what the gate trusts did not get through" in " ".join(text.split())
    assert "swollen_yardstick" in text


def test_the_reference_is_named_with_its_layer(whole: SelfTest) -> None:
    first = next(trial for trial in whole.trusted if trial.kind == "wrong_reference")
    assert (first.verdict, first.at_fault, first.wrong) == ("drift", "reference", "reference")
    assert (first.root_cause,) == first.points


def test_a_broken_head_is_named(whole: SelfTest) -> None:
    head = next(trial for trial in whole.trusted if trial.kind == "broken_head")
    assert head.first_divergence == head.root_cause == "output.boxes"


# ---- a gate that trusts one thing blindly fails that kind ----


def blind_to_the_reference(patch: pytest.MonkeyPatch) -> None:
    def unjudged(*given: Any) -> Walk:
        *before, _, by_chance = given
        return Walk(*before, None, by_chance)

    patch.setattr(meeting, "Walk", unjudged)


def blind_to_witnesses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calibrate, "doubt_of", lambda *_: "")


def blind_to_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Evidence, "of", lambda *_: "always the same")


def blind_to_masks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(padding, "of_transformers", lambda _: True)
    patch.setattr(padding, "_check_rows", lambda _: None)


def blind_to_dtypes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(given, "_watched", lambda *_: Mixture("bf16"))


def blind_to_heads(patch: pytest.MonkeyPatch) -> None:
    real = OutputPoints.of

    def main(*args: Any) -> Any:
        return (pair for pair in real(*args) if pair[0].name == "logits")

    patch.setattr(OutputPoints, "of", main)
    patch.setattr(OutputPoints, "points", property(lambda self: (self.point(self.main),)))


BLIND: dict[str, Blind] = {
    "wrong_reference": blind_to_the_reference,
    "void_truth": blind_to_witnesses,
    "swollen_yardstick": blind_to_witnesses,
    "inverted_mask": blind_to_masks,
    "converted_dtype": blind_to_dtypes,
    "broken_head": blind_to_heads,
}


@pytest.mark.parametrize("kind", BLIND)
def test_a_gate_that_trusts_blindly_is_found_out(
    kind: str, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        BLIND[kind](patch)
        (trial,) = tell(kind).trials
    assert trial.answer == "missed", trial


def test_a_gate_that_believes_its_cache_is_found_out(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        blind_to_changes(patch)
        trials = tell("stale_cache", 2).trials
    # The stored truth agrees with the earlier version. A candidate of that version is seen all the
    # same, by the reference's own blocks; where both sides are of it, nothing is.
    assert [trial.answer for trial in trials] == ["caught", "missed"]


def test_a_right_candidate_is_not_accused_by_a_broken_truth(ground: Ground) -> None:
    lie = next(lie for lie in void_truth(ground) if lie.description.endswith("is right"))
    trial = _tried(lie, ground.candidate)
    assert trial.wrong == "nobody"
    assert trial.answer in ("cleared", "unverified")


def test_where_only_widened_casts_lie_a_second_opinion_is_taken(tell: Tell) -> None:
    (trial,) = tell("void_truth", seed=3).trials
    assert "where casts are widened" in trial.description
    assert trial.answer == "caught"


def test_every_way_to_take_a_dtype_for_another_is_caught(tell: Tell) -> None:
    trials = tell("converted_dtype", 4).trials
    assert [trial.answer for trial in trials] == ["caught"] * 4
    said = " | ".join(trial.description for trial in trials)
    for way in ("is in bf16", "overflows in fp16", "nothing uses", "gives bf16 numbers"):
        assert way in said


# ---- around it ----


def test_the_users_cache_is_left_alone(
    tell: Tell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))
    assert tell("stale_cache").trials[0].answer == "caught"
    assert os.environ["DRIFTWALK_CACHE"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with own_cache() as folder:
        assert os.environ["DRIFTWALK_CACHE"] == str(folder)
    assert not folder.exists()


def test_a_cache_that_stored_nothing_told_no_lie(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evidence, "of", lambda *_: "")
    (trial,) = tell("stale_cache").trials
    assert trial.answer == "not_built"
    assert "stored" in trial.note


class Plain(nn.Module):
    """Code of unknown version, without a mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def test_what_a_model_has_no_room_for_is_named(tell: Tell) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 8), np.float32)
    with ExitStack() as stack:
        plain = grounded(Plain().eval(), stack.enter_context, {"x": x})
        assert "no known version" in tell("stale_cache", about=plain).absent["stale_cache"]
        assert "attention_mask" in tell("inverted_mask", about=plain).absent["inverted_mask"]


@pytest.mark.parametrize("kind", ["wrong_reference", "inverted_mask", "broken_head"])
def test_the_seed_says_which_lies_are_told(kind: str, ground: Ground) -> None:
    told = [next(TRUSTED[kind](replace(ground, seed=seed))).description for seed in (0, 0, 1)]
    assert told[0] == told[1] != told[2]


@pytest.fixture(scope="module")
def drifted() -> driftwalk.Report:
    model = zoo.build("gpt2")
    wrong = zoo.build("gpt2")
    wrong.transformer.h[1].mlp.c_fc.weight.data *= 1.1
    return driftwalk.verify(model, candidate=wrong, batch=1, length=4)


@pytest.mark.parametrize(
    ("wrong", "points", "changed", "expected"),
    [
        ("candidate", ("layer.1",), {}, "caught"),
        ("candidate", ("layer.0",), {}, "misplaced"),
        ("reference", ("layer.1",), {}, "accused"),
        ("both", ("layer.1",), {}, "accused"),
        ("candidate", ("layer.1",), {"at_fault": "both"}, "accused"),
        ("nobody", (), {}, "accused"),
        ("candidate", ("layer.1",), {"cause": None, "at_fault": None}, "caught"),
        ("candidate", ("layer.1",), {"verdict": "pass"}, "missed"),
        ("nobody", (), {"verdict": "pass"}, "cleared"),
        ("nobody", (), {"verdict": "unverified"}, "unverified"),
    ],
)
def test_answers(
    ground: Ground,
    drifted: driftwalk.Report,
    wrong: Any,
    points: tuple[str, ...],
    changed: dict[str, Any],
    expected: str,
) -> None:
    case = Setup(ground.model, ground.candidate, ground.probe, wrong, points)
    assert answer(case, replace(drifted, **changed)) == expected


@pytest.mark.parametrize("failed", FAILED)
def test_a_lie_that_got_through_fails_the_selftest(whole: SelfTest, failed: Any) -> None:
    lie: TrustedTrial = replace(whole.trusted[0], answer=failed)
    result = replace(whole, trusted=(lie, *whole.trusted[1:]))
    assert result.exit_code == 1
    text = " ".join(render(result).split())
    assert f"✗ wrong_reference: {lie.description}".split()[2] in text
    said = {"missed": "it passed", "accused": "only the reference is wrong"}
    assert said.get(failed, f"expected {lie.points[0]}") in text


def test_bits_are_rounded_to_nearest() -> None:
    given = torch.tensor([1.0, 1.01, -3.3e-5, 70000.0, 0.0])
    assert torch.equal(keep_bits(given, 8), given.to(torch.bfloat16).float())
