"""The `openvino` backend: honest about its precision, and about not being there."""

from __future__ import annotations

import copy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import driftwalk
import zoo
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.registry import create
from driftwalk_backends import openvino_runtime
from driftwalk_backends.onnx import export as onnx_export
from driftwalk_backends.openvino_runtime import OpenVino
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model

DECODER = "demo:decoder"


@pytest.fixture
def openvino() -> Any:
    return pytest.importorskip("openvino", reason="openvino is not installed")


@pytest.fixture
def decoder() -> LoadedModel:
    return open_model(DECODER)


def has(openvino: Any, dtype: str) -> bool:
    return dtype.upper() in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def test_where_it_is_not_installed_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, decoder: LoadedModel
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    (offer,) = OpenVino.offers()
    assert not offer.usable
    assert offer.note == "openvino is not installed. " + openvino_runtime.INSTALL
    with pytest.raises(BackendUnavailable, match=r"pip install 'driftwalk\[openvino\]'"):
        create("openvino", decoder)


def test_it_offers_the_devices_that_are_here(openvino: Any) -> None:
    offers = {offer.spec: offer for offer in OpenVino.offers()}
    assert offers["openvino:cpu"].usable
    assert "openvino 20" in offers["openvino:cpu"].note


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("openvino:cpu:fp64", "has no dtype 'fp64'; it has fp32, fp16, bf16"),
        ("openvino:cuda", "has no device 'cuda'; it has cpu, gpu, npu"),
        ("openvino,mode=fast", "expected one of accuracy, performance"),
        ("openvino,threads=0", "threads=0: expected a whole number"),
    ],
)
def test_what_it_can_never_do_is_refused_at_once(
    decoder: LoadedModel, spec: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        create(spec, decoder)


def test_a_device_that_is_not_here_is_refused_at_once(openvino: Any, decoder: LoadedModel) -> None:
    if "NPU" in openvino.Core().available_devices:
        pytest.skip("there is an NPU")
    with pytest.raises(BackendUnavailable, match="has no device NPU here; it has CPU"):
        create("openvino:npu", decoder)


def test_it_computes_in_float32_whatever_openvino_would_choose(
    openvino: Any, decoder: LoadedModel
) -> None:
    """On ARM its own choice is float16, a thousand times as wrong."""
    probe = make_probe(decoder)
    with create("openvino", decoder) as backend, create("truth", decoder) as truth:
        found, true = backend.trace(probe), truth.trace(probe)
        flags = backend.info.flags
    worst = max(np.abs(state.array - true[state.point.name]).max() for state in found)
    assert worst < 1e-5
    assert flags["precision hint"] == "f32"
    assert flags["mode"] == "accuracy"
    assert int(flags["threads"]) >= 1


def test_the_number_of_threads_is_openvinos_own_word(openvino: Any, decoder: LoadedModel) -> None:
    with create("openvino,threads=1", decoder) as backend:
        backend.run(make_probe(decoder))
        assert backend.info.flags["threads"] == "1"


def test_half_precision_is_judged_as_half_precision(openvino: Any) -> None:
    if not has(openvino, "fp16"):
        pytest.skip("this CPU has no fp16")
    report = driftwalk.verify(DECODER, candidate="openvino:cpu:fp16")
    assert report.ok, report
    assert {layer.dtypes.candidate for layer in report.layers} == {"fp16"}
    assert report.layer("layer.5").truth.candidate > 1e-3  # type: ignore[union-attr]


def test_half_precision_under_the_name_of_float32_is_drift(
    openvino: Any, monkeypatch: pytest.MonkeyPatch, decoder: LoadedModel
) -> None:
    """What would happen if the hint were left to OpenVINO on an ARM CPU."""
    if not has(openvino, "fp16"):
        pytest.skip("this CPU has no fp16")
    monkeypatch.setitem(openvino_runtime.HINTS, "fp32", "f16")
    report = driftwalk.verify(decoder, candidate="openvino")
    assert report.verdict == "drift"


def test_a_precision_the_cpu_lacks_is_refused_not_replaced(
    openvino: Any, monkeypatch: pytest.MonkeyPatch, decoder: LoadedModel
) -> None:
    if has(openvino, "bf16"):
        pytest.skip("this CPU has bf16")
    with pytest.raises(BackendUnavailable, match="cannot compute in bf16"):
        create("openvino:cpu:bf16", decoder)
    # And where OpenVINO's list of capabilities is wrong, what it compiled still tells.
    monkeypatch.setattr(openvino_runtime, "_check_capability", lambda *_: None)
    with (
        create("openvino:cpu:bf16", decoder) as backend,
        pytest.raises(BackendUnavailable, match="it would compute in f"),
    ):
        backend.run(make_probe(decoder))


def test_what_was_computed_wider_stays_wider(openvino: Any, decoder: LoadedModel) -> None:
    if not has(openvino, "fp16"):
        pytest.skip("this CPU has no fp16")
    backend = create("openvino:cpu:fp16", decoder)
    assert isinstance(backend, OpenVino)
    assert backend._narrowed(np.float32([0.5, np.nan, np.inf])).dtype == np.float16
    assert backend._narrowed(np.float32([0.5, 1 + 2**-20])).dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "vit"])
