"""A graph that computes something else than its model: the node is found, and what is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import driftwalk
from driftwalk.adapter import Backend
from driftwalk.states import Probe
from driftwalk_backends.faults.fault import Fault
from driftwalk_backends.faults.graph import faulty_backend
from driftwalk_backends.faults.planning import FaultyModel
from driftwalk_backends.loaded import LoadedModel
from driftwalk_backends.probes import make_probe
from driftwalk_backends.reducing.changes import (
    Window,
    lengths,
    rounded,
    rows_used,
    shorter,
    windows,
)
from driftwalk_backends.reducing.cuts import Cut
from driftwalk_backends.reducing.graph_runs import by_definition, wide
from driftwalk_backends.reducing.right import Made, Partner, Right
from driftwalk_backends.reducing.showing import Shown, same_kind, same_place
from driftwalk_backends.reducing.states import ModelNumbers, is_order_alone, with_right_numbers
from driftwalk_backends.sources import torch_model

WEIGHT = "transformer.h.3.mlp.c_fc.weight"
FAULT = Fault("scaled_weight", ("layer.3",), WEIGHT, f"{WEIGHT} times 1.01", {"scale": 0.01})
HERE, OTHER = "transformer.h.5", "transformer.h.3"
STALE = Fault("stale_layer", ("layer.5",), HERE, f"{HERE} holds {OTHER}", {"other": OTHER})


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return torch_model("demo:decoder")


def test_of_a_report_that_drifted_the_product_with_the_wrong_matrix_is_left(
    model: LoadedModel, clean: Backend, probe: Probe
) -> None:
    """Along its inner axis, too: the matrix that would be right is the torch model's."""
    with faulty_backend(clean, FaultyModel(model, FAULT), probe) as side:
        report = driftwalk.verify(model, side, probe=probe)
        found = driftwalk.reduce(report, side, None, probe=probe)
    assert (found.point, found.fault) == ("layer.3", "graph")
    assert found.operations == ("Gemm",)
    assert found.share > 0.99
    assert found.after is not None
    assert found.after.longest < 8
    assert found.after.ratio > 100
    (example, *_) = found.examples
    assert abs(example.found / example.expected - 1) < 0.1, "a percent, or ten of them at most"


def test_of_a_block_with_the_weights_of_another_the_first_wrong_product_is_left(
    model: LoadedModel, clean: Backend, probe: Probe, tmp_path: Path
) -> None:
    """No single place mends it; the model's own numbers make these nodes right."""
    with faulty_backend(clean, FaultyModel(model, STALE), probe) as side:
        found = driftwalk.reduce(model, side, tmp_path / "out", probe=probe, point="layer.5")
    assert found.after is not None
    assert found.after.nodes <= 12
    assert found.after.longest <= 64
    assert found.share < 0.5
    assert any("more than one place" in note for note in found.notes)
    assert "it drifts" in found.printed


@pytest.mark.parametrize("role", ["value", "query"])
def test_a_product_before_its_bias_is_cut_along_the_inner_axis_too(role: str) -> None:
    """No node is left to be taken out then: what is right with the model's numbers is asked all
    the same."""
    encoder = torch_model("demo:encoder")
    given, name = make_probe(encoder), f"bert.encoder.layer.2.attention.self.{role}.weight"
    fault = Fault("scaled_weight", ("layer.2",), name, "times 1.001", {"scale": 1e-3})
    with (
        driftwalk.backend("onnxruntime", encoder) as plain,
        faulty_backend(plain, FaultyModel(encoder, fault), given) as side,
    ):
        found = driftwalk.reduce(encoder, side, None, probe=given)
    assert found.point == "layer.2"
    assert found.operations == ("MatMul",)
    assert found.after is not None
    assert found.after.longest == 1


def test_a_matrix_that_is_off_by_a_few_roundoffs_is_told_from_what_is_given_rounded(
    model: LoadedModel, clean: Backend, probe: Probe
) -> None:
    """The states that the product is made of are off by nearly as much, once they are rounded."""
    name = "transformer.h.3.attn.c_proj.weight"
    near = Fault("scaled_weight", ("layer.3",), name, "times 1.000001", {"scale": 1e-6})
    with faulty_backend(clean, FaultyModel(model, near), probe) as side:
        found = driftwalk.reduce(model, side, None, probe=probe, point="layer.3")
    assert found.operations == ("Gemm",)
    assert found.share > 0.99
    assert found.after is not None
    assert found.after.longest <= 64
    for one in found.examples:
        assert one.found / one.expected - 1 == pytest.approx(1e-6, abs=5e-7)


