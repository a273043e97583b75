"""Constants inside of operations: an epsilon is wrong, and the axis that is normed is cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import driftwalk
from driftwalk.spec import Spec
from driftwalk_backends.faults.fault import Fault
from driftwalk_backends.faults.graph import faulty_backend
from driftwalk_backends.faults.planning import FaultyModel
from driftwalk_backends.onnx.backend import Sessions
from driftwalk_backends.onnx.graph import OnnxGraph
from driftwalk_backends.probes import make_probe
from driftwalk_backends.reducing.cuts import Cut, Cutting
from driftwalk_backends.reducing.graph_runs import GraphJudge, wide
from driftwalk_backends.reducing.mending import Mending
from driftwalk_backends.reducing.programs import Operation, Ref, TorchCut
from driftwalk_backends.reducing.states import ModelNumbers, with_right_numbers
from driftwalk_backends.sources import torch_model

X = np.random.default_rng(0).standard_normal((2, 6, 96)).astype("f")


@pytest.mark.parametrize("epsilon", [1e-5, 1e-4])
def test_of_a_graph_with_another_epsilon_a_few_values_are_left(epsilon: float) -> None:
    """1e-5 is what a graph may leave out, as it is the default."""
    model = torch_model("demo:encoder")
    probe = make_probe(model)
    path = "bert.encoder.layer.2.output.LayerNorm"
    told = {"name": "eps", "value": epsilon}
    fault = Fault("wrong_epsilon", ("layer.2",), path, f"{path}.eps is {epsilon}", told)
    with (
        driftwalk.backend("onnxruntime", model) as plain,
        faulty_backend(plain, FaultyModel(model, fault), probe) as side,
    ):
        found = driftwalk.reduce(model, side, None, probe=probe)
    assert (found.point, found.fault) == ("layer.2", "graph")
    assert found.operations == ("LayerNormalization",)
    assert found.after is not None
    assert found.after.longest < 16
    for one in found.examples[:2]:
        assert abs(one.found) < abs(one.expected), "the larger epsilon makes all of it smaller"


class Norms(nn.Module):
    def __init__(self, epsilons: tuple[float, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(96, eps=eps), nn.Linear(96, 96)) for eps in epsilons
        ).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def test_of_a_module_with_another_epsilon_a_few_values_are_left() -> None:
    right, wrong = Norms((1e-12, 1e-12, 1e-12)), Norms((1e-12, 1e-4, 1e-12))
    found = driftwalk.reduce(right, wrong, None, probe={"x": X})
    assert (found.point, found.fault) == ("layer.1", "module")
    assert found.operations[0] == "native_layer_norm"
    assert found.after is not None
    assert found.after.longest < 16


def normed(x: np.ndarray, epsilon: float) -> np.ndarray:
    wide_x = x.astype(float)
    centred = wide_x - wide_x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon))


@pytest.mark.parametrize("attributes", [{}, {"epsilon": 1e-5}, {"epsilon": 1e-3}])
def test_a_constant_of_the_model_takes_the_place_of_another_inside_of_a_node(
    attributes: dict[str, float],
) -> None:
    x, one = X[0, :, :8], np.ones(8, np.float32)
    node = helper.make_node("LayerNormalization", ["x", "w"], ["y"], **attributes)
    cut = Cut((node,), {"w": one}, {"x": x}, "y", (("", 18),), 9)
    assert cut.constants == {(0, "epsilon"): pytest.approx(attributes.get("epsilon", 1e-5))}
    expected = normed(x, 1e-2)
    found = with_right_numbers(cut, ModelNumbers([one], [1e-2]), expected, 1.0, wide)
    assert found is not None
    assert found.constants == {(0, "epsilon"): pytest.approx(1e-2)}
    assert with_right_numbers(cut, ModelNumbers([one], [1e-1]), expected, 1.0, wide) is None


def test_a_constant_that_is_stored_as_a_tensor_is_replaced_too() -> None:
    x = np.abs(X[0, 0, :8]).astype(np.float32)
    nodes = (
        helper.make_node("Add", ["x", "eps"], ["sum"]),
        helper.make_node("Sqrt", ["sum"], ["y"]),
    )
    cut = Cut(nodes, {"eps": np.float32(1e-3)[None]}, {"x": x}, "y", (("", 18),), 9)
    expected = np.sqrt(x.astype(float) + 1e-5)
    found = with_right_numbers(cut, ModelNumbers([], [2.0, 1e-5]), expected, 1.0, wide)
    assert found is not None
    assert found.stored["eps"].item() == pytest.approx(1e-5)


def test_of_one_node_that_is_the_whole_region_what_is_right_is_asked_too(tmp_path: Path) -> None:
    """Of a graph each tensor is a point: what lies between two of them is one product."""
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(6, 8)).astype("f"), rng.normal(size=(8, 8)).astype("f")
    nodes = [
        helper.make_node("Softmax", ["x"], ["shares"]),
        helper.make_node("MatMul", ["shares", "weight"], ["y"]),
    ]
    for name, scale in (("right", 1.0), ("port", 1.01)):
        stored = {"weight": (weight * scale).astype(np.float32)}
        graph = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info("x", 1, [6, 8])],
            [helper.make_tensor_value_info("y", 1, [6, 8])],
            [numpy_helper.from_array(array, key) for key, array in stored.items()],
        )
        opset = [helper.make_opsetid("", 18)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=9)
        onnx.save(made, str(tmp_path / f"{name}.onnx"))
    port = f"onnxruntime,file={tmp_path / 'port.onnx'}"
    found = driftwalk.reduce(tmp_path / "right.onnx", port, None, probe={"x": x}, point="y")
    assert found.operations == ("MatMul",)
    assert found.after is not None
    assert found.after.longest == 1


def test_a_mask_of_the_lowest_number_in_place_of_minus_infinity_is_no_fault() -> None:
    """It is infinitely far off, and takes away the same."""
    x = X[0, :, :8]
    nodes = [
        helper.make_node("Where", ["is_left", "x", "lowest"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["shares"]),
        helper.make_node("MatMul", ["shares", "weight"], ["y"]),
    ]
    stored = {
        "is_left": np.arange(48).reshape(6, 8) % 7 > 1,
        "lowest": np.float32([np.finfo(np.float32).min]),
        "weight": X[1, :, :8].T.copy(),
    }
    whole = Cut(tuple(nodes), stored, {"x": x}, "y", (("", 18),), 9)
    made = wide(whole, None, ("masked", "shares", "y"))
    values = {"x": x, **stored, **{name: a.astype("f") for name, a in made.items()}}
    cutting = Cutting(OnnxGraph(Path("whole.onnx"), whole.model()), values)
    judge = GraphJudge(Sessions(Spec.parse("onnxruntime"), "small", {}))
    mending = Mending(whole, cutting, judge, None, {}, {})
    assert mending.begin(mending.wide["y"] * 1.01)
    masked, shares = mending.wide["masked"], mending.wide["shares"]
    assert not mending.matters("masked", np.where(masked < -1e30, -np.inf, masked))
    assert mending.matters("shares", shares * 1.01)


def test_constants_that_are_the_model_s_stay() -> None:
    numbers = ModelNumbers([], [1e-5, 0.125])
    assert numbers.others(float(np.float32(1e-5))) == []
    assert numbers.others(1e-6) == [1e-5, 0.125]


def test_constants_of_operations_of_torch_are_found_by_place_and_by_name() -> None:
    node = Operation(
        torch.ops.aten.native_layer_norm.default,
        (Ref("x"), [8], None, None, 1e-5),
        {},
        ("norm",),
    )
    cut = TorchCut((node,), {}, {"x": X[0, :, :8]}, "norm", (), 0)
    assert cut.constants == {(0, "4"): 1e-5}
    assert cut.with_constants({(0, "4"): 1e-12}).constants == {(0, "4"): 1e-12}
    assert cut.constants == {(0, "4"): 1e-5}, "the cut itself is as it was"
