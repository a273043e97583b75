"""Built-in sets for a graph: edges of what it declares that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import driftwalk
from driftwalk.errors import UsageError
from driftwalk.stage import open_model
from driftwalk.tasks.probes.run import own_set

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

IDS, WIDTH = 40, 8


def graph(path: Path, wrong: int | None = None, rows: Any = "rows", length: Any = "length") -> Path:
    """Embeddings of ids, hidden where a mask is 0, times a matrix, and a value for each row."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    rng = np.random.default_rng(0)
    table = rng.standard_normal((IDS, WIDTH)).astype(np.float32)
    if wrong is not None:
        table[wrong] *= 1.5
    weight = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    axes = np.array([-1], dtype=np.int64)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("Cast", ["attention_mask"], ["floats"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "axes"], ["shown"]),
        helper.make_node("Mul", ["words", "shown"], ["seen"]),
        helper.make_node("MatMul", ["seen", "weight"], ["mixed"]),
        helper.make_node("Add", ["mixed", "values"], ["moved"]),
        helper.make_node("Tanh", ["moved"], ["out"]),
    ]
    whole, float_ = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    takes = [
        helper.make_tensor_value_info("input_ids", whole, [rows, length]),
        helper.make_tensor_value_info("attention_mask", whole, [rows, length]),
        helper.make_tensor_value_info("values", float_, [WIDTH]),
    ]
    gives = [helper.make_tensor_value_info("out", float_, [rows, length, WIDTH])]
    stored = {"table": table, "weight": weight, "axes": axes}
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    made = helper.make_graph(nodes, "tiny", takes, gives, tensors)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(made, opset_imports=opset, ir_version=9), path)
    return path


def names(path: Path) -> dict[str, Any]:
    return {e.name: e.given for e in own_set(open_model(str(path)), "builtin:edge").read()}


def test_edges_are_made_of_declared_inputs(tmp_path: Path) -> None:
    found = names(graph(tmp_path / "g.onnx"))
    assert found["usual"].inputs["input_ids"].shape == (2, 16)
    assert found["length 1"].inputs["input_ids"].shape == (1, 1)
    assert found["length 33"].inputs["attention_mask"].shape == (3, 33)
    ends = found["input_ids: the first and the last"].inputs["input_ids"]
    assert set(ends.reshape(-1).tolist()) == {0, IDS - 1}
    left = found["attention_mask: padding on the left"].inputs["attention_mask"]
    assert left.tolist() == [[1] * 16, [0] * 8 + [1] * 8]
    assert not found["values: zeros"].inputs["values"].any()
    assert found["values: large"].inputs["values"].any()


def test_what_a_graph_fixes_stays(tmp_path: Path) -> None:
    found = names(graph(tmp_path / "g.onnx", rows=2, length=5))
    assert {one.inputs["input_ids"].shape for one in found.values()} == {(2, 5)}
    assert "length 1" not in found  # the usual one again


def test_a_row_that_the_default_probe_does_not_have_is_found(tmp_path: Path) -> None:
    right = graph(tmp_path / "g.onnx")
    wrong = graph(tmp_path / "h.onnx", wrong=IDS - 1)
    usual = names(right)["usual"].inputs["input_ids"]
    assert IDS - 1 not in usual
    assert driftwalk.verify(right, f"onnxruntime,file={wrong}").ok
    report = driftwalk.verify(right, f"onnxruntime,file={wrong}", probes="builtin:edge")
    assert report.verdict == "drift"
    assert report.worst is not None
    assert report.worst.name == "input_ids: the first and the last"
    assert report.probe_set is not None
    with_it = [one for one in names(right).values() if IDS - 1 in one.inputs["input_ids"]]
    assert report.probe_set.drifted == len(with_it) < report.probe_set.count
    same = driftwalk.verify(right, "onnxruntime,opt=off", probes="builtin:edge")
    assert same.ok


def test_other_sets_are_refused_and_a_probe_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = graph(tmp_path / "g.onnx", rows=2, length=5)
    for name in ("builtin:text", "suggest", "builtin:egde"):
        with pytest.raises(UsageError, match="builtin:edge"):
            driftwalk.verify(path, "onnxruntime", probes=name)
    fits, other = ({"input_ids": np.ones((rows, 5), dtype=np.int64)} for rows in (2, 3))
    report = driftwalk.verify(path, "onnxruntime", probes={"fits": fits, "does not": other})
    assert [row.name for row in report.probes] == ["fits"]
    assert report.probe_set is not None
    assert [one.name for one in report.probe_set.refused] == ["does not"]