@pytest.mark.parametrize("element", [5, 7])
def test_of_a_weight_that_became_next_to_infinite_the_node_that_takes_it_is_left(
    model: LoadedModel, clean: Backend, probe: Probe, element: int
) -> None:
    """What comes out is NaN: the graph's fault, and no honest NaN. In float64 it may be finite."""
    name = "transformer.h.2.ln_1.weight"
    settings = {"role": "exponent_high", "bit": 30, "element": element, "dtype": "fp32"}
    flipped = Fault("bit_flip", ("layer.2",), name, "bit 30 flipped", settings)
    with faulty_backend(clean, FaultyModel(model, flipped), probe) as side:
        found = driftwalk.reduce(model, side, None, probe=probe)
    assert (found.point, found.fault) == ("layer.2", "graph")
    assert found.operations == ("LayerNormalization",)
    assert found.share == 1
    assert found.after is not None
    assert found.after.longest <= 64
    assert found.after.ratio > 1e6
    assert found.finished


def test_a_table_that_is_wrong_for_two_nodes_that_undo_it_is_found_by_its_numbers(
    tmp_path: Path,
) -> None:
    """As with positions that are off by one for queries and keys alike: to mend one alone helps
    nothing, and the table that both take is the cause."""
    rng = np.random.default_rng(0)
    angles = np.arange(6)[:, None] * 0.5 ** np.arange(4)
    table = np.cos(angles).astype(np.float32)
    given = {name: rng.normal(size=(6, 4)).astype(np.float32) for name in ("x", "k")}
    nodes = [
        helper.make_node("Mul", ["x", "table"], ["a"]),
        helper.make_node("Mul", ["k", "table"], ["b"]),
        helper.make_node("Transpose", ["b"], ["turned"]),
        helper.make_node("MatMul", ["a", "turned"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"]),
    ]
    for name, stored in (("right", table), ("port", np.roll(table, 1, axis=0))):
        graph = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info(n, 1, [6, 4]) for n in given],
            [helper.make_tensor_value_info("y", 1, [6, 6])],
            [numpy_helper.from_array(stored, "table")],
        )
        opset = [helper.make_opsetid("", 18)]
        onnx.save(
            helper.make_model(graph, opset_imports=opset, ir_version=9),
            str(tmp_path / f"{name}.onnx"),
        )
    port = f"onnxruntime,file={tmp_path / 'port.onnx'}"
    found = driftwalk.reduce(tmp_path / "right.onnx", port, None, probe=given, point="y")
    assert found.operations == ("Mul",)
    assert found.share > 0.99
    assert found.after is not None
    assert found.after.longest == 1


def test_numbers_that_are_computed_from_parameters_alone_are_among_those_that_may_be_right() -> (
    None
):
    rng = np.random.default_rng(0)
    pace, x = rng.normal(size=4), rng.normal(size=4)
    cos = np.cos(pace)
    tensors = [
        Made("given", pace, ()),
        Made("layer_norm", x, (5,)),
        Made("cos", cos, (0,)),
        Made("mul.Tensor", x * cos, (1, 2)),
        Made("mul.Tensor", x * x, (1, 1)),
        Made("given", rng.normal(size=4), ()),
    ]
    right = Right(tensors)
    begin = Partner(x, 0.0, 1)
    made = right.parameters(Partner(x * cos, 0.0, 3), [begin])
    assert [array.tolist() for array in made] == [pace.tolist(), cos.tolist()]
    assert right.parameters(Partner(x * x, 0.0, 4), [begin]) == []


def test_numbers_that_make_nodes_right_are_found_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    x, wrong, right = (rng.normal(size=(4, 4)).astype(np.float32) for _ in range(3))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    cut = Cut((node,), {"w": wrong}, {"x": x}, "y", (("", 18),), 9)
    expected = x.astype(float) @ right.astype(float)
    numbers = [rng.normal(size=16), right.astype(float).ravel()]
    found = with_right_numbers(cut, ModelNumbers(numbers), expected, 1.0, wide)
    assert found is not None
    assert np.array_equal(found.stored["w"], right)
    assert with_right_numbers(cut, ModelNumbers(numbers[:1]), expected, 1.0, wide) is None


def shown(error: list[float], scale: float = 1.0, as_written: float = 0.0) -> Shown:
    truth = np.full(len(error), scale)
    return Shown(truth + np.array(error), truth, 1e-7, as_written)


def test_an_error_elsewhere_or_of_another_sign_or_size_is_another_drift() -> None:
    old = np.array([1e-3, 0.0, 2e-3])
    assert same_place(old * 1.5, old)
    assert not same_place(-old, old)
    assert not same_place(old * 3, old)
    assert not same_place(old[::-1].copy() * np.array([0, 1, 0]), old)
    assert not same_place(old[:2], old)


