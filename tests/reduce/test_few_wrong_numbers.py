"""Stored numbers that are wrong: however few they are, and wherever they stand, little is left."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import driftwalk
from driftwalk.adapter import Backend
from driftwalk.states import Probe
from driftwalk.tasks.reduce.result import Reduction
from driftwalk_backends.faults.fault import Fault
from driftwalk_backends.faults.graph import faulty_backend
from driftwalk_backends.faults.planning import FaultyModel
from driftwalk_backends.loaded import LoadedModel
from driftwalk_backends.probes import make_probe
from driftwalk_backends.reducing.axes import begins, groups
from driftwalk_backends.reducing.changes import trimmed
from driftwalk_backends.reducing.cuts import Cut
from driftwalk_backends.reducing.states import ModelNumbers, is_wrong_order
from driftwalk_backends.sources import torch_model

LAYER = "bert.encoder.layer.2"


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return torch_model("demo:encoder")


def reduced(model: LoadedModel, clean: Backend, probe: Probe, fault: Fault) -> Reduction:
    with faulty_backend(clean, FaultyModel(model, fault), probe) as side:
        return driftwalk.reduce(model, side, None, probe=probe, point=fault.points[0])


def test_a_square_matrix_that_is_used_transposed_is_cut_beside_its_bias(
    model: LoadedModel, clean: Backend, probe: Probe
) -> None:
    """torch adds the bias in the same operation: the product's right tensor is that without it."""
    path = f"{LAYER}.attention.output.dense"
    fault = Fault("transposed_weight", ("layer.2",), f"{path}.weight", "transposed")
    found = reduced(model, clean, probe, fault)
    assert found.operations == ("MatMul",)
    assert found.share > 0.99
    assert found.after is not None
    assert found.after.longest == 1


def test_of_a_bias_that_is_left_out_the_sum_is_left(
    model: LoadedModel, clean: Backend, probe: Probe
) -> None:
    """It has the numbers of the right product then, and is not what is right there."""
    name = f"{LAYER}.intermediate.dense.bias"
    fault = Fault("dropped_bias", ("layer.2",), name, "left out")
    found = reduced(model, clean, probe, fault)
    assert found.operations == ("Add",)
    assert found.after is not None
    assert found.after.longest == 1


@pytest.mark.parametrize("point", ["layer.1", "layer.4"])
def test_of_a_bias_that_is_left_out_of_a_product_that_has_it_that_is_left(point: str) -> None:
    decoder = torch_model("demo:decoder")
    given = make_probe(decoder)
    name = f"transformer.h.{point[-1]}.mlp.c_fc.bias"
    fault = Fault("dropped_bias", (point,), name, "left out")
    with driftwalk.backend("onnxruntime", decoder) as plain:
        found = reduced(decoder, plain, given, fault)
    assert found.operations == ("Gemm",)
    assert found.after is not None
    assert found.after.longest == 1


@pytest.mark.parametrize("element", [3 * 64 + 60, 60 * 64 + 3])
def test_one_number_of_a_square_matrix_is_left_alone(
    model: LoadedModel, clean: Backend, probe: Probe, element: int
) -> None:
    """Its row and its column are far apart: no part along both axes alike has the number in it.

    Beside 4,095 others it shows in one column, and the share of what is wrong grows.
    """
    name = f"{LAYER}.attention.self.key.weight"
    settings = {"role": "mantissa_high", "bit": 15, "element": element, "dtype": "fp32"}
    fault = Fault("bit_flip", ("layer.2",), name, "bit 15 flipped", settings)
    found = reduced(model, clean, probe, fault)
    assert found.operations[0] == "MatMul"
    assert found.after is not None
    assert found.after.longest == 1
    assert found.after.ratio > 100


