"""Graphs in half precision with parts in float32: each point is held to what it computes in."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import driftwalk

PROBE = {"x": np.random.default_rng(0).standard_normal((2, 5, 48)).astype(np.float32)}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(48, 96)
        self.outer = nn.Linear(96, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.inner.weight.dtype)
        return x + self.outer(torch.tanh(self.inner(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        made: torch.Tensor = self.head(x.to(self.head.weight.dtype))
        return made


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def exported(net: Net, halves: tuple[int, ...], folder: Path) -> Path:
    """The graph of the net with some of its layers in half precision."""
    mixed = copy.deepcopy(net)
    for number in halves:
        mixed.layers[number].half()
    path = folder / "mixed.onnx"
    given = torch.from_numpy(PROBE["x"])
    options = {"input_names": ["x"], "output_names": ["y"], "dynamo": False}
    torch.onnx.export(mixed, (given,), str(path), **options)
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("halves", [(2, 3), (1,), (0, 1, 2, 3)])
def test_each_point_has_the_dtype_that_it_is_computed_in(
    net: Net, halves: tuple[int, ...], tmp_path: Path
) -> None:
    path = exported(net, halves, tmp_path)
    report = driftwalk.verify(net, f"onnxruntime,file={path}", probe=PROBE)
    assert report.verdict == "pass", report.reason
    dtypes = report.candidate.dtypes
    for number in range(4):
        assert dtypes[f"layer.{number}"] == ("fp16" if number in halves else "fp32")
    assert dtypes["logits"] == "fp32"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("halves", "number", "factor"),
    [((3,), 0, 1 + 1e-4), ((1,), 2, 1.1)],
    ids=[
        "before the first half, as in float32",
        "behind a half, beyond what its rounding explains",
    ],
)
def test_a_fault_of_a_layer_in_float_is_seen(
    net: Net, halves: tuple[int, ...], number: int, factor: float, tmp_path: Path
) -> None:
    """A fault of 1e-4 is nothing in fp16."""
    path = exported(net, halves, tmp_path)
    graph = onnx.load(str(path))
    true = net.layers[number].inner.weight.detach().numpy()
    (wrong,) = (one for one in graph.graph.initializer if is_stored(true, one))
    array = numpy_helper.to_array(wrong).copy()
    array[:, 3] *= factor
    wrong.CopyFrom(numpy_helper.from_array(array, wrong.name))
    onnx.save(graph, str(path))
    report = driftwalk.verify(net, f"onnxruntime,file={path}", probe=PROBE)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == f"layer.{number}"


def is_stored(weight: np.ndarray, tensor: onnx.TensorProto) -> bool:
    stored = numpy_helper.to_array(tensor)
    return any(np.array_equal(stored, one) for one in (weight, weight.T))
