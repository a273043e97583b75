"""Made-up inputs of a graph that others made: sizes that it runs with, branches, states, shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import driftwalk
from driftwalk.errors import DriftwalkError, ProbeError
from driftwalk_backends.onnx.pairs.defaults import MOST_ELEMENTS
from driftwalk_backends.onnx.pairs.model import OnnxModel
from driftwalk_backends.onnx.pairs.probe import graph_probe
from nets import floats, save, whole

SIZES = {"batch": 2, "length": 16, "seed": 0}


def probed(path: Path, **more: Any) -> Any:
    return graph_probe(OnnxModel(path), None, **(SIZES | more))


def padded(path: Path, by: int = 40) -> Path:
    """A pad by reflection, which wants more than so many elements, then a convolution."""
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((2, 1, 100)).astype(np.float32)
    stored = {"by": np.array([0, 0, by, 0, 0, by]), "axis": np.array([1]), "k": kernel}
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["row"]),
        helper.make_node("Pad", ["row", "by"], ["pad"], mode="reflect"),
        helper.make_node("Conv", ["pad", "k"], ["y"], strides=[10]),
    ]
    return save(path, nodes, [floats("x", "rows", "samples")], [floats("y")], stored)


def test_an_axis_is_made_as_long_as_a_pad_wants(tmp_path: Path) -> None:
    path = padded(tmp_path / "a.onnx")
    probe = probed(path)
    assert probe.inputs["x"].shape == (2, 64)
    (remark,) = probe.remarks
    assert "x [2, 64]" in remark
    assert "Pad" in remark
    report = driftwalk.verify(path, "onnxruntime")
    assert report.ok
    assert remark in report.notes


@pytest.mark.parametrize("op", ["MatMul", "LSTM", "Conv"])
def test_columns_are_what_the_weights_want(tmp_path: Path, op: str) -> None:
    rng = np.random.default_rng(0)
    shape = {"MatMul": (37, 4), "LSTM": (1, 12, 37), "Conv": (4, 37, 1)}[op]
    stored = {"w": rng.standard_normal(shape).astype(np.float32), "axis": np.array([2])}
    nodes = [helper.make_node(op, ["x", "w"], ["y"])]
    if op == "LSTM":
        stored = {"r": np.ones((1, 12, 3), np.float32), "axis": np.array([0]), "w": stored["w"]}
        nodes = [
            helper.make_node("Unsqueeze", ["x", "axis"], ["wide"]),
            helper.make_node("LSTM", ["wide", "w", "r"], ["y"], hidden_size=3),
        ]
    elif op == "Conv":
        nodes.insert(0, helper.make_node("Unsqueeze", ["x", "axis"], ["wide"]))
        nodes[1].input[0] = "wide"
    path = save(tmp_path / "a.onnx", nodes, [floats("x", "a", "b")], [floats("y")], stored)
    assert probed(path).inputs["x"].shape == (2, 37)


def selecting(path: Path, then: int = 1, other: int = 1) -> Path:
    """Pads by reflection, by so many elements (2 at most): which of them, a sampling rate says."""
    stored = {"known": np.array(16000)}
    stored |= {n: np.array([0, by, 0, 0]) for n, by in (("then", then), ("other", other))}
    branches = {
        name: helper.make_graph(
            [helper.make_node("Pad", ["x", by], [f"{by}.y"], mode="reflect", name=f"by {by}")],
            by,
            [],
            [helper.make_tensor_value_info(f"{by}.y", TensorProto.FLOAT, ["a", "b"])],
        )
        for name, by in (("then_branch", "then"), ("else_branch", "other"))
    }
    nodes = [
        helper.make_node("Equal", ["rate", "known"], ["is"]),
        helper.make_node("If", ["is"], ["y"], name="which", **branches),
    ]
    info = [floats("x", 2, 3), helper.make_tensor_value_info("rate", TensorProto.INT64, [])]
    return save(path, nodes, info, [floats("y", "a", "b")], stored)


def test_what_selects_a_branch_is_listed(tmp_path: Path) -> None:
    probe = probed(selecting(tmp_path / "a.onnx"))
    assert int(probe.inputs["rate"]) == 16000
    (remark,) = probe.remarks
    assert "16000 to its then-branch; 15999, 16001, 0, 1 to its else-branch" in remark
    assert "The probe has 16000." in remark


def test_a_branch_is_taken_that_runs(tmp_path: Path) -> None:
    probe = probed(selecting(tmp_path / "a.onnx", then=5))
    assert int(probe.inputs["rate"]) != 16000
    with pytest.raises(ProbeError, match="'by then'"):
        probed(selecting(tmp_path / "b.onnx", then=5, other=5))


def test_the_state_of_an_rnn_is_zero_and_a_length_is_the_length(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stored = {
        "w": rng.standard_normal((1, 9, 5)).astype(np.float32),
        "r": rng.standard_normal((1, 9, 3)).astype(np.float32),
        "ends": np.array([7]),
    }
    nodes = [
        helper.make_node("Identity", ["before"], ["first"]),
        helper.make_node("Cast", ["x_lens"], ["many"], to=TensorProto.INT32),
        helper.make_node("GRU", ["x", "w", "r", "", "many", "first"], ["y"], hidden_size=3),
    ]
    ends = [floats("x", "time", "rows", 5), whole("x_lens", "rows"), floats("before", 1, "rows", 3)]
    probe = probed(save(tmp_path / "a.onnx", nodes, ends, [floats("y")], stored))
    assert probe.inputs["x"].any()
    assert probe.inputs["x"].shape[1:] == (probe.inputs["before"].shape[1], 5)
    assert not probe.inputs["before"].any()
    assert (probe.inputs["x_lens"] == max(probe.inputs["x"].shape[1], 1)).all()


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"z": (1, 2)}, "no such input; it takes 'x'"),
        ({"x": (1, 2, 3)}, "has 2 axes, and 3 sizes were given"),
        ({"x": (1, -2)}, "zero or more"),
        ({"x": (1, 8)}, "Pad"),
        ({"x": (1, MOST_ELEMENTS + 1)}, "too many to be made up"),
    ],
)
def test_shapes_that_cannot_be_are_refused(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], says: str
) -> None:
    path = padded(tmp_path / "a.onnx")
    assert probed(path, shapes={"x": (1, 300)}).inputs["x"].shape == (1, 300)
    with pytest.raises(DriftwalkError, match=says):
        driftwalk.verify(path, "onnxruntime", input_shapes=shapes)


def test_a_fixed_axis_has_no_other_size(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = save(tmp_path / "a.onnx", nodes, [floats("x", "n", 4)], [floats("y")])
    with pytest.raises(ProbeError, match=r"axis 1 of input .* is 4, and no other size"):
        probed(path, shapes={"x": (1, 5)})


def test_a_graph_that_fixes_too_much_is_not_fed(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = save(tmp_path / "a.onnx", nodes, [floats("x", 10**9, 2)], [floats("y")])
    with pytest.raises(ProbeError, match="2000000000 elements are too many"):
        probed(path)
