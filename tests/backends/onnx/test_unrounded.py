"""A graph that rounds between its products is the model, with nothing rounded; or it is drift."""

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
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

import driftwalk
import graphs
from driftwalk.errors import BackendError
from driftwalk.formats import Cut
from driftwalk.states import Probe
from driftwalk_backends.formats.folding import folded
from driftwalk_backends.formats.rounded import RoundedWeight, whole_numbers
from driftwalk_backends.onnx.exposed import silence
from driftwalk_backends.onnx.graph import OnnxGraph
from driftwalk_backends.onnx.unrounded import OwnNumbers, unrounded
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model

Change = Callable[[onnx.GraphProto], None]
LAYER = "encoder.layer.1"


@cache
def model() -> LoadedModel:
    config = transformers.BertConfig(
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=64,
        num_hidden_layers=3,
        vocab_size=100,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = transformers.BertForMaskedLM(config).eval()
        for name, parameter in made.named_parameters():
            if parameter.ndim == 1:  # as trained ones are: neither all ones nor all zeros
                nn.init.normal_(parameter, 1.0 if "LayerNorm.weight" in name else 0.0, 0.2)
    return open_model(made)


@cache
def probe() -> Probe:
    return make_probe(model())


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static")
    plain = graphs.export(model().module, probe(), folder)
    return graphs.in_eight_bits(plain, probe(), folder / "static.onnx")


def verify(path: Path) -> driftwalk.Report:
    return driftwalk.verify(model(), f"onnxruntime,file={path}", probe=probe())


def _step(named: str) -> Change:
    def change(graph: onnx.GraphProto) -> None:
        (stored,) = (t for t in graph.initializer if named in t.name and t.name.endswith("_scale"))
        stored.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(stored) * 1.1, stored.name))

    return change


def _relu(graph: onnx.GraphProto) -> None:
    node = next(n for n in graph.node if n.op_type == "Gelu" and LAYER in _dotted(n))
    node.op_type = "Relu"
    del node.attribute[:]


def _dotted(node: onnx.NodeProto) -> str:
    return str(node.name.replace("encoder/layer", "encoder.layer"))


def _epsilon(place: int) -> Change:
    def change(graph: onnx.GraphProto) -> None:
        norms = [n for n in graph.node if n.op_type == "LayerNormalization"]
        node = [n for n in norms if LAYER in _dotted(n)][place]
        next(a for a in node.attribute if a.name == "epsilon").f = 1e-2

    return change


def _read_otherwise(graph: onnx.GraphProto) -> None:
    """An activation is rounded by one step and read by another."""
    makers = {name: node for node in graph.node for name in node.output}
    read = next(
        node
        for node in graph.node
        if node.op_type == "DequantizeLinear"
        and (made := makers.get(node.input[0])) is not None
        and made.op_type == "QuantizeLinear"
        and LAYER in _dotted(makers[made.input[0]])
    )
    (step,) = (t for t in graph.initializer if t.name == read.input[1])
    graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(step) * 1.05, "other"))
    read.input[1] = "other"


def test_the_graph_of_the_model_passes(clean: Path) -> None:
    report = verify(clean)
    assert report.ok, report.first_divergence
    assert report.format is not None
    assert not report.format.wrong
    assert not any("not held against the model" in note for note in report.notes)


@pytest.mark.parametrize(
    "change",
    [
        _step(f"{LAYER}.output.LayerNorm.weight"),
        _step(f"{LAYER}.output.dense.bias"),
        _relu,
        _epsilon(0),
        _epsilon(1),
        _read_otherwise,
    ],
    ids=["norm", "bias", "activation", "epsilon", "epsilon-undone-behind", "steps"],
)
def test_what_a_graph_computes_besides_its_matrices_is_drift_in_its_layer(
    change: Change, clean: Path, tmp_path: Path
) -> None:
    """What it declares is then wrong, and its kernel right."""
    graph = onnx.load(str(clean))
    change(graph.graph)
    onnx.save(graph, str(tmp_path / "wrong.onnx"))
    report = verify(tmp_path / "wrong.onnx")
    assert report.verdict == "drift"
    assert report.at_fault == "candidate"
    assert report.cause == "layer.1"
    assert report.culprit is not None
    assert "another computation" in report.culprit.sentence
    assert not any("No root cause" in note for note in report.notes)


@pytest.mark.slow
def test_folded_normalisation_and_activations_left_out_are_the_model(tmp_path: Path) -> None:
    """As onnxruntime quantises a network of convolutions: Relu6 is the end of the numbers."""
    config = transformers.MobileNetV2Config(image_size=64, depth_multiplier=0.35)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = transformers.MobileNetV2ForImageClassification(config).eval()
        for part in made.modules():
            if isinstance(part, nn.BatchNorm2d):
                nn.init.uniform_(part.weight, 0.5, 2)
                nn.init.normal_(part.bias, 0, 0.5)
                nn.init.normal_(part.running_mean, 0, 0.3)
                nn.init.uniform_(part.running_var, 0.5, 2)
    images = open_model(made)
    one = make_probe(images)
    plain = graphs.export(images.module, one, tmp_path)
    with silence():
        quant_pre_process(str(plain), str(tmp_path / "folded.onnx"))
    path = graphs.in_eight_bits(tmp_path / "folded.onnx", one, tmp_path / "q.onnx")
    assert not {"BatchNormalization", "Clip"} & {n.op_type for n in onnx.load(str(path)).graph.node}
    report = driftwalk.verify(images, f"onnxruntime,file={path}", probe=one)
    assert report.ok, (report.first_divergence, report.format and report.format.wrong)
    assert report.format is not None
    assert not report.format.wrong


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), bias=st.booleans(), affine=st.booleans())
def test_a_layer_with_its_normalisation_folded_in_gives_what_both_gave(
    seed: int, bias: bool, affine: bool
) -> None:
    torch.manual_seed(seed)
    norm = nn.BatchNorm2d(6, affine=affine)
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.1, 3)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    both = nn.Sequential(nn.Conv2d(4, 6, 3, bias=bias), norm).eval().double()
    made = folded(both)
    assert made is not None
    x = torch.randn(2, 4, 7, 7, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(made[0](x), both(x))
    assert folded(nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(6))) is None


