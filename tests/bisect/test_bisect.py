"""`bisect` on torch models: what is named, and how a search ends that cannot be finished."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import driftwalk
from driftwalk.adapter import Backend, HasSwitches, Sink
from driftwalk.cli.app import app
from driftwalk.document import from_dict, to_json
from driftwalk.errors import UsageError
from driftwalk.spec import Spec
from driftwalk.states import Probe, State
from driftwalk.switches import Switch
from driftwalk.tasks.bisect.result import Bisection
from driftwalk_backends.sources import torch_model
from driftwalk_backends.torch_eager import TorchEager

X = np.random.default_rng(0).standard_normal((4, 6, 16)).astype("f")
NAMES = tuple(f"pass{number}" for number in range(6))


class OddNorm(nn.Module):
    """A layer norm with another power, which ONNX Runtime takes for a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(16)), nn.Parameter(torch.rand(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        away = x - x.mean(-1, keepdim=True)
        normed = away / torch.sqrt(away.pow(4.0).mean(-1, keepdim=True) + 1e-5)
        return normed * self.weight + self.bias


class Blocks(nn.Module):
    def __init__(self, count: int = 2, norm: type[nn.Module] = nn.Tanh) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = [nn.Sequential(nn.Linear(16, 16), norm()) for _ in range(count)]
        self.blocks = nn.ModuleList(made).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Switched(TorchEager):
    """PyTorch with passes that can be turned off; some of them, all on, spoil the first layer."""

    guilty: frozenset[str] = frozenset({"pass3"})
    share = 1.0
    """Of runs in which they do."""
    luck = random.Random(0)
    off: frozenset[str] = frozenset()
    interrupt_at = 0
    runs = 0

    def switches(self, probe: Probe) -> tuple[Switch, ...]:
        return tuple(Switch(name, "pass of a test") for name in NAMES)

    def without(self, off: Collection[str]) -> Backend:
        made = type(self)(self.spec, self._model)
        made.off = frozenset(off)
        made.spec = replace(Spec("torch"), options={"off": ";".join(off)})
        return made

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Any]:
        kind = type(self)
        kind.runs += 1
        if kind.runs == kind.interrupt_at:
            raise KeyboardInterrupt
        spoiled = not self.guilty & self.off and kind.luck.random() < kind.share

        def hand_on(state: State) -> None:
            assert sink is not None
            off = spoiled and state.point.name == "layer.0"
            sink(State(state.point, state.array * np.float32(1.01)) if off else state)

        return super()._forward(probe, None if sink is None else hand_on)


def candidate(**own: Any) -> Switched:
    kind = type("Switched", (Switched,), {"luck": random.Random(7), **own})
    made: Switched = kind(Spec("torch"), LOADED)
    return made


LOADED = torch_model(Blocks())


def bisected(side: Backend, **options: Any) -> Bisection:
    return driftwalk.bisect(LOADED, side, probe={"x": X}, cache=False, **options)


def test_a_pass_of_any_backend_with_switches() -> None:
    side = candidate()
    assert isinstance(side, HasSwitches)
    found = bisected(side)
    assert (found.outcome, found.point, found.switches) == ("found", "layer.0", ("pass3",))
    assert found.spec == "torch,off=pass3"
    assert found.steady
    assert found.rate == 1


def test_two_that_only_together_do_harm() -> None:
    found = bisected(candidate(guilty=frozenset({"pass1", "pass4"})))
    (cause,) = found.causes
    assert {cause.switch, *cause.together} == {"pass1", "pass4"}
    assert "only together" in _text(found)
    assert from_dict(json.loads(to_json(found))) == found


def test_drift_in_half_of_the_runs() -> None:
    found = bisected(candidate(share=0.5, luck=random.Random(3)))
    assert found.switches == ("pass3",)
    assert found.confidence == 0.95
    assert 0.2 < found.rate < 0.8
    assert "Runs disagree" in _text(found)


def test_what_was_found_is_kept_when_it_is_interrupted() -> None:
    found = bisected(candidate(interrupt_at=8))
    assert found.outcome == "stopped"
    assert found.reason == "interrupted"
    assert found.questions
    again = bisected(candidate(), resume=found)
    assert again.switches == ("pass3",)
    assert again.runs < sum(len(one.runs) for one in again.questions) - 1


def test_runs_that_were_judged_by_another_policy_are_not_taken_up() -> None:
    found = bisected(candidate(), runs=2)
    with pytest.raises(UsageError, match="another policy: it was calibrated"):
        bisected(candidate(), resume=found, policy=driftwalk.Tolerance(1e-9, 0.0))


def test_a_clean_candidate_has_nothing_to_bisect() -> None:
    result = CliRunner().invoke(app, ["bisect", "demo:decoder", "-c", "torch,attn=eager"])
    assert result.exit_code == 0
    assert "nothing to bisect" in result.stdout.splitlines()[-1]


def test_a_candidate_without_switches_says_so() -> None:
    wrong = Blocks()
    wrong.blocks[1][0].weight.data *= 1.01
    found = driftwalk.bisect(Blocks(), wrong, probe={"x": X}, cache=False)
    assert found.outcome == "no switches"
    assert found.exit_code == 1


def test_a_fused_norm_of_an_exported_model_is_named_at_its_layer() -> None:
    found = driftwalk.bisect(Blocks(2, OddNorm), "onnxruntime", probe={"x": X}, cache=False)
    assert found.point == "layer.0"
    assert [name.rstrip("12") for name in found.switches] == ["LayerNormFusionL"]
    assert found.elsewhere == ()


def test_a_stored_report_is_judged_as_it_was() -> None:
    """By another tolerance the same candidate is within what is allowed."""
    tight = driftwalk.Tolerance(atol=1e-9)
    report = driftwalk.verify("demo:decoder", "torch,attn=eager", policy=tight)
    assert report.verdict == "drift"
    found = driftwalk.bisect(report, only=["threads"])
    assert (found.verdict, found.outcome) == ("drift", "none")
    assert driftwalk.bisect(report, policy=driftwalk.Tolerance(atol=1.0)).outcome == "nothing"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"point": "layer.7"}, "no point 'layer.7'"),
        ({"repeats": "often"}, "repeats='often'"),
        ({"confidence": 1.0}, "confidence=1.0"),
        ({"only": ["nonsense*"]}, "no switch 'nonsense"),
        ({"resume": 3}, "expected a bisect.json"),
        ({"runs": 0}, "1 or more"),
        ({"minutes": 0.0}, "above zero"),
        ({"minutes": float("nan")}, "above zero"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bisected(candidate(), **options)


def _text(found: Bisection) -> str:
    from driftwalk_reports.bisect import render

    return render(found)
