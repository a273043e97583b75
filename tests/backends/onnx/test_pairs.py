"""Two graphs and no torch model: blocks, partners, outputs, and what is refused."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import driftwalk
from driftwalk.errors import BackendError, ProbeError, UsageError
from driftwalk_backends.onnx.pairs.partners import partners
from driftwalk_backends.onnx.reading import read_graph
from driftwalk_backends.onnx.structure import NODES, STRUCTURE, points_of
from graphs import optimise
from nets import BLOCKS, floats, residual, save, spoilt, weights, whole


def against(a: Path, b: Path, **options: object) -> driftwalk.Report:
    return driftwalk.verify(str(a), f'onnxruntime,file="{b}"', **options)  # type: ignore[arg-type]


def test_a_graph_against_itself_optimised(tmp_path: Path) -> None:
    report = driftwalk.verify(residual(tmp_path / "a.onnx"))
    assert report.ok
    assert report.reference.spec == "onnxruntime,opt=off"
    assert report.candidate.spec == "onnxruntime"
    assert any(note.startswith("The truth is the graph in float64") for note in report.notes)
    assert report.policy.name == "calibrated"
    assert all(row.truth is not None for row in report.layers if row.dtypes.reference == "fp32")
    assert [row.point.name for row in report.layers][-2:] == ["scores", "choice"]


@pytest.mark.parametrize(("scoped", "way"), [(True, "node names"), (False, STRUCTURE)])
def test_blocks_are_found(tmp_path: Path, scoped: bool, way: str) -> None:
    graph = read_graph(residual(tmp_path / "a.onnx", scoped=scoped))
    places = points_of(graph, "block")
    assert places.way == way
    found = {point.name: tensor for point, tensor in places.tensors.items()}
    assert found == {"embed": "x0"} | {f"layer.{i}": f"x{i + 1}" for i in range(BLOCKS)}
    assert points_of(graph, "op").way == NODES


@pytest.mark.parametrize("scoped", [True, False])
@pytest.mark.parametrize("layer", range(BLOCKS))
def test_a_changed_weight_is_placed(tmp_path: Path, layer: int, scoped: bool) -> None:
    a = residual(tmp_path / "a.onnx", scoped=scoped)
    b = residual(tmp_path / "b.onnx", spoilt(weights(), f"w{layer}"), scoped=scoped)
    report = against(a, b)
    assert report.verdict == "drift"
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == report.cause == f"layer.{layer}"
    assert report.culprit is not None
    assert f"MatMul(x{layer}, w{layer}) \u2192 'm{layer}'" in report.culprit.sentence


def test_partners_hold_through_other_names_and_past_a_fault(tmp_path: Path) -> None:
    """Numbers for names, and in each graph others: a name must not lead to a wrong partner."""

    def numbered(start: int) -> object:
        numbers, known = count(start), {}

        def number(text: str) -> str:
            return known.setdefault(text, str(next(numbers)))

        return number

    a = residual(tmp_path / "a.onnx", name=numbered(0))  # type: ignore[arg-type]
    b = residual(tmp_path / "b.onnx", name=numbered(3))  # type: ignore[arg-type]
    bad = residual(tmp_path / "c.onnx", spoilt(weights(), "b1"), name=numbered(3))  # type: ignore[arg-type]
    found = partners(read_graph(a), read_graph(b))
    inside = {name: int(other) for name, (other, _) in found.items() if name.isdecimal()}
    assert len(inside) == 1 + 4 * BLOCKS
    assert all(other == int(name) + 3 for name, other in inside.items())
    assert against(a, b).ok
    report = against(a, bad)
    assert report.cause == "layer.1"
    assert all(row.verdict != "missing" for row in report.layers)


def test_names_that_say_nothing_match_nothing_where_the_structure_differs(tmp_path: Path) -> None:
    """`1` is another tensor in a graph with one more node at its start: no alarm, no guess."""
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    ends = [whole("ids", 2, 2)], [floats("out")]
    a = save(
        tmp_path / "a.onnx",
        [
            helper.make_node("Gather", ["table", "ids"], ["1"]),
            helper.make_node("Relu", ["1"], ["2"]),
            helper.make_node("Tanh", ["2"], ["out"]),
        ],
        *ends,
        {"table": table},
    )
    b = save(
        tmp_path / "b.onnx",
        [
            helper.make_node("Neg", ["table"], ["0"]),
            helper.make_node("Neg", ["0"], ["1"]),
            helper.make_node("Gather", ["1", "ids"], ["2"]),
            helper.make_node("Tanh", ["2"], ["out"]),
        ],
        *ends,
        {"table": table},
    )
    assert against(a, b).ok
    report = driftwalk.verify(a, f"onnxruntime,opt=off,file={b}")  # nothing folded away
    assert report.ok
    assert "1" not in [row.point.name for row in report.layers]


def gelu(path: Path, stored: dict[str, np.ndarray] | None = None) -> Path:
    """x w, then what ONNX Runtime fuses into one Gelu, then v."""
    rng = np.random.default_rng(0)
    known = {
        "w": rng.standard_normal((4, 4)).astype(np.float32),
        "v": rng.standard_normal((4, 4)).astype(np.float32),
        "root": np.array(np.sqrt(2), dtype=np.float32),
        "one": np.array(1, dtype=np.float32),
        "half": np.array(0.5, dtype=np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["in"]),
        helper.make_node("Div", ["in", "root"], ["div"]),
        helper.make_node("Erf", ["div"], ["erf"]),
        helper.make_node("Add", ["erf", "one"], ["more"]),
        helper.make_node("Mul", ["in", "more"], ["twice"]),
        helper.make_node("Mul", ["twice", "half"], ["gelu"]),
        helper.make_node("MatMul", ["gelu", "v"], ["y"]),
    ]
    ends = [floats("x", 3, 4)], [floats("y", 3, 4)]
    return save(path, nodes, *ends, known | (stored or {}))


@pytest.mark.parametrize("offline", [True, False])
def test_what_is_fused_is_compared_at_its_boundaries(tmp_path: Path, offline: bool) -> None:
    a = gelu(tmp_path / "a.onnx")
    b = optimise(a, tmp_path / "b.onnx", "ORT_ENABLE_ALL") if offline else a
    report = against(a, b, depth="op")
    assert report.ok
    assert [row.point.name for row in report.layers] == ["in", "gelu", "y"]
    (told,) = (note for note in report.notes if "nearest tensor that both have" in note)
    assert "4 into Gelu" in told
    assert report.observer["candidate"].bit_identical


def test_a_fault_beside_a_fusion_is_placed(tmp_path: Path) -> None:
    spoilt_v = np.eye(4, dtype=np.float32)
    a, b = gelu(tmp_path / "a.onnx"), gelu(tmp_path / "b.onnx", {"v": spoilt_v})
    report = against(a, b, depth="op")
    assert report.cause == "y"
    wrong = gelu(tmp_path / "c.onnx", {"one": np.array(1.1, dtype=np.float32)})
    report = against(a, wrong, depth="op")
    assert report.cause == "more"
    assert report.culprit is not None
    assert "Add(erf, one) \u2192 'more'" in report.culprit.sentence


def test_a_node_that_was_fused_away_is_not_accused_alone(tmp_path: Path) -> None:
    a = gelu(tmp_path / "a.onnx")
    fused = onnx.load(optimise(a, tmp_path / "b.onnx", "ORT_ENABLE_ALL"))
    (node,) = (node for node in fused.graph.node if node.op_type == "Gelu")
    node.op_type = "QuickGelu"
    onnx.save(fused, tmp_path / "c.onnx")
    report = against(a, tmp_path / "c.onnx", depth="op")
    assert report.cause == "gelu"
    assert report.culprit is not None
    assert "; between 'in' and it 4 nodes could not be compared" in report.culprit.sentence


def test_an_optimised_file_has_the_same_blocks(tmp_path: Path) -> None:
    a = residual(tmp_path / "a.onnx")
    b = optimise(a, tmp_path / "b.onnx", "ORT_ENABLE_ALL")
    report = against(a, b)
    assert report.ok
    assert {f"layer.{i}" for i in range(BLOCKS)} <= {row.point.name for row in report.layers}


def test_whole_numbers_are_compared_exactly(tmp_path: Path) -> None:
    """An index that is off by one in a million is a fault, whatever the scale of the others."""
    ends = [whole("x", "n")], [whole("y", "n")]
    add = [helper.make_node("Add", ["x", "c"], ["y"])]
    a = save(tmp_path / "a.onnx", add, *ends, {"c": np.array([10**7, 10**7])})
    b = save(tmp_path / "b.onnx", add, *ends, {"c": np.array([10**7, 10**7 + 1])})
    assert driftwalk.verify(a, probe={"x": np.array([1, 2])}).ok
    report = against(a, b, probe={"x": np.array([1, 2])})
    assert report.verdict == "drift"
    large = {"c": np.array([2**62, 2**62 + 1])}
    c = save(tmp_path / "c.onnx", add, *ends, {"c": np.array([2**62, 2**62])})
    d = save(tmp_path / "d.onnx", add, *ends, large)
    assert against(c, d, probe={"x": np.array([0, 0])}).verdict == "drift"


def test_a_flipped_choice_is_drift(tmp_path: Path) -> None:
    a = residual(tmp_path / "a.onnx")
    b = residual(tmp_path / "b.onnx", spoilt(weights(), "head", 30.0))
    report = against(a, b)
    assert report.layer("choice").verdict == "drift"
    assert report.cause == "scores"


@pytest.mark.parametrize("seeded", [True, False])
def test_a_reference_that_draws_is_unverified(tmp_path: Path, seeded: bool) -> None:
    more = {"seed": 3.0} if seeded else {}
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"], **more),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    a = save(tmp_path / "a.onnx", nodes, [floats("x", 3, 4)], [floats("y", 3, 4)])
    report = driftwalk.verify(a)
    assert report.verdict == "unverified"
    assert "differs from itself" in report.reason
    assert "RandomNormalLike" in report.reason


def test_an_output_that_is_gone_is_never_a_pass(tmp_path: Path) -> None:
    a = residual(tmp_path / "a.onnx")
    model = onnx.load(str(a))
    del model.graph.output[1]
    (tmp_path / "b.onnx").write_bytes(model.SerializeToString())
    report = against(a, tmp_path / "b.onnx")
    assert report.verdict == "drift"
    assert report.layer("choice").verdict == "missing"
    assert against(a, tmp_path / "b.onnx", allow_missing=["choice"]).ok
    back = against(tmp_path / "b.onnx", a)
    assert back.layer("choice").verdict == "extra"
    assert back.verdict == "drift"


def test_another_shape_is_drift(tmp_path: Path) -> None:
    ends = [floats("x", 2, 6)], [floats("y")]
    a, b = (
        save(tmp_path / f"{i}.onnx", [helper.make_node("Flatten", ["x"], ["y"], axis=i)], *ends)
        for i in (0, 1)
    )
    assert against(a, b).verdict == "drift"


@pytest.mark.parametrize("spec", ["torch", "torch:cpu:fp64", "emulated:fp16", "truth"])
def test_what_needs_torch_is_refused(tmp_path: Path, spec: str) -> None:
    a = residual(tmp_path / "a.onnx")
    with pytest.raises(UsageError, match="is an ONNX graph: there is no torch model"):
        driftwalk.verify(a, spec)
    with pytest.raises(UsageError, match="is an ONNX graph: there is no torch model"):
        driftwalk.verify(a, reference=spec)


def test_other_things_a_graph_has_not(tmp_path: Path) -> None:
    a = residual(tmp_path / "a.onnx")
    for options in ({"depth": "module"}, {"blocks": "h"}):
        with pytest.raises(UsageError, match="graph"):
            driftwalk.verify(a, **options)  # type: ignore[arg-type]
    with pytest.raises(ProbeError, match="no tokenizer"):
        driftwalk.verify(a, probe="some text")
    with pytest.raises(ProbeError, match="has no input 'idz'"):
        driftwalk.verify(a, probe={"idz": [[1, 2]]})
    with pytest.raises(ProbeError, match=r"float64 \[1, 2\]"):
        driftwalk.verify(a, probe={"ids": [[0.5, 2.5]]})
    with pytest.raises(UsageError, match="no such file"):
        against(a, tmp_path / "none.onnx")
    (tmp_path / "junk.onnx").write_bytes(b"\x08\x07junk" * 9)
    with pytest.raises(BackendError, match="no ONNX graph"):
        driftwalk.verify(tmp_path / "junk.onnx")
    with pytest.raises(BackendError, match="no ONNX graph"):
        against(a, tmp_path / "junk.onnx")


def test_the_default_probe_fits_the_graph(tmp_path: Path) -> None:
    """Ids inside their table, masks of ones, positions that count, an empty past."""
    table = np.ones((3, 4), dtype=np.float32)
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "wide"], ["rows"]),
        helper.make_node("Gather", ["table", "position_ids"], ["places"]),
        helper.make_node("Add", ["rows", "places"], ["sum"]),
        helper.make_node("Cast", ["attention_mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["weights"], ["top"], keepdims=0),
        helper.make_node("Mul", ["sum", "top"], ["scaled"]),
        helper.make_node("Concat", ["past", "past"], ["kept"], axis=2),
    ]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT32, ["batch", "seq"]),
        whole("position_ids", "batch", "seq"),
        whole("attention_mask", "batch", "seq"),
        floats("past", "batch", 2, "past_len", 4),
    ]
    a = save(
        tmp_path / "a.onnx", nodes, inputs, [floats("scaled"), floats("kept")], {"table": table}
    )
    report = driftwalk.verify(a, batch=3, length=2)
    assert report.ok
    shapes = {name: info.shape for name, info in report.probe.inputs.items()}
    assert shapes["ids"] == (3, 2)
    assert shapes["past"] == (3, 2, 0, 4)
    given = driftwalk.verify(a, probe={"ids": [[0, 2, 1]]}, length=1)
    assert given.probe.inputs["attention_mask"].shape == (1, 3)
    assert "made up: position_ids, attention_mask, past" in given.probe.origin


def test_a_trace_of_a_graph(tmp_path: Path) -> None:
    a = residual(tmp_path / "a.onnx")
    made = driftwalk.backend("onnxruntime,opt=off", str(a))
    probe = driftwalk.verify(a).probe
    trace = driftwalk.record(str(a), "onnxruntime,opt=off")
    assert trace.names == ("embed", "layer.0", "layer.1", "layer.2", "scores", "choice")
    assert probe.sha256 == trace.probe.sha256
    made.close()
