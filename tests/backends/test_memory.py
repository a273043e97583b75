"""What is in memory at once: sides take turns, and what is not needed any more is gone."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.adapter import Sink
from driftwalk.states import Probe
from driftwalk_backends.torch_eager import TorchEager

Seen = list[tuple[str, str, dict[str, int]]]
"""Who ran, how, and how many arrays of each earlier run were still there when it began."""


class Noted(TorchEager):
    """Eager PyTorch that follows what becomes of the outputs it gave."""

    side: str
    seen: Seen
    given: dict[str, list[weakref.ref[Any]]]

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Any]:
        how = "plain" if sink is None else "traced"
        there = {name: sum(one() is not None for one in all_) for name, all_ in self.given.items()}
        self.seen.append((self.side, how, there))
        outputs = super()._forward(probe, sink)
        self.given[f"{self.side}, {how}"] = [weakref.ref(array) for array in outputs.values()]
        return outputs


def noted(*modules: nn.Module) -> tuple[list[Noted], Seen]:
    """A candidate and a reference."""
    seen: Seen = []
    given: dict[str, list[weakref.ref[Any]]] = {}
    sides = [Noted.around(module) for module in modules]
    for name, side in zip(("candidate", "reference"), sides, strict=True):
        side.side, side.seen, side.given = name, seen, given
    return sides, seen


@pytest.mark.parametrize("policy", ["dtype", "calibrated"])
@pytest.mark.parametrize("spill", [False, True, 0])
def test_the_reference_is_done_before_a_candidate_starts(policy: str, spill: bool | int) -> None:
    model = zoo.build("gpt2")
    sides, seen = noted(model, model)
    assert driftwalk.verify(model, *sides, policy=policy, spill=spill).ok
    kept = 1 if spill is False else 0  # the logits are a state of the reference's trace
    first: dict[str, int] = {}
    second = {"reference, traced": kept}
    third = {**second, "reference, plain": 0}
    fourth = {**third, "candidate, traced": 0}
    assert seen == [
        ("reference", "traced", first),
        ("reference", "plain", second),
        ("candidate", "traced", third),
        ("candidate", "plain", fourth),
    ]


def test_where_looking_changes_something_plain_outputs_are_copied_and_what_is_at_hand_is_used():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    rows = np.random.default_rng(0).standard_normal((2, 4, 8), dtype=np.float32)
    mask = np.array([[False] * 4, [False] * 3 + [True]])
    sides, seen = noted(model, model)
    probe = {"src": rows, "src_key_padding_mask": mask}
    report = driftwalk.verify(model, *sides, probe=probe, policy="dtype")
    assert not any(side.bit_identical for side in report.observer.values())
    assert report.observer["reference"] == report.observer["candidate"], "by the same amount"
    who = [(side, how) for side, how, _ in seen]
    assert who[:2] == [("reference", "traced"), ("reference", "plain")]
    assert who[2:] == [("candidate", how) for how in ("traced", "plain", "traced")]
    assert seen[-1][2]["candidate, plain"] == 0
