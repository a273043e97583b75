"""Two graphs on the command line: exit codes and what is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from onnx import helper
from safetensors.numpy import save_file

from cli.program import invoke
from nets import floats, residual, save, spoilt, weights


def test_a_graph_alone_is_0(tmp_path: Path) -> None:
    done = invoke("verify", str(residual(tmp_path / "a.onnx")))
    assert done.code == 0, done.err
    assert "PASS" in done.out
    assert "The truth is the graph in float64" in " ".join(done.out.split())


def test_a_changed_weight_is_1_and_named(tmp_path: Path) -> None:
    a = residual(tmp_path / "a.onnx")
    b = residual(tmp_path / "b.onnx", spoilt(weights(), "w1"))
    done = invoke("verify", str(a), "--candidate", f"onnxruntime,file={b}")
    assert done.code == 1, done.err
    assert "first divergence at layer.1" in done.out
    deep = invoke(
        "verify", str(a), "--candidate", f"onnxruntime,file={b}", "--depth", "op", "--json"
    )
    assert deep.code == 1, deep.err
    found = json.loads(deep.out)
    assert found["root_cause"] == found["first_divergence"] == "m1"
    assert "MatMul(x1, w1)" in found["culprit"]["sentence"]


def test_inputs_from_a_file(tmp_path: Path) -> None:
    a = residual(tmp_path / "a.onnx")
    save_file({"ids": np.array([[1, 2, 10]])}, str(tmp_path / "p.safetensors"))
    done = invoke("verify", str(a), "--probe", str(tmp_path / "p.safetensors"), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["probe"]["inputs"]["ids"]["shape"] == [1, 3]
    assert invoke("verify", str(a), "--ids", "1 2 3").code == 0


def test_a_torch_reference_is_refused(tmp_path: Path) -> None:
    a = str(residual(tmp_path / "a.onnx"))
    invoke("verify", a, "--reference", "torch").refused(2, "is an ONNX graph", "onnxruntime")
    invoke("verify", a, "-c", "emulated:fp16").refused(2, "is an ONNX graph")
    invoke("verify", a, "--prompt", "hello").refused(2, "no tokenizer")
    invoke("verify", a, "--depth", "sublayer").refused(2, "it has blocks and nodes")


def test_what_cannot_be_verified_is_3(tmp_path: Path) -> None:
    (tmp_path / "junk.onnx").write_bytes(b"no graph")
    invoke("verify", str(tmp_path / "junk.onnx")).refused(3, "no ONNX graph")
    invoke("verify", str(tmp_path / "none.onnx")).refused(3, "Cannot read")
    nodes = [helper.make_node("NoSuchOp", ["x"], ["y"])]
    a = save(tmp_path / "a.onnx", nodes, [floats("x", 2)], [floats("y", 2)])
    invoke("verify", str(a)).refused(3, "ONNX Runtime cannot load")
    draws = [helper.make_node("RandomUniformLike", ["x"], ["y"])]
    b = save(tmp_path / "b.onnx", draws, [floats("x", 2)], [floats("y", 2)])
    done = invoke("verify", str(b))
    assert done.code == 3
    assert "differs from itself" in done.out
