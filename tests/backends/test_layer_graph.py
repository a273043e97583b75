"""A layer cut out of an ONNX graph: the same state, its own weights, nobody's paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import zoo
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.registry import create
from driftwalk_backends.bundles import layer_graph
from driftwalk_backends.bundles.layer_graph import Whole, write_layer
from driftwalk_backends.onnx.runtime import OnnxRuntime
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model


def run(file: Path, feed: dict[str, Array]) -> Array:
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    result: Array = session.run(None, feed)[0]
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "t5", "bert", "vit"])
def test_every_point_can_be_cut_out(name: str, tmp_path: Path) -> None:
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    with create("onnxruntime", model) as backend:
        assert isinstance(backend, OnnxRuntime)
        trace, whole = backend.trace(probe), Whole.of(backend._export(probe))
        states = {state.point.name: state.array for state in trace}
        everything = sum(file.stat().st_size for file in whole.path.parent.iterdir())
        for number, point in enumerate(trace.names):
            file = tmp_path / f"{number}.onnx"
            inputs = write_layer(whole, point, states, file)
            feed = {n: states.get(i.what, probe.inputs.get(i.what)) for n, i in inputs.items()}
            # Not the same bits: cut off from its neighbours, a node may be fused otherwise.
            found = run(file, feed)  # type: ignore[arg-type]
            np.testing.assert_allclose(found, states[point], rtol=1e-5, atol=1e-6)
            before = {one.what for one in inputs.values()} - probe.inputs.keys()
            assert len(before) <= 2, f"{point} needs {before}"
            assert file.stat().st_size < everything / 2
            assert b"stack_trace" not in file.read_bytes()
            assert str(Path(onnx.__file__).parent.parent).encode() not in file.read_bytes()


def branching(path: Path) -> Path:
    """b = a + w if flag else a - v, inside an If that sees the names around it."""

    def branch(op: str, weight: str, out: str) -> onnx.GraphProto:
        node = helper.make_node(op, ["a", weight], [out])
        return helper.make_graph(
            [node], op, [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, [2, 3])]
        )

    weights = {
        name: np.full(3, value, np.float32) for name, value in (("w", 1), ("v", 5), ("u", 9))
    }
    nodes = [
        helper.make_node("Mul", ["x", "u"], ["a"]),
        helper.make_node(
            "If",
            ["flag"],
            ["b"],
            then_branch=branch("Add", "w", "yes"),
            else_branch=branch("Sub", "v", "no"),
        ),
        helper.make_node("Relu", ["b"], ["c"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [2, 3])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


@pytest.fixture
def whole(tmp_path: Path) -> Whole:
    return Whole(branching(tmp_path / "whole.onnx"), {"embed": "a", "layer.0": "b", "logits": "c"})


STATES = {
    "embed": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer.0": np.zeros((2, 3), np.float32),
    "logits": np.zeros((2, 3), np.float32),
}


def test_names_inside_a_branch_count(whole: Whole, tmp_path: Path) -> None:
    """The states inside are of types that the graph does not tell: their arrays do."""
    file = tmp_path / "layer.onnx"
    inputs = write_layer(whole, "layer.0", STATES, file)
    assert {name: (one.what, one.dtype) for name, one in inputs.items()} == {
        "a": ("embed", "float32"),
        "flag": ("flag", "bool"),
    }
    found = run(file, {"a": STATES["embed"], "flag": np.array(False)})
    np.testing.assert_array_equal(found, STATES["embed"] - 5)
    assert {item.name for item in onnx.load(str(file)).graph.initializer} == {"w", "v"}


def test_many_weights_lie_beside_the_graph(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_graph, "LARGEST", 1)
    graph = onnx.load(str(whole.path))
    graph.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.full((400, 3), 2, np.float32), "w")
    )
    onnx.save(graph, str(whole.path))
    file = tmp_path / "layer.onnx"
    write_layer(whole, "layer.0", STATES, file)
    assert (tmp_path / "layer.onnx.data").stat().st_size >= 400 * 3 * 4
    assert len(file.read_bytes()) < 2000


def test_a_point_that_no_node_makes_is_refused(whole: Whole, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"No node of whole\.onnx makes the point 'norm'"):
        write_layer(whole, "norm", STATES, tmp_path / "layer.onnx")