def _tiny(stored: dict[str, np.ndarray], zero: int, weight: str) -> onnx.ModelProto:
    """y = Relu6(x) @ w, rounded to uint8 where Relu6 was, w behind a `DequantizeLinear`."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xf"]),
        helper.make_node("DequantizeLinear", [weight, "t", "n"], ["wf"], axis=1),
        helper.make_node("MatMul", ["xf", "wf"], ["y"]),
    ]
    if weight == "wq":
        nodes.insert(2, helper.make_node("QuantizeLinear", ["w", "t", "n"], ["wq"], axis=1))
    stored = stored | {"s": np.float32(6 / 255), "z": np.uint8(zero)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (5, 6))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _ran(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(proto.SerializeToString())
    made: np.ndarray = session.run(None, {"x": x})[0]
    return made


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), in_graph=st.booleans(), zero=st.sampled_from([0, 128]))
def test_nothing_is_rounded_and_the_models_own_numbers_are_taken(
    seed: int, in_graph: bool, zero: int
) -> None:
    """Also where the weight is rounded as the graph runs."""
    rng = np.random.default_rng(seed)
    x, w = (rng.normal(0, 4, shape).astype(np.float32) for shape in ((5, 6), (6, 3)))
    step = (np.abs(w).max(0) / 127).astype(np.float32)
    numbers = np.clip(np.rint(w / step), -127, 127).astype(np.int8)
    held = {"t": step, "n": np.zeros(3, np.int8)} | ({"w": w} if in_graph else {"q": numbers})
    proto = _tiny(held, zero, "wq" if in_graph else "q")
    layer = nn.Linear(6, 3, bias=False)
    layer.weight = nn.Parameter(torch.from_numpy(w.T.copy()))
    graph, own = OnnxGraph(Path("g.onnx"), proto), OwnNumbers([layer])
    ends = (-zero * 6 / 255, (255 - zero) * 6 / 255)
    cuts = {Cut.NOWHERE: x, Cut.EVERYWHERE: np.clip(x, *ends)}
    cuts[Cut.AT_ZERO] = np.maximum(x, 0) if zero == 0 else x
    cuts[Cut.BEHIND_ZERO] = np.clip(x, 0, 6) if zero == 0 else x
    for cut, cut_off in cuts.items():
        made = _ran(unrounded(graph, own, cut), x)
        np.testing.assert_allclose(made, cut_off @ w, rtol=0, atol=2e-4)
    others = OwnNumbers([nn.Linear(6, 3, bias=False)])
    if not in_graph:
        as_stored = _ran(unrounded(graph, others, Cut.NOWHERE), x)
        np.testing.assert_allclose(as_stored, x @ (numbers * step), rtol=0, atol=2e-4)
        moved = _ran(unrounded(graph, others, Cut.NOWHERE, moved=True), x)
        assert 0 < np.abs(moved - as_stored).max() <= np.abs(x).sum(1).max() * step.max() / 2 + 1e-4


def test_a_single_number_may_be_stored_rounded() -> None:
    """As the roots and halves that an exporter leaves in a graph are, of no parameter."""
    stored = {"c": np.array(-40, np.int8), "s": np.float32(0.05), "z": np.array(3, np.int8)}
    nodes = [
        helper.make_node("DequantizeLinear", ["c", "s", "z"], ["f"]),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made = unrounded(OnnxGraph(Path("g.onnx"), proto), OwnNumbers([nn.Linear(2, 2)]), Cut.NOWHERE)
    np.testing.assert_allclose(_ran(made, np.zeros((2, 3), np.float32)), -2.15, rtol=1e-6)


def test_an_operation_on_whole_numbers_that_is_not_known_is_an_error() -> None:
    proto = _tiny({"q": np.ones((6, 3), np.int8), "t": np.ones(3, np.float32)}, 0, "q")
    proto.graph.node[3].op_type = "QAttention"
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.int8), "n"))
    with pytest.raises(BackendError, match="QAttention is not known in float"):
        unrounded(OnnxGraph(Path("g.onnx"), proto), OwnNumbers([]), Cut.NOWHERE)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), rows=st.integers(1, 5))
def test_numbers_are_moved_by_up_to_half_a_step(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    step = rng.uniform(0.1, 2, (rows, 1))
    numbers = rng.integers(-128, 128, (rows, 40)).astype(np.int8)
    held = RoundedWeight("", whole_numbers(8), numbers, step, np.zeros((rows, 1)), (1, 40))
    off = np.abs(held.moved(rng) - held.values) / step
    assert off.max() <= 0.5 + 1e-9
    assert off.max() > 0.4
