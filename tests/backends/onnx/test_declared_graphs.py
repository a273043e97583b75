"""Formats of ONNX graphs: each is judged by what it declares, and says what it costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    QuantFormat,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

import driftwalk
import graphs
from driftwalk.states import Probe
from driftwalk_backends.matching import arrangements
from driftwalk_backends.onnx.exposed import silence
from driftwalk_backends.onnx.quantised import _unpacked
from driftwalk_backends.onnx.unfused import unfused
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model

LAYER = "/layers.1/mlp/down_proj"


@cache
def model() -> LoadedModel:
    """Wide enough for blocks of 32 numbers."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
    config = transformers.LlamaConfig(
        **heads, hidden_size=64, intermediate_size=128, vocab_size=128
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return open_model(transformers.LlamaForCausalLM(config).eval())


@cache
def probe() -> Probe:
    return make_probe(model())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tiny Llama in a format."""
    folder = tmp_path_factory.mktemp("formats")

    @cache
    def plain() -> Path:
        return graphs.export(model().module, probe(), folder)

    @cache
    def make(kind: str) -> Path:
        path = folder / f"{kind}.onnx"
        with silence():
            if kind.startswith("static"):
                all_of_it = {} if kind == "static" else {"nodes_to_exclude": []}
                graphs.in_eight_bits(plain(), probe(), path, **all_of_it)
            else:
                bits, level, form = kind.split("-")
                quantiser = MatMulNBitsQuantizer(
                    onnx.load(str(plain())),
                    bits=int(bits),
                    block_size=32,
                    is_symmetric=form == "pairs",
                    accuracy_level=int(level),
                    quant_format=QuantFormat.QDQ if form == "pairs" else QuantFormat.QOperator,
                )
                quantiser.process()
                onnx.save(quantiser.model.model, str(path))
        return path

    return make


def verify(path: Path, more: str = "") -> driftwalk.Report:
    return driftwalk.verify(model(), f"onnxruntime,file={path}{more}", probe=probe())


@pytest.mark.parametrize(
    ("kind", "stored", "inputs"),
    [
        ("4-0-fused", "uint4", ""),
        ("4-4-fused", "uint4", "symmetric, 8 bits, one step for 32 numbers"),
        ("static", "int8", "fixed steps"),
    ],
)
def test_a_format_passes_by_what_it_declares(
    kind: str, stored: str, inputs: str, made: Callable[[str], Path]
) -> None:
    report = verify(made(kind))
    assert report.ok, (report.reason, report.first_divergence)
    found = report.format
    assert found is not None
    assert {one.kind for one in found.stored} == {stored}
    assert {one.inputs for one in found.stored} == {inputs}
    assert not found.wrong
    last = found.layers["logits"]
    assert last.format > 1e-3 * last.scale
    assert last.kernel < 0.2 * last.format


def test_a_step_that_is_no_number_is_refused_by_name(made: Callable[[str], Path]) -> None:
    """A mask of minus infinity was calibrated: by its step every score is no number."""
    named = r"layers.0/self_attn.* rounds by a step of inf"
    with pytest.raises(driftwalk.DriftwalkError, match=named) as caught:
        verify(made("static-masked"))
    assert caught.value.exit_code == 3


def test_another_accuracy_than_the_declared_one_is_the_kernels_doing(
    made: Callable[[str], Path],
) -> None:
    """Plain products with int4 weights are fused, and then round their inputs to int8."""
    path = made("4-0-pairs")
    fused = verify(path)
    assert fused.verdict == "drift"
    assert fused.format is not None
    assert not fused.format.wrong
    last = fused.format.layers["logits"]
    assert 1e-4 < last.kernel / last.scale < 0.1
    assert any("qdq_matmulnbits_accuracy_level" in note for note in fused.notes)
    plain = verify(path, ",opt=basic")
    assert plain.ok, plain.first_divergence
    assert not any("qdq_matmulnbits_accuracy_level" in note for note in plain.notes)


def _changed(source: Path, target: Path, place: int, change: Callable[[np.ndarray], None]) -> Path:
    """The graph with an input of layer 1's `MatMulNBits` changed."""
    graph = onnx.load(str(source))
    node = next(n for n in graph.graph.node if n.op_type == "MatMulNBits" and LAYER in n.name)
    (stored,) = (t for t in graph.graph.initializer if t.name == node.input[place])
    array = numpy_helper.to_array(stored).copy()
    change(array)
    stored.CopyFrom(numpy_helper.from_array(array, stored.name))
    onnx.save(graph, str(target))
    return target


def _nibbles(array: np.ndarray) -> None:
    array[3] = array[3] >> 4 | (array[3] & 15) << 4


def _zero(array: np.ndarray) -> None:
    array.reshape(-1)[5] += 1


def _neighbours(array: np.ndarray) -> None:
    array.reshape(-1)[5] = 1.5 * array.reshape(-1)[6]


@pytest.mark.parametrize(
    ("kind", "place", "change"),
    [
        ("4-0-fused", 1, _nibbles),
        ("4-0-fused", 3, _zero),
        ("4-4-fused", 1, _nibbles),
        ("4-4-fused", 2, _neighbours),
    ],
)
def test_a_weight_that_is_stored_wrong_is_drift_in_its_layer_and_the_formats(
    kind: str,
    place: int,
    change: Callable[[np.ndarray], None],
    made: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    report = verify(_changed(made(kind), tmp_path / "wrong.onnx", place, change))
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert report.format is not None
    assert list(report.format.wrong) == ["model.layers.1.mlp.down_proj"]
    assert report.culprit is not None
    assert report.culprit.module.endswith("mlp.down_proj")


@settings(max_examples=30, deadline=None)
@given(bits=st.sampled_from([2, 4, 8]), seed=st.integers(0, 99))
def test_packed_numbers_are_read_the_lowest_bits_first(bits: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 1 << bits, (3, 16)).astype(np.uint8)
    each = 8 // bits
    apart = numbers.reshape(3, -1, each).astype(np.uint32)
    packed = sum(apart[..., place] << bits * place for place in range(each))
    np.testing.assert_array_equal(_unpacked(packed.astype(np.uint8), bits), numbers)


@settings(max_examples=40, deadline=None)
@given(order=st.permutations([0, 1, 2]), merge=st.booleans())
def test_a_state_is_put_back_into_its_tensor(order: list[int], merge: bool) -> None:
    state = np.arange(2 * 3 * 5.0).reshape(2, 3, 5)
    tensor = state.transpose(order)
    tensor = tensor.reshape(tensor.shape[0] * tensor.shape[1], -1) if merge else tensor
    for way in arrangements(tensor.shape, state.shape):
        np.testing.assert_array_equal(way.back(way.of(tensor), tensor.shape), tensor)


def test_what_is_fused_computes_what_it_stands_for() -> None:
    """QLinearMatMul, QLinearConv and QGemm with a bias, and QLinearAdd, each beside what it is
    written as."""
    random = np.random.default_rng(0)
    stored = {
        "s": np.array(0.05, np.float32),
        "t": np.array(0.03, np.float32),
        "u": np.array(0.2, np.float32),
        "z": np.array(3, np.int8),
        "n": np.array(0, np.int8),
        "w": random.integers(-99, 99, (6, 4)).astype(np.int8),
        "k": random.integers(-99, 99, (2, 1, 3, 3)).astype(np.int8),
        "b": random.integers(-999, 999, 2).astype(np.int32),
        "g": random.integers(-99, 99, (4, 6)).astype(np.int8),
        "c": random.uniform(0.01, 0.05, 4).astype(np.float32),
        "m": np.zeros(4, np.int8),
        "d": random.integers(-999, 999, 4).astype(np.int32),
    }
    first, steps, last = ["x", "s", "z"], ["t", "n"], ["u", "z"]
    nodes = [
        helper.make_node("QLinearMatMul", [*first, "w", *steps, *last], ["y"]),
        helper.make_node(
            "QLinearAdd", ["y", *last, "y", *last, *last], ["v"], domain="com.microsoft"
        ),
        helper.make_node("QLinearConv", ["i", "s", "z", "k", *steps, *last, "b"], ["o"]),
        helper.make_node(
            *("QGemm", [*first, "g", "c", "m", "d", *last], ["p"]),
            **{"domain": "com.microsoft", "transB": 1, "alpha": 0.5},
        ),
        helper.make_node(
            *("QGemm", [*first, "w", *steps], ["r"]), domain="com.microsoft", alpha=2.0
        ),
    ]
    ends = {"x": (5, 6), "i": (1, 1, 6, 6)}
    feed = {n: random.integers(-128, 127, shape).astype(np.int8) for n, shape in ends.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.INT8, shape) for n, shape in ends.items()],
        [
            *(helper.make_tensor_value_info(n, TensorProto.INT8, None) for n in "yvop"),
            helper.make_tensor_value_info("r", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    fused = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    apart = unfused(fused, stored.get)
    assert not any(word in n.op_type for n in apart.graph.node for word in ("QLinear", "QGemm"))
    given_by = []
    for one in (fused, apart):
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(one.SerializeToString(), options)
        given_by.append(session.run(None, feed))
    for ours, theirs in zip(*given_by, strict=True):
        assert np.abs(ours.astype(int) - theirs).max() <= 1, "half-way it may go either way"
        assert np.isclose(ours, theirs, rtol=1e-5).mean() > 0.9
