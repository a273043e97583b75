"""Down to the node: what is judged there, in how much memory, and in which order of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import driftwalk
import zoo
from driftwalk.errors import UsageError
from driftwalk_backends.onnx.pairs import plan
from driftwalk_backends.onnx.pairs.plan import grouped
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from graphs import export, optimise, products, spoil, strip
from nets import floats, residual, save, spoilt, weights


def against(a: Path, b: Path, **options: object) -> driftwalk.Report:
    spec = f'onnxruntime,file="{b}"'
    return driftwalk.verify(str(a), spec, depth="op", **options)  # type: ignore[arg-type]


def test_a_node_is_named_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    a = residual(tmp_path / "a.onnx", scoped=True)
    b = residual(tmp_path / "b.onnx", scoped=True, alpha=3.0)
    report = against(a, b)
    assert report.verdict == "drift"
    assert report.cause == "r0"
    assert report.culprit is not None
    assert report.culprit.module == "model.layers.0.mlp"
    assert "LeakyRelu(m0) with alpha=0.1" in report.culprit.sentence
    assert "in model.layers.0.mlp" in report.culprit.sentence
    assert report.layer("m0").verdict == "ok"


def test_rows_are_the_same_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = residual(tmp_path / "a.onnx")
    b = residual(tmp_path / "b.onnx", spoilt(weights(), "w1"))
    whole = against(a, b)
    state = 2 * 16 * 8 * 4
    monkeypatch.setattr(plan, "MOST_BYTES", 4 * state)
    little = against(a, b)
    assert little.layers == whole.layers
    told = [next(n for n in r.notes if "in memory" in n) for r in (whole, little)]
    assert "1 session(s) a side" in told[0]
    assert "7 session(s) a side" in told[1]


def test_groups_keep_the_order_and_the_bound() -> None:
    known = {"a": 10, "b": 10, "c": 100, "d": 10}
    assert grouped("abcd", known, most=40) == [["a", "b"], ["c"], ["d"]]
    assert grouped("abx", known, most=100) == [["a", "b"], ["x"]]  # unknown: as the largest
    assert grouped("", known) == []


def centred(path: Path, as_product: bool) -> Path:
    """The mean of numbers that have none, summed in one order or another: rounding, no more."""
    stored = {"axes": np.array([-1]), "even": np.full((64, 1), 1 / 64, dtype=np.float32)}
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"]),
        helper.make_node("Sub", ["x", "mean"], ["centred"]),
    ]
    if as_product:
        nodes.append(helper.make_node("MatMul", ["centred", "even"], ["again"]))
    else:
        nodes.append(helper.make_node("ReduceMean", ["centred", "axes"], ["again"]))
    nodes += [
        helper.make_node("Mul", ["again", "again"], ["noise"]),
        helper.make_node("Add", ["noise", "x"], ["y"]),
    ]
    return save(path, nodes, [floats("x", 4, 7, 64)], [floats("y", 4, 7, 64)], stored)


def test_what_cancels_is_no_drift(tmp_path: Path) -> None:
    """Two honest sums of numbers that cancel agree in no digit."""
    a, b = centred(tmp_path / "a.onnx", False), centred(tmp_path / "b.onnx", True)
    report = against(a, b)
    again = report.layer("again")
    assert again.metrics is not None
    assert again.metrics.rel_l2 > 0.1
    assert report.ok


def masked(path: Path, low: float, scale: float = 1.0) -> Path:
    keep = np.tril(np.ones((4, 4), dtype=bool))
    keep[3] = False
    stored = {"keep": keep, "low": np.array(low, dtype=np.float32)}
    stored |= {"zero": np.array(0, dtype=np.float32), "scale": np.array(scale, dtype=np.float32)}
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"]),
        helper.make_node("Where", ["keep", "scaled", "low"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["soft"], axis=-1),
        helper.make_node("IsNaN", ["soft"], ["bad"]),
        helper.make_node("Where", ["bad", "zero", "soft"], ["y"]),
    ]
    return save(path, nodes, [floats("x", 2, 4, 4)], [floats("y", 2, 4, 4)], stored)


def test_masks_inside_are_no_fault(tmp_path: Path) -> None:
    """A row that is masked as a whole is NaN for a while, on both sides alike."""
    a = masked(tmp_path / "a.onnx", -np.inf)
    report = against(a, a)
    assert report.ok
    assert "infinite or NaN on both sides alike" in report.layer("soft").note
    assert against(a, masked(tmp_path / "b.onnx", -np.inf, 1.1)).cause == "scaled"


def test_a_nan_of_one_side_is_a_fault(tmp_path: Path) -> None:
    a, b = masked(tmp_path / "a.onnx", -1e30), masked(tmp_path / "b.onnx", -np.inf)
    report = against(a, b)
    assert report.verdict == "drift"
    assert report.layer("soft").verdict == "nonfinite"


def test_a_torch_model_at_op_depth(tmp_path: Path) -> None:
    """Blocks against torch, nodes against the graph as written, in one order."""
    report = driftwalk.verify("demo:decoder", depth="op")
    assert report.ok
    names = [row.point.name for row in report.layers]
    blocks = ["embed", *(f"layer.{i}" for i in range(6)), "norm", "logits"]
    assert [name for name in names if name in blocks] == blocks
    between = names[names.index("layer.2") + 1 : names.index("layer.3")]
    modules = {report.layer(name).point.module for name in between}
    assert len(between) > 20
    assert any("h.3" in module for module in modules)
    assert not any("h.2." in module or "h.4." in module for module in modules)
    assert any("held against the same graph run as written" in note for note in report.notes)


def test_a_wrong_graph_is_not_excused_by_computing_it_right(tmp_path: Path) -> None:
    model = zoo.build("bert")
    probe = make_probe(open_model(model), None)
    good = export(model, probe, tmp_path / "good")
    bad = spoil(good, tmp_path / "bad.onnx", products(good, "layer.1")[2], lambda w: w * 1.05)
    report = driftwalk.verify(model, f"onnxruntime,file={bad}", probe=probe, depth="op")
    assert report.verdict == "drift"
    assert report.cause == "layer.1"
    nodes = [row for row in report.layers if row.point.module and row.truth is None]
    assert len(nodes) > 50
    assert all(row.ok for row in nodes)
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == "layer.1"


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_real_exports_against_themselves(tmp_path: Path, name: str) -> None:
    """Stripped of all names every node has its partner; optimised, none has a wrong one."""
    model = zoo.build(name)
    probe = make_probe(open_model(model), None)
    a = export(model, probe, tmp_path / "a", dynamo=False)
    if a.is_dir():
        pytest.skip("optimum exports several graphs")
    inputs = dict(probe.inputs)
    stripped, bad = tmp_path / "s.onnx", tmp_path / "sb.onnx"
    strip(a, stripped, keep_ends=False)
    optimised = optimise(a, tmp_path / "o.onnx")
    product = products(a)[len(products(a)) // 2]
    strip(spoil(a, tmp_path / "b.onnx", product, lambda w: w * 1.02), bad, keep_ends=False)
    whole = against(a, a, probe=inputs)
    renamed = against(a, stripped, probe=inputs)
    assert renamed.ok
    assert [row.point.name for row in renamed.layers] == [row.point.name for row in whole.layers]
    for b in (stripped, optimised):
        assert driftwalk.verify(str(a), f"onnxruntime,file={b}", probe=inputs).ok
    assert against(a, optimised, probe=inputs).ok
    assert driftwalk.verify(str(optimised), f"onnxruntime,file={a}", probe=inputs).ok
    report = driftwalk.verify(str(a), f"onnxruntime,file={bad}", probe=inputs)
    assert report.verdict == "drift"
    assert report.cause == "layer.1"


def test_only_graphs_have_nodes() -> None:
    with pytest.raises(UsageError, match="runs no graph"):
        driftwalk.verify("demo:decoder", "torch:cpu:bf16", depth="op")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    nodes = [
        helper.make_node("Neg", ["x"], [nasty], name="../../etc"),
        helper.make_node("Abs", [nasty], ["y"]),
    ]
    a = save(tmp_path / "a.onnx", nodes, [floats("x", 2, 3)], [floats("y", 2, 3)])
    report = driftwalk.verify(a, "onnxruntime,opt=off", depth="op")
    assert report.ok
    folder = report.save(tmp_path / "out")
    assert nasty not in (folder / "report.html").read_text()
    assert driftwalk.load(folder / "result.json").layers == report.layers
