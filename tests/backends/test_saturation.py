"""How far a probe drives the units of activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.exercised import Driven, Exercised
from driftwalk_backends.exercised import Watch
from driftwalk_backends.sources import open_model
from driftwalk_reports.exercised import driven_sentence, exercised_rows


def run(watch: Watch, module: nn.Module, **inputs: torch.Tensor) -> Exercised:
    watch.run(module, inputs, lambda: module(**inputs))
    found = watch.known(inputs)
    assert found is not None
    return found


class Bends(nn.Module):
    """Three units that get their input as it is."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.pass_on = nn.Linear(3, 3, bias=False)
        self.pass_on.weight.data = torch.eye(3)
        self.act = act

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        return self.act(self.pass_on(x))


def test_a_unit_is_seen_below_and_above_the_bend() -> None:
    x = torch.tensor([[[-4.0, 1.0, 5.0], [2.0, -1.0, -3.5]]])
    (found,) = run(Watch(), Bends(nn.GELU()), x=x).driven
    assert found == Driven("act", "gelu", 3, low=2, high=1, largest=5.0)
    (found,) = run(Watch(), Bends(nn.ReLU()), x=x).driven
    assert (found.function, found.low, found.high) == ("relu", 3, 3)


def test_what_is_overwritten_is_seen_before() -> None:
    x = torch.tensor([[[-4.0, 1.0, 5.0]]])
    (found,) = run(Watch(), Bends(nn.ReLU(inplace=True)), x=x).driven
    assert (found.low, found.high) == (1, 2)


def test_padding_drives_nothing() -> None:
    x = torch.tensor([[[0.0, 1.0, 0.0], [9.0, 9.0, -9.0]]])
    mask = torch.tensor([[1, 0]])
    (found,) = run(Watch(), Bends(nn.SiLU()), x=x, attention_mask=mask).driven
    assert (found.low, found.high, found.largest) == (0, 0, 1.0)


def test_channels_of_a_convolution_are_its_second_axis() -> None:
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.Tanh())
    (found,) = run(Watch(), model, input=torch.randn(2, 1, 8, 8)).driven
    assert (found.where, found.function, found.units) == ("1", "tanh", 5)


def test_runs_are_added_up_and_the_largest_is_seen_twice() -> None:
    watch, model = Watch(), Bends(nn.GELU())
    watch.add_up()
    run(watch, model, x=torch.tensor([[[5.0, 1.0, -4.0]]]))
    run(watch, model, x=torch.tensor([[[4.6, 2.0, 0.0]]]))
    found = watch.added_up()
    assert found is not None
    assert found.driven == (Driven("act", "gelu", 3, low=1, high=1, largest=5.0, twice=1),)
    assert "67 % were at their largest in one probe alone" in driven_sentence(found)
    assert "1 of 3 units below the bend, 1 above" in exercised_rows(found)[-1][2]


@pytest.mark.parametrize(("name", "functions"), [("llama", {"silu"}), ("bert", {"gelu"})])
def test_it_is_in_every_report_and_no_part_of_what_is_covered(
    name: str, functions: set[str]
) -> None:
    report = driftwalk.verify(zoo.build(name), "torch", policy="dtype")
    found = report.coverage.exercised
    assert found is not None
    assert {item.function for item in found.driven} == functions
    assert all(item.low + item.high < item.units for item in found.driven)  # tiny weights
    assert not set(found.shares) & functions


def test_of_a_set_the_sum_says_more_than_one_probe() -> None:
    model = open_model(zoo.build("bert"))
    ids = np.random.default_rng(0).integers(5, 90, (4, 2, 12))
    probes = [{"input_ids": one} for one in ids]
    report = driftwalk.verify(model, "torch", probes=probes, policy="dtype")
    assert report.probe_set is not None
    whole, one = report.probe_set.exercised, report.coverage.exercised
    assert whole is not None
    assert one is not None
    assert [item.where for item in whole.driven] == [item.where for item in one.driven]
    assert all(a.largest >= b.largest for a, b in zip(whole.driven, one.driven, strict=True))
    assert any(a.largest > b.largest for a, b in zip(whole.driven, one.driven, strict=True))
    assert all(item.twice is not None and item.twice < item.units for item in whole.driven)