def test_on_other_values_signs_size_and_what_it_takes_to_show_it_must_agree() -> None:
    old = shown([1e-3, 2e-3, 1e-3])
    assert same_kind(shown([2e-3, 1e-3]), old)
    assert not same_kind(shown([-2e-3, -1e-3]), old)
    assert not same_kind(shown([2e-5, 1e-5]), old)
    assert not same_kind(shown([2e-3, 1e-3], as_written=50.0), old)


def test_what_is_not_finite_is_a_drift_of_its_own() -> None:
    broken = Shown(np.array([np.nan, 1.0]), np.array([2.0, 1.0]), 1e-7, 0.0)
    assert broken.ratio == np.inf
    assert same_place(broken.error, broken.error)
    assert not same_place(broken.error, np.array([0.0, 1e-3]))


def test_a_right_tensor_is_found_by_its_numbers_and_a_wrong_one_by_what_it_is_made_of() -> None:
    rng = np.random.default_rng(0)
    x, other, y = rng.normal(size=(3, 20))
    right = Right([Made("mul.Tensor", x, ()), Made("sin", other, ()), Made("mm", y, (0,))])
    near = right.partner((x + 1e-6).reshape(4, 5))
    assert near is not None
    assert near.off < 1e-5
    assert np.array_equal(near.array, x.reshape(4, 5))
    assert right.partner(rng.normal(size=20)) is None
    (made,) = right.behind([near], rng.normal(size=20))
    assert np.array_equal(made.array, y)


def test_a_table_keeps_only_rows_that_are_looked_up() -> None:
    table = np.arange(20.0, dtype=np.float32).reshape(10, 2)
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    ids = np.array([[7, 3, 7]])
    cut = Cut((node,), {"table": table}, {"ids": ids}, "y", (("", 18),), 9)
    small = rows_used(cut)
    assert small is not None
    assert np.array_equal(small.stored["table"][small.given["ids"]], table[ids])
    assert len(small.stored["table"]) == 2
    assert rows_used(small) is None


@pytest.mark.parametrize("kind", ["Gather", "GatherElements"])
@pytest.mark.parametrize("begin", [0, 5, 34])
def test_rows_in_another_order_are_looked_up_in_what_is_left(kind: str, begin: int) -> None:
    """Half of a window's rows may lie outside of it."""
    x = np.random.default_rng(0).normal(size=(2, 40, 3)).astype(np.float32)
    order = np.arange(40).reshape(2, 20).T.reshape(40)
    order[7] -= 40  # counted from the end
    if kind == "GatherElements":
        order = np.broadcast_to(order[:, None], x.shape).copy()
    node = helper.make_node(kind, ["x", "order"], ["y"], axis=-2)
    cut = Cut((node,), {"order": order}, {"x": x}, "y", (("", 18),), 9)
    small = shorter(cut, Window(40, begin, 6))
    assert small.given["x"].shape == (2, 6, 3)
    whole, left = (by_definition(one.model(), one.given) for one in (cut, small))
    assert whole is not None
    assert left is not None
    assert np.array_equal(left, whole[:, begin : begin + 6])


def test_a_wrong_order_keeps_what_is_right() -> None:
    right = np.array([0.0, 2.0, -1.0])
    assert is_order_alone(np.float32([2.0, 0.0, -1.0]), right)
    assert is_order_alone(right + 1e-7, right)
    assert not is_order_alone(right[:1] + 2, right[:1])
    assert not is_order_alone(np.array([2.0, 2.0, -1.0]), right)
    assert not is_order_alone(right, None)


def test_a_stored_size_is_a_length_and_the_number_of_an_axis_is_none() -> None:
    node = helper.make_node("DFT", ["x", "size", "axis"], ["y"])
    stored = {"size": np.array(1280), "axis": np.array(2)}
    x = np.zeros((1, 2, 641, 2), np.float32)
    cut = Cut((node,), stored, {"x": x}, "y", (("", 20),), 9)
    assert lengths(cut) == [1280, 641, 2]
    assert shorter(cut, Window(1280, 0, 50)).stored == {"size": 50, "axis": 2}
    (window,) = windows(1280, 50, [], lengths(cut))
    both = shorter(cut, window)
    assert not list(windows(641, 50, [], lengths(cut))), "not without the other"
    assert both.stored == {"size": 50, "axis": 2}
    assert both.given["x"].shape == (1, 2, 26, 2), "half of it and one goes with it"


def test_values_are_rounded_to_digits_that_count() -> None:
    given = np.array([0.0, 123.4, -0.01239, np.inf], np.float32)
    assert rounded(given, 2).tolist() == pytest.approx([0.0, 120.0, -0.012, np.inf])