def test_architectures_pass(openvino: Any, name: str) -> None:
    report = driftwalk.verify(zoo.build(name), candidate="openvino")
    assert report.ok, report
    assert report.coverage.compared == report.coverage.points
    assert report.observer["candidate"].within_tolerance


@pytest.mark.skipif(not find_spec("transformers.exporters"), reason="needs transformers.exporters")
def test_the_graph_may_be_transformers_own(openvino: Any) -> None:
    report = driftwalk.verify(zoo.build("bert"), candidate="openvino,exporter=transformers")
    assert report.ok, report
    assert report.coverage.compared == report.coverage.points
    assert report.candidate.flags["exporter"] == "transformers OnnxExporter"


def test_a_changed_weight_is_found_in_its_layer(openvino: Any, decoder: LoadedModel) -> None:
    faulty = copy.deepcopy(decoder.module)
    with torch.no_grad():
        faulty.get_submodule("transformer.h.3.mlp.c_proj").weight[5, 7] += 0.5
    with create("openvino", LoadedModel(faulty, "faulty")) as candidate:
        report = driftwalk.verify(decoder, candidate=candidate)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.3"
    assert report.culprit is not None
    assert report.culprit.module == "transformer.h.3.mlp.c_proj"


def test_it_reads_the_export_onnxruntime_made(
    openvino: Any, monkeypatch: pytest.MonkeyPatch, decoder: LoadedModel
) -> None:
    probe = make_probe(decoder)
    with create("onnxruntime", decoder) as first:
        first.trace(probe)
    monkeypatch.setattr(onnx_export, "export", lambda *_: pytest.fail("exported once more"))
    with create("openvino", decoder) as second:
        assert second.trace(probe).names[0] == "embed"


def test_layer_times_are_those_of_all_points(openvino: Any, decoder: LoadedModel) -> None:
    probe = make_probe(decoder)
    with create("openvino,threads=1", decoder) as backend:
        times = backend.layer_laps(probe)
        names = backend.trace(probe).names
    assert tuple(times) == names
    layers = [seconds for name, seconds in times.items() if name.startswith("layer.")]
    assert all(seconds > 0 for seconds in layers)


def test_every_node_that_takes_time_has_a_place(openvino: Any, decoder: LoadedModel) -> None:
    """Those too that OpenVINO made up, which the export knows nothing of."""
    probe = make_probe(decoder)
    with create("openvino", decoder) as backend:
        assert isinstance(backend, OpenVino)
        exported = backend._export(probe)
        compiled = backend._compile(exported.plain, {"PERF_COUNT": True})
        request = compiled.create_infer_request()
        backend._infer(request, exported, probe)
        graph = onnx.load(str(exported.traced), load_external_data=False).graph
    known = openvino_runtime._originals(graph, [point.name for point in exported.points])
    ops = compiled.get_runtime_model().get_ordered_ops()
    places = openvino_runtime._owners(ops, known)
    ran = {node.node_name for node in request.get_profiling_info() if node.real_time}
    made_up = ran - known.keys()
    assert made_up, "OpenVINO made up no node: this tests nothing"
    assert ran <= places.keys()
    (norm,) = [op for op in ops if op.get_friendly_name() == "node_layer_norm"]
    before = norm.input_value(0).get_node().get_friendly_name()  # the first half of layer 0's norm
    assert places[before] == "layer.0"


def test_a_graph_it_cannot_read_is_one_line(
    openvino: Any, tmp_path: Path, decoder: LoadedModel
) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"this is no graph")
    backend = create("openvino", decoder)
    assert isinstance(backend, OpenVino)
    with pytest.raises(
        BackendError, match=r"\AOpenVINO cannot load the graph of demo:decoder: .+\Z"
    ):
        backend._load(tmp_path / "broken.onnx")
