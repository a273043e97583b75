"""Reading graphs: what is wrong with a file is said in a line, and no other file is touched."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import driftwalk
from driftwalk.errors import BackendError
from driftwalk.states import Point
from driftwalk_backends.onnx.graph import OnnxGraph, value_of
from driftwalk_backends.onnx.reading import read_graph
from driftwalk_backends.onnx.structure import (
    METADATA,
    NAMES,
    Scopes,
    cuts,
    repeated,
    scopes_of,
)
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

FLOAT = TensorProto.FLOAT


def value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def save(path: Path, nodes: list[onnx.NodeProto], *weights: onnx.TensorProto) -> Path:
    graph = helper.make_graph(nodes, "g", [value("x", 2, 4)], [value("y", 2, 4)], list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    path.write_bytes(model.SerializeToString())
    return path


def node(op: str, inputs: str, outputs: str, name: str = "") -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=name)


def weights(location: str, length: int = 64, offset: int = 0) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(np.zeros((4, 4), np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, entry in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(entry))
    return tensor


def graph_with(path: Path, location: str, **place: int) -> Path:
    return save(path, [node("MatMul", "x w", "y")], weights(location, **place))


# -- what is no graph ------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"not a graph", os.urandom(300), b"\x08\x07" * 50])
def test_what_is_no_graph_says_so(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(BackendError, match=r"broken.onnx' is no ONNX graph") as caught:
        read_graph(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_truncated_graph_says_so_from_the_outside(tmp_path: Path) -> None:
    whole = save(tmp_path / "whole.onnx", [node("Relu", "x", "y")])
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(whole.read_bytes()[:-9])
    with (
        driftwalk.backend(f"onnxruntime,file={cut}", "demo:decoder") as backend,
        pytest.raises(BackendError, match="no ONNX graph"),
    ):
        backend.run(make_probe(open_model("demo:decoder")))


def test_a_graph_without_nodes_has_nothing_to_run(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="one with no nodes"):
        read_graph(save(tmp_path / "empty.onnx", []))


def test_nodes_that_depend_on_each_other_are_refused(tmp_path: Path) -> None:
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")]
    with pytest.raises(BackendError, match="3 of its nodes depend on each other"):
        read_graph(save(tmp_path / "circle.onnx", nodes))


def test_nodes_in_any_order_are_put_in_order(tmp_path: Path) -> None:
    nodes = [node("Relu", "b", "y"), node("Relu", "a", "b"), node("Relu", "x", "a")]
    graph = read_graph(save(tmp_path / "mixed.onnx", nodes))
    assert [n.outputs[0] for n in graph.nodes] == ["a", "b", "y"]


# -- weights in other files ------------------------------------------------------------------------


def test_weights_in_the_graphs_own_folder_are_fine(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for location in ("w.bin", "sub/w.bin"):
        (tmp_path / location).write_bytes(bytes(64))
        assert read_graph(graph_with(tmp_path / "g.onnx", location)).dtype == "fp32"


@pytest.mark.parametrize(
    "location",
    ["../w.bin", "sub/../../w.bin", "{outside}/w.bin", "link.bin", "linked/w.bin", "", "w\0.bin"],
)
def test_weights_anywhere_else_are_refused(location: str, tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path
    (home / "sub").mkdir(parents=True)
    (outside / "w.bin").write_bytes(bytes(64))
    (home / "link.bin").symlink_to(outside / "w.bin")
    (home / "linked").symlink_to(outside)
    path = graph_with(home / "g.onnx", location.format(outside=outside))
    with pytest.raises(BackendError, match="not in its own folder") as caught:
        read_graph(path)
    assert "copy them beside the graph" in str(caught.value)


def test_weights_inside_a_branch_are_looked_at_too(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [node("MatMul", "x w", "z")], "inner", [], [value("z", 2, 4)], [weights("../w.bin")]
    )
    choice = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    flag = numpy_helper.from_array(np.array(True), "c")
    with pytest.raises(BackendError, match="not in its own folder"):
        read_graph(save(tmp_path / "g.onnx", [choice], flag))


def test_weights_inside_a_function_are_looked_at_too(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["w"], value=weights("../w.bin"))
    body = [constant, node("MatMul", "x w", "y")]
    opset = [helper.make_opsetid("", 18)]
    function = helper.make_function("own", "Product", ["x"], ["y"], body, opset)
    called = helper.make_node("Product", ["x"], ["y"], domain="own")
    graph = helper.make_graph([called], "g", [value("x", 2, 4)], [value("y", 2, 4)])
    model = helper.make_model(graph, opset_imports=opset, functions=[function])
    (tmp_path / "g.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BackendError, match="not in its own folder"):
        read_graph(tmp_path / "g.onnx")


def test_weights_that_are_gone_or_cut_off_are_told(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="cannot be read"):
        read_graph(graph_with(tmp_path / "g.onnx", "w.bin"))
    (tmp_path / "w.bin").write_bytes(bytes(40))
    with pytest.raises(BackendError, match=r"wants 64 bytes of 'w.bin', which has 40"):
        read_graph(graph_with(tmp_path / "g.onnx", "w.bin"))


# -- who depends on whom ---------------------------------------------------------------------------


def stream(tmp_path: Path) -> OnnxGraph:
    """x -> a -> (b, skip) -> s -> (c, skip) -> y, and a shape that is carried across."""
    nodes = [
        node("Relu", "x", "a", "/m/embed/Relu"),
        node("Shape", "a", "dims", "/m/Shape"),
        node("Tanh", "a", "b", "/m/h.0/mlp/Tanh"),
        node("Add", "a b", "s", "/m/h.0/Add"),
        node("Tanh", "s", "c", "/m/h.1/mlp/Tanh"),
        node("Add", "s c", "t", "/m/h.1/Add"),
        node("Reshape", "t dims", "y", "/m/Reshape"),
    ]
    return read_graph(save(tmp_path / "stream.onnx", nodes))


def test_dependence_is_by_computation_not_by_place(tmp_path: Path) -> None:
    graph = stream(tmp_path)
    assert graph.depends("c", "s")
    assert graph.depends("y", "a")
    assert not graph.depends("a", "s")
    assert not graph.depends("s", "s")
    assert graph.depends("b", "x"), "everything may come from an input"


def test_the_residual_stream_is_a_row_of_narrow_places(tmp_path: Path) -> None:
    graph = stream(tmp_path)
    assert cuts(graph, "a") == ("a", "s", "t")
    assert cuts(graph, "s") == ("s", "t")


def test_blocks_repeat_as_often_as_the_model_has_layers_or_are_none(tmp_path: Path) -> None:
    graph = stream(tmp_path)
    assert repeated(graph, "a", 2) == ("s", "t")
    assert repeated(graph, "a", 3) == ()
    assert repeated(graph, "a", 1) == repeated(graph, "s", 1) == (), "one block repeats nothing"


def test_exposing_adds_outputs_and_leaves_the_graph_alone(tmp_path: Path) -> None:
    graph = stream(tmp_path)
    before = graph.exposing([])
    exposed = onnx.load_model_from_string(graph.exposing(["s", "y", "t"]))
    assert [v.name for v in exposed.graph.output] == ["y", "s", "t"]
    assert graph.exposing([]) == before


# -- scopes ----------------------------------------------------------------------------------------


def leaving(graph: OnnxGraph, module: str, name: str = "layer.0") -> tuple[str, ...]:
    (scopes,) = scopes_of(graph)
    return scopes.leaving(Point(name, module))


def test_a_blocks_output_is_what_leaves_its_scope(tmp_path: Path) -> None:
    graph = stream(tmp_path)
    assert leaving(graph, "m.h.0") == ("s",)
    assert leaving(graph, "m.h.0.mlp", "layer.0.mlp") == ("b",)
    assert leaving(graph, "input of m.h.0", "embed") == ("a",)
    assert leaving(graph, "outer.m.h.1", "layer.1") == ("t",), "an exporter may drop the outermost"
    assert leaving(graph, "h.1", "layer.1") == ("t",), "or add one of its own"
    assert leaving(graph, "m.h.7", "layer.7") == ()


def test_metadata_is_read_as_data_and_never_run(tmp_path: Path) -> None:
    path = tmp_path / "stream.onnx"
    stream(tmp_path)
    model = onnx.load(str(path))
    texts = ["['', 'm', 'm.h.0', 'add']", "__import__('os')", "[" * 5000, "['a', 3]", "{}", "['x']"]
    for item, text in zip(model.graph.node[1:], texts, strict=True):
        item.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=text)
    onnx.save(model, str(path))
    graph = read_graph(path)
    assert [scopes.way for scopes in scopes_of(graph)] == [METADATA, NAMES]
    assert Scopes(graph, METADATA).of_node == ["", "m.h.0", "", "", "", "", ""]


def test_inputs_are_told_in_onnx_runtimes_words() -> None:
    many = helper.make_tensor_sequence_value_info("many", TensorProto.FLOAT, None)
    open_ = helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", None, 3])
    assert str(value_of(many)) == "'many' seq(tensor(float)) []"
    assert str(value_of(open_)) == "'x' tensor(int64) [batch, ?, 3]"
    assert value_of(many).is_sequence
    assert value_of(many).dtype == np.float32
    strange = onnx.ValueInfoProto(name="strange")
    strange.type.tensor_type.elem_type = 4711
    assert value_of(strange).dtype is None
