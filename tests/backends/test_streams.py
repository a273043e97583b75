"""Blocks that hand several streams on, each of its own shape: as SAM's decoder and fusions do."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk

RANDOM = np.random.default_rng(0)
PROBE = {
    "queries": RANDOM.standard_normal((2, 3, 8)).astype(np.float32),
    "keys": RANDOM.standard_normal((2, 7, 8)).astype(np.float32),
}


class TwoWay(nn.Module):
    """Queries look at keys, keys at queries; and a table that goes through unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.to_queries = nn.Linear(8, 8)
        self.to_keys = nn.Linear(8, 8)

    def forward(
        self, queries: torch.Tensor, keys: torch.Tensor, table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weights = (queries @ keys.transpose(1, 2) + table).softmax(-1)
        queries = queries + self.to_queries(weights @ keys)
        keys = keys + self.to_keys(weights.transpose(1, 2) @ queries)
        return queries, keys, table


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([TwoWay(), TwoWay(), TwoWay()])
        self.table = nn.Parameter(torch.randn(3, 7))
        self.head = nn.Linear(8, 5)

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        table = self.table
        for layer in self.layers:
            queries, keys, table = layer(queries, keys, table)
        return self.head(queries).mean(1) + self.head(keys).mean(1)


@pytest.mark.parametrize("candidate", ["torch", "emulated:bf16", "onnxruntime"])
def test_each_stream_is_a_point_and_what_passes_through_is_none(candidate):
    report = driftwalk.verify(Decoder(), candidate, probe=PROBE)
    assert report.verdict == "pass", report.reason
    names = [row.point.name for row in report.layers]
    assert [name for name in names if ".out" in name] == [f"layer.{i}.out1" for i in range(3)]
    assert report.layer("layer.0").shape == (2, 3, 8)
    assert report.layer("layer.0.out1").shape == (2, 7, 8)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(("part", "stream"), [("to_queries", ""), ("to_keys", ".out1")])
def test_a_fault_is_placed_in_its_layer_whatever_stream_it_went_into(number, part, stream):
    model = Decoder()
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        getattr(wrong.layers[number], part).weight.mul_(1.01)
    report = driftwalk.verify(model, wrong, probe=PROBE)
    assert report.verdict == "drift"
    assert report.cause == f"layer.{number}{stream}"
    assert report.culprit is not None
    assert report.culprit.module == f"layers.{number}.{part}"
