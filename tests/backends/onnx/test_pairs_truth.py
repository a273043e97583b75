"""A graph in float64: what is rewritten, what stays narrow, and whose error it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import driftwalk
from driftwalk.errors import BackendError
from driftwalk_backends.onnx.reading import read_graph
from driftwalk_backends.onnx.sessions import quick_session
from driftwalk_backends.onnx.wide import truth
from driftwalk_backends.onnx.wide.truth import GraphTruth
from nets import floats, residual, save, spoilt, weights

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 9, 7)).astype(np.float32)
W = RNG.standard_normal((6, 2, 3, 2)).astype(np.float32)
ROW = RNG.standard_normal(4).astype(np.float32)
Stored = dict[str, np.ndarray]

OPS: dict[str, tuple[str, Stored, dict[str, Any]]] = {
    "conv": ("Conv", {"w": W, "b": RNG.standard_normal(6).astype(np.float32)}, {"group": 2}),
    "strided": ("Conv", {"w": W}, {"group": 2, "strides": [2, 3], "pads": [1, 0, 2, 1]}),
    "dilated": ("Conv", {"w": W}, {"group": 2, "dilations": [2, 3]}),
    "same": ("Conv", {"w": W}, {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "same, lower": ("Conv", {"w": W}, {"group": 2, "auto_pad": "SAME_LOWER"}),
    "depthwise": ("Conv", {"w": W[:4, :1]}, {"group": 4}),
    "pool": ("AveragePool", {}, {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    "pool, padding": (
        "AveragePool",
        {},
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1], "count_include_pad": 1},
    ),
    "mean": ("GlobalAveragePool", {}, {}),
    "largest": ("GlobalMaxPool", {}, {}),
    "norm": ("InstanceNormalization", {"s": ROW, "b": ROW}, {}),
    "erf": ("Erf", {}, {}),
    "gelu": ("Gelu", {}, {}),
    "gelu, tanh": ("Gelu", {}, {"approximate": "tanh"}),
    "hard sigmoid": ("HardSigmoid", {}, {"alpha": 0.3}),
    "hard swish": ("HardSwish", {}, {}),
    "elu": ("Elu", {}, {"alpha": 1.5}),
    "selu": ("Selu", {}, {}),
    "slope": ("PRelu", {"slope": ROW.reshape(4, 1, 1)}, {}),
    "softplus": ("Softplus", {}, {}),
}


def one_op(path: Path, name: str, opset: int = 20) -> Path:
    """One operation on `x`, then a sum, so that it is not the only node."""
    op, stored, attributes = OPS[name]
    nodes = [
        helper.make_node(op, ["x", *stored], ["y"], **attributes),
        helper.make_node("Add", ["y", "y"], ["z"]),
    ]
    save(path, nodes, [floats("x", *X.shape)], [floats("z")], stored)
    model = onnx.load(path)
    model.opset_import[0].version = opset
    onnx.save(model, path)
    return path


def wide_and_narrow(path: Path, feed: Stored, names: list[str]) -> tuple[GraphTruth, Any, Any]:
    made = GraphTruth(read_graph(path), feed)
    wide = made.tensors(names)
    narrow = quick_session(read_graph(path).exposing(names), path.parent).run(names, feed)
    return made, wide, dict(zip(names, narrow, strict=True))


OLDER = [(name, 14) for name in ("same", "pool", "mean", "largest", "norm")]


@pytest.mark.parametrize(("name", "opset"), [*((name, 20) for name in OPS), *OLDER])
def test_what_is_rewritten_computes_the_same_in_float64(
    tmp_path: Path, name: str, opset: int
) -> None:
    path = one_op(tmp_path / "a.onnx", name, opset)
    made, wide, narrow = wide_and_narrow(path, {"x": X}, ["y", "z"])
    assert not made.islands
    for tensor, array in narrow.items():
        assert wide[tensor].dtype == np.float64
        assert wide[tensor].shape == array.shape
        assert np.abs(wide[tensor] - array).max() < 2e-6 * max(1, np.abs(array).max())
    assert name == "largest" or np.any(wide["y"] != wide["y"].astype(np.float32))


@pytest.mark.parametrize("name", ["conv", "strided", "dilated", "depthwise"])
def test_a_convolution_is_the_same_where_sizes_are_not_known(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = one_op(tmp_path / "a.onnx", name)
    model = onnx.load(path)
    model.graph.input[0].CopyFrom(floats("x", "a", 4, "b", "c"))
    onnx.save(model, path)
    _, known, _ = wide_and_narrow(path, {"x": X}, ["z"])
    monkeypatch.setattr(truth, "_fix_shapes", lambda *_: None)
    made, open_sizes, _ = wide_and_narrow(path, {"x": X}, ["z"])
    assert not made.islands
    np.testing.assert_allclose(open_sizes["z"], known["z"], rtol=1e-13, atol=1e-14)


def test_what_is_not_to_be_had_in_float64_is_an_island(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("LRN", ["e"], ["n"], size=3),
        helper.make_node("Sqrt", ["n"], ["y"]),
    ]
    path = save(tmp_path / "a.onnx", nodes, [floats("x", *X.shape)], [floats("y")])
    made, wide, narrow = wide_and_narrow(path, {"x": X}, ["e", "n", "y"])
    assert made.islands == {"LRN": 1}
    np.testing.assert_array_equal(wide["n"], wide["n"].astype(np.float32))
    np.testing.assert_allclose(wide["y"], narrow["y"], rtol=1e-6)
    report = driftwalk.verify(path, "onnxruntime")
    assert report.ok
    assert any("no better than as written: 1 LRN" in note for note in report.notes)


def quantised(path: Path, step: float = 0.1) -> Path:
    """x rounded to steps, times a matrix of whole numbers."""
    stored = {
        "step": np.array(step, np.float32),
        "zero": np.array(3, np.int8),
        "q": RNG.integers(-100, 100, (7, 5)).astype(np.int8),
        "of": np.array(0.02, np.float32),
        "none": np.array(0, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["steps"]),
        helper.make_node("DequantizeLinear", ["steps", "step", "zero"], ["rounded"]),
        helper.make_node("DequantizeLinear", ["q", "of", "none"], ["w"]),
        helper.make_node("MatMul", ["rounded", "w"], ["y"]),
    ]
    return save(path, nodes, [floats("x", *X.shape)], [floats("y")], stored)


def test_declared_rounding_stays_in_the_truth(tmp_path: Path) -> None:
    _, wide, narrow = wide_and_narrow(quantised(tmp_path / "a.onnx"), {"x": X}, ["rounded", "y"])
    np.testing.assert_array_equal(wide["rounded"], narrow["rounded"])
    assert np.abs(wide["rounded"] - X).max() > 0.01
    np.testing.assert_allclose(wide["y"], narrow["y"], rtol=1e-4, atol=1e-4)


def test_a_branch_that_is_taken_is_in_the_truth(tmp_path: Path) -> None:
    def branch(name: str, by: str) -> onnx.GraphProto:
        node = helper.make_node("MatMul", ["x", by], ["inside"])
        return helper.make_graph([node], name, [], [floats("inside", 2, 2)])

    known = {"a": np.eye(2, dtype=np.float32) * 3, "b": np.eye(2, dtype=np.float32) / 3}
    nodes = [
        helper.make_node(
            "If", ["flag"], ["y"], then_branch=branch("t", "a"), else_branch=branch("e", "b")
        ),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    ends = [floats("x", 2, 2), flag], [floats("z")]
    path = save(tmp_path / "a.onnx", nodes, *ends, known)
    x = np.ones((2, 2), np.float32)
    for flagged, times in ((True, 3.0), (False, float(np.float32(1 / 3)))):
        made = GraphTruth(read_graph(path), {"x": x, "flag": np.array(flagged)})
        np.testing.assert_array_equal(made.tensors(["z"])["z"], -times * x)
        assert not made.islands


def test_whose_error_it_is(tmp_path: Path) -> None:
    good = residual(tmp_path / "a.onnx")
    bad = residual(tmp_path / "b.onnx", spoilt(weights(), "w1"))
    report = driftwalk.verify(good, f"onnxruntime,file={bad}")
    assert (report.verdict, report.at_fault, report.cause) == ("drift", "candidate", "layer.1")
    assert report.first_divergence is not None
    assert report.first_divergence.truth is not None
    assert report.first_divergence.truth.closer == "reference"
    report = driftwalk.verify(good, "onnxruntime", reference=f"onnxruntime,opt=off,file={bad}")
    assert (report.verdict, report.at_fault) == ("drift", "reference")


def test_the_table_decides_and_says_so_where_there_is_no_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truth, "MOST_BYTES", 1)
    path = residual(tmp_path / "a.onnx")
    with pytest.raises(BackendError, match="GiB in float64"):
        GraphTruth(read_graph(path), {})
    report = driftwalk.verify(path, "onnxruntime")
    assert report.ok
    assert report.policy.name == "dtype"
    assert any("so the dtype table decided: its weights would take" in n for n in report.notes)
    assert all(row.truth is None for row in report.layers)
