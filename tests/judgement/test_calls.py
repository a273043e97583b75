"""One call says nothing of the next, and a part that was left in train mode is run so."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import driftwalk

from .test_function import PROBE, Block, Net, note


class Counts(Block):
    """Off in some of its calls, which it counts."""

    calls = 0
    wrong: Any = staticmethod(lambda call: False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * (1.05 if self.wrong(self.calls) else 1.0)


class Keeps(Block):
    """Adds a part of what it gave in the call before."""

    before: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        given, self.before = self.before, made.detach().clone()
        return made if given is None else made + 0.05 * given


def counting(wrong: Any) -> Net:
    model = Net()
    model.layers[1].__class__ = Counts
    model.layers[1].wrong = wrong
    return model.eval()


@pytest.mark.parametrize("wrong", [lambda n: n > 1, lambda n: n % 2 == 0])
def test_what_is_right_in_its_first_call_alone_is_not_verified(wrong: Any) -> None:
    report = driftwalk.verify(Net().eval(), counting(wrong), probe=PROBE)
    assert report.verdict == "unverified"
    assert "second call" in report.reason
    assert report.observer["candidate"].bit_identical, "looking changes nothing"


def test_what_is_wrong_in_its_first_call_alone_is_drift() -> None:
    report = driftwalk.verify(Net().eval(), counting(lambda n: n == 1), probe=PROBE)
    assert report.verdict != "pass"


def test_what_a_call_leaves_behind_is_put_back_after_the_run() -> None:
    model, twin = Net().eval(), Net().eval()
    twin.layers[2].__class__ = Keeps
    assert driftwalk.verify(model, twin, probe=PROBE).verdict == "unverified"
    assert twin.layers[2].before is None


def test_two_sides_that_remember_alike_are_one_function() -> None:
    model = Net().eval()
    model.layers[2].__class__ = Keeps
    assert driftwalk.verify(model, copy.deepcopy(model), probe=PROBE).ok


def test_a_part_in_train_mode_runs_so_and_is_named() -> None:
    class Drops(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + nn.functional.dropout(super().forward(x) - x, 0.1, self.training)

    model = Net()
    for layer in model.layers:
        layer.__class__ = Drops
    model.eval()
    twin = copy.deepcopy(model)
    twin.layers[1].train()
    report = driftwalk.verify(model, twin, probe=PROBE)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert note(report, "4 of the candidate's modules, layers.1 the first, are in train mode")
    assert twin.layers[1].training
    assert driftwalk.verify(model, copy.deepcopy(model).train(), probe=PROBE).ok
