"""Honest rounding that a graph passes on is no drift, however large it has become; a fault is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, helper

import driftwalk
from driftwalk.graphs.rows import INHERITED
from nets import Weights, floats, save, spoilt

ROWS, WIDE, OUT = 6, 256, 32


def numbers(*shape: int, seed: int = 0, size: float = 1.0) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal(shape) * size
    return made.astype(np.float32)


def single(value: float, kind: type = np.float32) -> np.ndarray:
    return np.array(value, dtype=kind)


def product(halves: bool, out: str = "m") -> list[NodeProto]:
    """x @ w; in two parts that are summed, the same in another order."""
    if not halves:
        return [helper.make_node("MatMul", ["x", "w"], [out])]
    return [
        helper.make_node("Constant", [], ["parts"], value_ints=[100, WIDE - 100]),
        helper.make_node("Split", ["x", "parts"], ["xa", "xb"], axis=-1),
        helper.make_node("Split", ["w", "parts"], ["wa", "wb"], axis=0),
        helper.make_node("MatMul", ["xa", "wa"], ["ma"]),
        helper.make_node("MatMul", ["xb", "wb"], ["mb"]),
        helper.make_node("Add", ["ma", "mb"], [out]),
    ]


def against(a: Path, b: Path, **options: object) -> driftwalk.Report:
    spec = f'onnxruntime,file="{b}",opt=off'
    return driftwalk.verify(str(a), spec, **options)  # type: ignore[arg-type]


def drifted_by_the_table(a: Path, b: Path) -> bool:
    """What was said of the pair when nothing was excused."""
    return against(a, b, policy="dtype", depth="op").verdict == "drift"


def written(path: Path, nodes: list[NodeProto], stored: Weights) -> Path:
    return save(path, nodes, [floats("x", ROWS, WIDE)], [floats("y", None, None)], stored)


def near_zero(path: Path, other: bool = False, stored: Weights | None = None) -> Path:
    """A large product, shifted far below zero, and its sigmoid: about 1e-7, exact to 6e-8."""
    own = {"w": numbers(WIDE, OUT, seed=1, size=0.1), "b": single(-17), "half": single(0.5)}
    nodes = [*product(other), helper.make_node("Add", ["m", "b"], ["z"])]
    if other:
        nodes += [
            helper.make_node("Mul", ["z", "half"], ["z2"]),
            helper.make_node("Tanh", ["z2"], ["t"]),
            helper.make_node("Mul", ["t", "half"], ["t2"]),
            helper.make_node("Add", ["t2", "half"], ["y"]),
        ]
    else:
        nodes.append(helper.make_node("Sigmoid", ["z"], ["y"]))
    return written(path, nodes, own | (stored or {}))


def cancelled(path: Path, other: bool = False, stored: Weights | None = None) -> Path:
    """1 - sigmoid(z), or the sigmoid of -z: about 1e-6, and exact to 6e-8."""
    own = {"w": numbers(WIDE, OUT, seed=1, size=0.05), "b": single(14), "one": single(1)}
    nodes = [*product(other), helper.make_node("Add", ["m", "b"], ["z"])]
    if other:
        nodes += [helper.make_node("Neg", ["z"], ["n"]), helper.make_node("Sigmoid", ["n"], ["y"])]
    else:
        nodes += [
            helper.make_node("Sigmoid", ["z"], ["s"]),
            helper.make_node("Sub", ["one", "s"], ["y"]),
        ]
    return written(path, nodes, own | (stored or {}))


def alike() -> np.ndarray:
    """Columns that differ by little."""
    return numbers(WIDE, 1, seed=1, size=20.0) + numbers(WIDE, OUT, seed=2, size=0.02)


def tails(path: Path, other: bool = False, stored: Weights | None = None) -> Path:
    """Shares of sums that are large and alike: only their last digits make the shares."""
    own: Weights = {"w": alike()}
    nodes = [*product(other), helper.make_node("Softmax", ["m"], ["y"], axis=-1)]
    return written(path, nodes, own | (stored or {}))


GRAPHS = {"near zero": near_zero, "cancelled": cancelled, "tails": tails}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("depth", ["block", "op"])
def test_rounding_passed_on_is_no_drift(tmp_path: Path, name: str, depth: str) -> None:
    a, b = GRAPHS[name](tmp_path / "a.onnx"), GRAPHS[name](tmp_path / "b.onnx", True)
    assert drifted_by_the_table(a, b)
    report = against(a, b, depth=depth)
    assert report.verdict == "pass", report.first_divergence
    row = report.layer("y")
    assert INHERITED in row.note or row.sides["candidate"].needed <= 1  # by the truth
    assert row.metrics is not None
    assert row.tolerance is not None
    assert row.metrics.mismatched == 0
    assert row.tolerance.needed <= 1
    assert any("by what they inherit" in note for note in report.notes)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("by", [0.05, 2e-3])
def test_one_wrong_weight_there_is_a_fault(tmp_path: Path, name: str, by: float) -> None:
    a = GRAPHS[name](tmp_path / "a.onnx")
    sizes = {"near zero": 0.1, "cancelled": 0.05}
    good = {"w": numbers(WIDE, OUT, seed=1, size=sizes[name]) if name in sizes else alike()}
    size = float(np.abs(good["w"]).max())
    b = GRAPHS[name](tmp_path / "b.onnx", True, spoilt(good, "w", by * size))
    report = against(a, b, depth="op")
    assert report.verdict == "drift"
    assert report.cause == "m"
    assert report.culprit is not None
    assert "'m'" in report.culprit.sentence


def test_another_function_is_a_fault(tmp_path: Path) -> None:
    """The gelu of tanh for that of erf: not rounding, however small the difference."""
    stored = {"w": numbers(WIDE, OUT, seed=1, size=0.1)}
    for name, how in (("a", "none"), ("b", "tanh")):
        nodes = [*product(False), helper.make_node("Gelu", ["m"], ["y"], approximate=how)]
        graph = helper.make_graph(nodes, "g", [floats("x", ROWS, WIDE)], [floats("y", None, None)])
        for key, array in stored.items():
            graph.initializer.append(helper.make_tensor(key, 1, array.shape, array.reshape(-1)))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    report = against(tmp_path / "a.onnx", tmp_path / "b.onnx", depth="op")
    assert report.verdict == "drift"
    assert report.cause == "y"


STEP, ZERO = 0.005, 7


def int8(path: Path, other: bool = False, stored: Weights | None = None) -> Path:
    """What large sums differ by, rounded to steps, and a product of that: many at a boundary."""
    own = {
        "w": alike(),
        "first": np.array([0]),
        "step": single(STEP),
        "zero": single(ZERO, np.int8),
        "out_step": single(STEP),
        "out_zero": single(ZERO, np.int8),
        "v": numbers(OUT, 8, seed=2, size=0.1),
    }
    nodes = [
        *product(other),
        helper.make_node("Gather", ["m", "first"], ["f"], axis=1),
        helper.make_node("Sub", ["m", "f"], ["h"]),
        helper.make_node("QuantizeLinear", ["h", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "out_step", "out_zero"], ["d"]),
        helper.make_node("MatMul", ["d", "v"], ["y"]),
    ]
    return written(path, nodes, own | (stored or {}))


def test_boundaries_may_flip(tmp_path: Path) -> None:
    a, b = int8(tmp_path / "a.onnx"), int8(tmp_path / "b.onnx", True)
    assert drifted_by_the_table(a, b)
    report = against(a, b, depth="op")
    assert report.verdict == "pass", report.first_divergence
    assert INHERITED in report.layer("d").note
    assert any("at the boundary between two steps" in note for note in report.notes)


FAULTS: dict[str, tuple[Weights, str]] = {
    "step": ({"step": single(STEP * 1.05)}, "q"),
    "zero": ({"zero": single(ZERO + 1, np.int8)}, "q"),
    "step out": ({"out_step": single(STEP * 1.05)}, "d"),
    "zero out": ({"out_zero": single(ZERO - 1, np.int8)}, "d"),
    "one weight": (spoilt({"w": alike()}, "w", 0.02), "m"),
    "one weight after": (spoilt({"v": numbers(OUT, 8, seed=2, size=0.1)}, "v", 0.01), "y"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_among_steps_is_placed(tmp_path: Path, fault: str) -> None:
    stored, where = FAULTS[fault]
    a, b = int8(tmp_path / "a.onnx"), int8(tmp_path / "b.onnx", True, stored)
    report = against(a, b, depth="op")
    assert report.verdict == "drift"
    assert report.culprit is not None
    assert f"'{where}'" in report.culprit.sentence
    # Whole numbers have no row: the first float that is made of them has.
    assert report.cause == ("d" if where == "q" else where)


def moved(path: Path, early: bool = False, step: float = STEP) -> Path:
    """Rounded after a transpose; or before it as well, as optimisers do."""
    stored = {"w": numbers(WIDE, OUT, seed=1, size=0.1), "early": single(step)}
    stored |= {"step": single(STEP), "zero": single(0, np.int8)}
    names = ["m", "h"] if early else ["h"]
    nodes = product(False, out=names[0])
    if early:
        nodes += [
            helper.make_node("QuantizeLinear", ["m", "early", "zero"], ["q0"]),
            helper.make_node("DequantizeLinear", ["q0", "early", "zero"], ["h"]),
        ]
    nodes += [
        helper.make_node("Transpose", ["h"], ["t"], perm=[1, 0]),
        helper.make_node("QuantizeLinear", ["t", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["y"]),
    ]
    return written(path, nodes, stored)


def test_rounding_that_was_moved_is_no_drift(tmp_path: Path) -> None:
    a, b = moved(tmp_path / "a.onnx"), moved(tmp_path / "b.onnx", True)
    assert drifted_by_the_table(a, b)
    assert against(a, b, depth="op").verdict == "pass"
    bad = moved(tmp_path / "c.onnx", True, STEP * 1.3)
    assert against(a, bad, depth="op").verdict == "drift"


def quantised(path: Path) -> Path:
    """Two products in eight bits, as `onnxruntime.quantization` writes them."""
    stored: Weights = {}
    nodes: list[NodeProto] = []

    def rounded(name: str, step: float) -> str:
        stored[f"{name}_step"], stored[f"{name}_zero"] = single(step), single(3, np.uint8)
        ends = [f"{name}_step", f"{name}_zero"]
        nodes.append(helper.make_node("QuantizeLinear", [name, *ends], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *ends], [f"{name}_d"]))
        return f"{name}_d"

    for i, (rows, columns) in enumerate([(WIDE, 64), (64, OUT)]):
        whole = np.random.default_rng(i).integers(-100, 100, (rows, columns)).astype(np.int8)
        stored |= {f"w{i}": whole, f"s{i}": single(1e-3), f"z{i}": single(0, np.int8)}
        nodes.append(helper.make_node("DequantizeLinear", [f"w{i}", f"s{i}", f"z{i}"], [f"v{i}"]))
    x = rounded("x", 0.0171)
    nodes.append(helper.make_node("MatMul", [x, "v0"], ["a"]))
    a = rounded("a", 0.0113)
    nodes.append(helper.make_node("Softmax", [a], ["p"], axis=-1))
    p = rounded("p", 1 / 255)
    nodes.append(helper.make_node("MatMul", [p, "v1"], ["c"]))
    nodes.append(helper.make_node("Identity", [rounded("c", 1e-4)], ["y"]))
    return save(path, nodes, [floats("x", 64, WIDE)], [floats("y", None, None)], stored)


@pytest.mark.parametrize("level", ["basic", "extended", "all"])
@pytest.mark.parametrize("depth", ["block", "op"])
def test_eight_bits_at_another_level(tmp_path: Path, level: str, depth: str) -> None:
    a = quantised(tmp_path / "a.onnx")
    report = driftwalk.verify(str(a), f"onnxruntime,opt={level}", depth=depth)
    assert report.verdict == "pass", (report.first_divergence, report.culprit)


def test_a_rule_of_the_users_is_not_softened(tmp_path: Path) -> None:
    a, b = near_zero(tmp_path / "a.onnx"), near_zero(tmp_path / "b.onnx", True)
    assert against(a, b, policy="fixed:1e-12").verdict == "drift"
    assert against(a, b, policy={"y": driftwalk.Tolerance(1e-12)}).verdict == "drift"
