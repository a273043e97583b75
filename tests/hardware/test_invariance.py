"""Invariance: what is the same bits, what is noise, and who is to blame for the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.tasks.hardware.invariance import matrix
from driftwalk.tasks.hardware.result import Cell
from driftwalk_backends.sources import open_model

PROBE = driftwalk.Probe({"input_ids": np.arange(1, 13).reshape(1, 12)})


def cells(model: Any, **options: Any) -> dict[str, Cell]:
    found = matrix(open_model(model), "cpu", ("fp32",), PROBE, **options)
    return {cell.change: cell for cell in found}


def test_a_causal_model_with_positions_that_count() -> None:
    found = cells(zoo.build("gpt2"), positions=True, threads=2)
    assert found["batch of 2"].outcome in ("bit-exact", "within noise")
    assert found["prefix of a prompt longer by 8"].outcome in ("bit-exact", "within noise")
    # GPT-2 counts from the left edge: in float64 too, so no hardware is to blame.
    assert found["padding left 7"].outcome == "broken"
    assert found["padding left 7"].by_model
    assert found["padding left 7, positions given"].outcome in ("bit-exact", "within noise")
    assert found["2 threads"].outcome in ("bit-exact", "within noise")


def test_a_model_that_reads_both_ways() -> None:
    found = cells(zoo.build("bert"))
    prefix = found["prefix of a prompt longer by 8"]
    assert (prefix.outcome, prefix.by_model) == ("broken", True)
    assert found["padding right 7"].outcome in ("bit-exact", "within noise")
    assert "2 threads" not in found


class Crowded(nn.Module):
    """Float32 that goes wrong in company: what a broken kernel for large batches looks like."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(input_ids)
        wrong = len(input_ids) > 4 and logits.dtype == torch.float32
        return logits * 1.001 if wrong else logits


def test_what_float64_does_not_do_is_a_fault(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny
    found = cells(Crowded(model.module))
    assert found["batch of 2"].outcome in ("bit-exact", "within noise")
    large = found["batch of 8"]
    assert (large.outcome, large.by_model, large.worst_state) == ("broken", False, "logits")
    assert large.states["layer.0"] in ("bit-exact", "within noise")
    assert found["padding left 1"].outcome == "not run"
    assert "attention_mask" in found["padding left 1"].note
    # As a check of its own, it makes the verdict.
    report = driftwalk.hwcheck(
        model=Crowded(model.module), probe=PROBE, checks=["invariance"], dtypes=["fp32"]
    )
    assert report.verdict == "fault"
    assert "batch of 8 in fp32 moves logits beyond noise" in report.reason


def test_a_model_without_tokens_is_said() -> None:
    pixels = driftwalk.Probe({"pixel_values": np.zeros((1, 3, 8, 8), np.float32)})
    (cell,) = matrix(None, "cpu", ("fp32",), pixels)
    assert cell.outcome == "not run"
    assert "no tokens" in cell.note
