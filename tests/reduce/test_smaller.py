"""What `reduce` makes smaller beside taking nodes away: idle nodes, axes that drifts fade with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import driftwalk
from driftwalk.errors import BackendError
from driftwalk.tasks.reduce.run import _first_shown
from driftwalk_backends.onnx.graph import OnnxGraph
from driftwalk_backends.onnx.sessions import quick_session
from driftwalk_backends.other_way import other_way
from driftwalk_backends.probes import make_probe
from driftwalk_backends.reducing.cuts import Cutting
from driftwalk_backends.sources import open_model


def saved(path: Path, nodes: list[onnx.NodeProto], shape: list[int], **stored: object) -> Path:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(made, str(path))
    return path


def test_a_drift_that_fades_with_its_axis_is_followed_to_a_short_one(tmp_path: Path) -> None:
    """ONNX Runtime's DFT is off by what grows with its length: 64 values show it, too."""
    nodes = [helper.make_node("DFT", ["x", "n", "axis"], ["y"], inverse=1, onesided=1)]
    stored = {"n": np.array(1280), "axis": np.array(2)}
    path = saved(tmp_path / "dft.onnx", nodes, [1, 3, 641, 2], **stored)
    rng = np.random.default_rng(0)
    probe = {"x": rng.normal(size=(1, 3, 641, 2)).astype(np.float32)}
    found = driftwalk.reduce(path, "onnxruntime", None, probe, point="y")
    assert found.operations == ("DFT",)
    assert found.before is not None
    assert found.after is not None
    assert found.before.longest == 1280
    assert found.after.longest <= 64
    assert found.after.ratio > 4


@pytest.fixture
def cutting(tmp_path: Path) -> Cutting:
    """All of x is above 1: the bound and the mask do nothing, the sum does."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Clip", ["a", "one"], ["b"]),
        helper.make_node("Add", ["b", "one"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    path = saved(tmp_path / "idle.onnx", nodes, [4], one=np.float32(1))
    x = np.array([1, 2, 3, 4], np.float32)
    values = {"x": x, "a": x, "b": x, "c": x + 1, "y": x + 1}
    return Cutting(OnnxGraph(path, onnx.load(str(path))), values)


def test_what_hands_on_its_input_can_be_left_out(cutting: Cutting, tmp_path: Path) -> None:
    cut = cutting.cut(range(4), "y")
    assert [cutting.handed_on(cut, number) for number in range(4)] == ["x", "a", None, None]
    for gone in ("a", "b"):
        number = cutting.graph.producers[gone]
        source = cutting.handed_on(cut, number)
        assert source == "x", "that of the second is what the first took"
        cut = cut.without(gone, source)
    assert cut.operations == ("Add", "Relu")
    assert set(cut.given) == {"x"}
    assert set(cut.stored) == {"one"}
    (made,) = quick_session(cut.model().SerializeToString(), tmp_path).run(None, cut.given)
    np.testing.assert_array_equal(made, cutting.values["y"])


def test_where_the_root_cause_shows_nothing_other_points_are_tried() -> None:
    asked = []

    def search(point: str) -> str:
        asked.append(point)
        if point != "logits":
            raise BackendError(f"nothing at {point}")
        return "found"

    assert _first_shown(search, ["layer.1", "layer.2", "logits", "norm"]) == "found"
    assert asked == ["layer.1", "layer.2", "logits"]
    with pytest.raises(BackendError, match=r"nothing at layer\.1"):
        _first_shown(search, ["layer.1", "layer.2"])


class Net(nn.Module):
    def __init__(self, drops: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.drops = drops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            x = x[:, self.drops :]
        return x


def test_a_state_of_another_shape_is_told_as_such() -> None:
    with pytest.raises(BackendError, match="another shape"):
        driftwalk.reduce(Net(), Net(drops=1), None, {"x": torch.ones(1, 6, 8)})


class Asks(nn.Module):
    """What it gives is longer, unless it is being exported."""

    def __init__(self, asks: bool = True) -> None:
        super().__init__()
        self.last = nn.Linear(8, 8)
        self.asks = asks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + 1
        if self.asks and not torch.compiler.is_compiling():
            x = torch.cat([x, x[:, :2]], 1)
        return self.last(x)


def test_the_line_is_named_at_which_a_model_that_is_exported_goes_another_way() -> None:
    probe = {"x": np.ones((1, 6, 8), np.float32)}
    with pytest.raises(BackendError, match=r"is_compiling\(\)") as caught:
        driftwalk.reduce(Asks(), "onnxruntime", None, probe)
    line = next(i for i, text in enumerate(source(), 1) if "torch.compiler.is_compiling()" in text)
    assert f"{__name__}, line {line}: `if self.asks" in str(caught.value)


def source() -> list[str]:
    return Path(__file__).read_text("utf-8").splitlines()


def test_of_a_model_that_goes_one_way_nothing_is_said_and_flags_come_back() -> None:
    model = open_model(Asks(asks=False))
    assert other_way(model, make_probe(model, {"x": np.ones((1, 6, 8), np.float32)})) == ""
    assert not torch.compiler.is_compiling()