@pytest.mark.parametrize("bit", [15, 8])
def test_one_number_of_a_table_is_found_beside_all_others(
    model: LoadedModel, clean: Backend, probe: Probe, bit: int
) -> None:
    """The smaller one is nothing beside the roundoffs of the whole state, and drifts by itself."""
    name = "bert.embeddings.position_embeddings.weight"
    settings = {"role": "mantissa_high", "bit": bit, "element": 5 * 64 + 31, "dtype": "fp32"}
    fault = Fault("bit_flip", ("embed",), name, f"bit {bit} flipped", settings)
    found = reduced(model, clean, probe, fault)
    assert set(found.operations) <= {"Gather", "Add"}
    assert found.after is not None
    assert found.after.longest <= 2
    assert found.after.ratio > 10
    (example, *_) = found.examples
    weight = model.module.get_parameter(name)[5, 31].item()
    flipped = np.float32(weight).view(np.uint32) ^ np.uint32(1 << bit)
    change = float(flipped.view(np.float32)) - weight
    assert example.found - example.expected == pytest.approx(change, rel=0.1)


def test_of_a_table_that_was_trimmed_another_one_is_trimmed_alike() -> None:
    rng = np.random.default_rng(0)
    table, other = rng.normal(size=(2, 10, 3)).astype(np.float32)
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    ids = np.array([[7, 3, 7, -1]])
    small, tables = trimmed(Cut((node,), {"table": table}, {"ids": ids}, "y", (("", 18),), 9))
    assert len(small.stored["table"]) == 3
    assert np.array_equal(tables["table"].of(other.ravel())[small.given["ids"]], other[ids])
    (instead,) = ModelNumbers([other.ravel(), rng.normal(size=9)], (), tables).instead(
        "table", small.stored["table"]
    )
    assert np.array_equal(instead[small.given["ids"]], other[ids])


def test_rows_and_columns_of_a_square_matrix_are_two_axes() -> None:
    nodes = (
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    )
    shapes = {"x": (4, 4), "w": (4, 4), "p": (4, 4), "b": (4,), "y": (4, 4)}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    stored = {name: arrays[name] for name in ("w", "b")}
    cut = Cut(nodes, stored, {"x": arrays["x"]}, "y", (("", 18),), 9)
    rows, inner = {("x", 0), ("p", 0), ("y", 0)}, {("x", 1), ("w", 0)}
    columns = {("w", 1), ("p", 1), ("b", 0), ("y", 1)}
    found = groups(cut, shapes, 4)
    assert sorted(map(sorted, found)) == sorted(map(sorted, (rows, inner, columns)))
    wrong = np.zeros((4, 4))
    wrong[3, 1] = -1.0
    made = begins(cut, shapes, {"w": wrong}, 4, 1)
    assert made == dict.fromkeys(inner, 3) | dict.fromkeys(columns, 1)


def test_of_nodes_that_nobody_knows_all_axes_of_a_length_are_one() -> None:
    node = helper.make_node("CumSum", ["x"], ["y"])
    cut = Cut((node,), {}, {"x": np.zeros((3, 3), np.float32)}, "y", (("", 18),), 9)
    (axes,) = groups(cut, {"x": (3, 3), "y": (3, 3)}, 3)
    assert axes == {("x", 0), ("x", 1), ("y", 0), ("y", 1)}


def test_numbers_that_are_nearly_right_are_in_no_wrong_order() -> None:
    right = np.array([0.0, 2.0, -1.0])
    assert is_wrong_order(right[[1, 0, 2]], right)
    assert not is_wrong_order(right + 1e-6, right)
    assert not is_wrong_order(right + 1.0, right)


@pytest.mark.parametrize("many", [False, True])
def test_many_numbers_have_one_that_is_near_whatever_is_wrong_with_them(many: bool) -> None:
    """One column of logits is off; or all numbers are, by a little."""
    rng = np.random.default_rng(0)
    right = rng.uniform(-20, 20, (32, 49152)).astype(np.float32)
    wrong = right.copy()
    if many:
        wrong += rng.normal(0, 0.05, right.shape).astype(np.float32)
        wrong = np.where(np.abs(wrong) < 19, wrong, right)
    else:
        wrong[:, 5480] *= 0.998
    assert not is_wrong_order(wrong, right)
    rows = rng.permutation(32)
    assert is_wrong_order(right[rows], right)
    assert is_wrong_order(np.roll(right, 1, axis=1), right)
