"""Graphs made by transformers' own exporter: all points in them, faults placed, models unharmed."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import driftwalk
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.spec import Spec
from driftwalk_backends.depth import Look
from driftwalk_backends.onnx import export as onnx_export
from driftwalk_backends.onnx.export_options import exporters_for
from driftwalk_backends.onnx.exporters import Exporter, TorchExporter
from driftwalk_backends.onnx.exposed import Exposed, silence
from driftwalk_backends.onnx.left_behind import LeftBehind
from driftwalk_backends.onnx.time_limit import TimeIsUpError, time_limit
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

SPEC = "onnxruntime,exporter=transformers"
HAS_EXPORTERS = find_spec("transformers.exporters") is not None
with_exporters = pytest.mark.skipif(not HAS_EXPORTERS, reason="needs transformers.exporters")


def small(layers: int = 1) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=50, num_hidden_layers=layers, **sizes)
    return transformers.BertForMaskedLM(config).eval()


def tiny(name: str) -> Any:
    """Models of one or two layers: an export takes as long as it has operations."""
    if name == "bert":
        return small(2)
    torch.manual_seed(0)
    common = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
    wide = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "decoder_start_token_id": 0}
    vit = {"num_hidden_layers": 2, "image_size": 32, "patch_size": 8, "num_labels": 5}
    tf = transformers
    return {
        "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=16, n_layer=2, n_head=2, **common)),
        "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**wide, **common, num_hidden_layers=2)),
        "vit": lambda: tf.ViTForImageClassification(tf.ViTConfig(**wide, **vit)),
        "t5": lambda: tf.T5ForConditionalGeneration(tf.T5Config(**t5, num_layers=1, vocab_size=50)),
    }[name]().eval()


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@with_exporters
@pytest.mark.parametrize(
    "name",
    ["bert", "gpt2", "llama", "vit", "t5"],
)
def test_every_point_is_in_the_graph_and_the_model_is_left_as_it_was(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny(name)
    before, config = weights_of(model), model.config.to_dict()
    where, forwards = torch.where, [vars(part).get("forward") for part in model.modules()]
    with caplog.at_level(logging.WARNING, "transformers"):
        report = driftwalk.verify(model, candidate=SPEC)
    assert report.ok, report
    assert report.coverage.compared == report.coverage.points
    assert {"layer.0", "encoder.layer.0"} & {layer.point.name for layer in report.layers}
    assert not report.coverage.extra
    seen = report.observer["candidate"]
    assert seen.checked
    assert seen.max_abs < 1e-7, "on x86 it fuses other operations where states are outputs"
    assert report.candidate.flags["exporter"] == "transformers OnnxExporter"
    assert not [note for note in report.notes if "left changes behind" in note]
    assert model.config.to_dict() == config
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert torch.where is where
    assert [vars(part).get("forward") for part in model.modules()] == forwards
    # What the exporter says of versions is said in the report, once, and nowhere else.
    from transformers.exporters.exporter_onnx import OnnxExporter

    tested = OnnxExporter.tested_versions["torch"]
    told = [note for note in report.notes if f"tested {tested}" in note]
    assert len(told) == (0 if torch.__version__.partition("+")[0] == tested else 1)
    assert not [record for record in caplog.records if "tested" in record.getMessage()]


@with_exporters
def test_a_fault_in_the_graph_is_found_and_placed() -> None:
    model = small(2)
    faulty = copy.deepcopy(model)
    with torch.no_grad():
        faulty.bert.encoder.layer[1].output.dense.weight.mul_(1.05)
    with driftwalk.backend(SPEC, faulty) as candidate:
        report = driftwalk.verify(model, candidate=candidate)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"


@with_exporters
def test_states_do_not_change_the_graph(tmp_path: Path) -> None:
    """Without its extra outputs it has the very operations that the exporter makes of the model."""
    import onnx
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    model = open_model(small())
    probe = make_probe(model)
    with driftwalk.backend(f"{SPEC},cache=off", model) as backend:
        backend.run(probe)
        ours = onnx.load(str(backend._export(probe).plain), load_external_data=False)  # type: ignore[attr-defined]
    inputs = {name: torch.from_numpy(array.copy()) for name, array in probe.inputs.items()}
    with silence():
        theirs = OnnxExporter().export(model.module, inputs, OnnxConfig()).model_proto
    operations = [sorted(node.op_type for node in graph.graph.node) for graph in (ours, theirs)]
    assert operations[0] == operations[1]


@with_exporters
def test_inputs_that_the_exporter_adds_are_computed_anew_for_every_probe() -> None:
    """Of images: where each patch lies, which depends on what the probe holds, not on shapes."""
    from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16}
    patches = {"depth": 1, "patch_size": 4, "num_position_embeddings": 16}
    config = qwen.Qwen3VLVisionConfig(**sizes, **patches, deepstack_visual_indexes=[])
    model = qwen.Qwen3VLVisionModel(config).eval()
    pixels = torch.randn(16, 3 * config.temporal_patch_size * 4 * 4)
    seen = []
    with driftwalk.backend(f"{SPEC},cache=off", model) as backend:
        for grid in ([[1, 4, 4]], [[1, 2, 8]]):
            with torch.no_grad():
                own = model(pixels, torch.tensor(grid)).last_hidden_state
            probe = driftwalk.Probe({"hidden_states": pixels.numpy(), "grid_thw": np.array(grid)})
            seen.append(own)
            assert np.allclose(backend.run(probe)["last_hidden_state"], own, atol=1e-5)
    assert not torch.allclose(*seen, atol=1e-2)


@with_exporters
def test_one_dynamic_graph_serves_probes_of_other_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    real = onnx_export.export

    def counted(*given: Any) -> None:
        made.append(given)
        real(*given)

    monkeypatch.setattr(onnx_export, "export", counted)
    model = open_model(small())
    with driftwalk.backend(f"{SPEC},dynamic=on,opset=20,cache=off", model) as backend:
        backend.run(make_probe(model, batch=2, length=16))
        probe = make_probe(model, batch=3, length=5)
        report = driftwalk.verify(model, candidate=backend, probe=probe)
    assert report.ok, report
    assert report.layers[0].shape[:2] == (3, 5)
    assert len(made) == 1


class Failing(TorchExporter):
    """Cannot export anything."""

    def program(self, exposed: Exposed, outputs: Sequence[str]) -> Any:
        raise RuntimeError("no such operation: aten::magic")


Opened = Callable[..., onnx_export.Exports]


@pytest.fixture
def exports_of() -> Iterator[Opened]:
    opened: list[onnx_export.Exports] = []

    def make(module: nn.Module, *exporters: Exporter) -> onnx_export.Exports:
        spec = Spec.parse("onnxruntime,export_limit=1")
        opened.append(onnx_export.Exports(open_model(module), spec, "fp32", False, {}, exporters))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def made_by(exports: onnx_export.Exports) -> onnx_export.Exported:
    return exports.get(make_probe(exports.model), Look())


@with_exporters
def test_auto_takes_the_other_exporter_where_ours_fails_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small()
    chosen = exporters_for(Spec.parse("onnxruntime,exporter=auto"), model)
    assert [type(one).__name__ for one in chosen] == ["TorchExporter", "TransformersExporter"]
    monkeypatch.setattr(TorchExporter, "program", Failing.program)
    report = driftwalk.verify(model, candidate="onnxruntime,exporter=auto,cache=off")
    assert report.ok, report
    assert report.candidate.flags["exporter"] == "transformers OnnxExporter"
    (note,) = (note for note in report.notes if "aten::magic" in note)
    assert "So transformers OnnxExporter made the graph." in note


@with_exporters
def test_where_ours_fails_the_other_exporter_is_offered(exports_of: Opened) -> None:
    with pytest.raises(BackendError, match=r"aten::magic.*may manage it: exporter=transformers"):
        made_by(exports_of(small(), Failing()))
    plain = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    exports = exports_of(plain, Failing())
    probe = driftwalk.Probe({"input": torch.zeros(2, 3, 8).numpy()})
    with pytest.raises(BackendError, match="aten::magic") as caught:
        exports.get(probe, Look())
    assert "exporter=transformers" not in str(caught.value)


class Hanging(TorchExporter):
    """Never comes back, and catches whatever ends one of its ways."""

    def program(self, exposed: Exposed, outputs: Sequence[str]) -> Any:
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                continue


class Careless(TorchExporter):
    """Leaves the model in pieces, and fails."""

    def program(self, exposed: Exposed, outputs: Sequence[str]) -> Any:
        spoil(exposed.module)
        raise RuntimeError("failed half way")


def spoil(model: Any) -> None:
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight.mul_(2)
    model.bert.encoder.layer[0].attention.output.dense.weight.data = torch.zeros(1)
    model.bert.embeddings.position_ids = torch.zeros(1)
    model.config.num_attention_heads = 7
    model.config.made_up = True
    model.bert.forward = lambda *_: None
    torch.where = lambda *_: None  # type: ignore[assignment]
    type(model).forward = lambda *_: None


def test_an_export_that_hangs_is_ended(exports_of: Opened) -> None:
    begun = time.monotonic()
    with pytest.raises(BackendError, match="no graph of BertForMaskedLM after 1 s"):
        made_by(exports_of(small(), Hanging()))
    assert time.monotonic() - begun < 20


def test_so_is_one_in_a_thread() -> None:
    ended: list[type[BaseException]] = []

    def hang() -> None:
        try:
            with time_limit(1):
                while True:
                    time.sleep(0.01)
        except TimeIsUpError as error:
            ended.append(type(error))

    thread = threading.Thread(target=hang, daemon=True)
    thread.start()
    thread.join(20)
    assert ended == [TimeIsUpError]


def test_a_limit_that_was_kept_leaves_nothing_behind() -> None:
    with time_limit(1):
        pass
    time.sleep(1.2)


@pytest.fixture
def _torch_as_it_was() -> Iterator[None]:
    where, forward = torch.where, transformers.BertForMaskedLM.forward
    yield
    torch.where, transformers.BertForMaskedLM.forward = where, forward


@pytest.mark.usefixtures("_torch_as_it_was")
def test_a_model_that_the_exporter_changed_is_put_back_and_it_is_said(exports_of: Opened) -> None:
    model = small()
    before, config = weights_of(model), model.config.to_dict()
    where, forward = torch.where, type(model).forward
    exports = exports_of(model, Careless())
    given = exports.model.at("fp32", "cpu", for_export=True)
    assert given is model, "the exporter is given the user's own model"
    with pytest.raises(BackendError, match="failed half way"):
        made_by(exports)
    note = exports.flags["export"]
    assert note.startswith("The exporter (torch.onnx dynamo) left changes behind")
    assert "torch.where" in note
    assert "and 4 more" in note
    assert torch.where is where
    assert type(model).forward is forward
    assert "forward" not in vars(model.bert)
    assert model.config.to_dict() == config
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert driftwalk.verify(model, candidate="torch", policy="dtype").ok


@pytest.mark.usefixtures("_torch_as_it_was")
def test_what_was_left_behind_is_named() -> None:
    model = small()
    held = LeftBehind(model)
    assert held.put_back() == ()
    spoil(model)
    named = held.put_back()
    assert set(named) == {
        "torch.where",
        "transformers.models.bert.modeling_bert.BertForMaskedLM.forward",
        "the forward of bert",
        "bert.encoder.layer.0.output.dense.weight",
        "bert.encoder.layer.0.attention.output.dense.weight",
        "bert.embeddings.position_ids",
        "BertConfig.num_attention_heads",
        "BertConfig.made_up",
    }
    assert held.put_back() == ()


@pytest.mark.skipif(HAS_EXPORTERS, reason="transformers.exporters is installed")
def test_without_exporters_it_is_said_what_to_install() -> None:
    with pytest.raises(BackendUnavailable, match=r"needs transformers\.exporters.*5\.16") as caught:
        driftwalk.backend(SPEC, small())
    assert transformers.__version__ in str(caught.value)
    assert caught.value.exit_code == 3
    assert len(exporters_for(Spec.parse("onnxruntime,exporter=auto"), small())) == 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("onnxruntime,opset=20", "opset= is an option of exporter=transformers"),
        (f"{SPEC},dynamic=maybe", "expected one of on, off"),
        (f"{SPEC},opset=new", "expected a whole number"),
        (f"{SPEC},export_limit=soon", "expected a whole number"),
        (f"{SPEC},export_limit=0", "expected a whole number"),
        ("onnxruntime,exporter=onnx", "expected one of torch, transformers, optimum, auto"),
    ],
)
def test_bad_options_are_refused_at_once(spec: str, said: str) -> None:
    if spec.startswith(SPEC) and not HAS_EXPORTERS:
        pytest.skip("needs transformers.exporters")
    with pytest.raises(UsageError, match=said):
        driftwalk.backend(spec, small())


@with_exporters
def test_a_plain_module_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="transformers models only, not Linear"):
        driftwalk.backend(SPEC, nn.Linear(2, 2))


@with_exporters
def test_a_stored_graph_is_used_again_and_not_for_the_other_exporter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))
    made: list[str] = []
    real: Callable[..., None] = onnx_export.export

    def counted(*given: Any) -> None:
        made.append(given[-1].label)
        real(*given)

    monkeypatch.setattr(onnx_export, "export", counted)
    model = small()
    probe = make_probe(open_model(model))
    for spec in (SPEC, SPEC, "onnxruntime"):
        with driftwalk.backend(spec, model) as backend:
            backend.run(probe)
    assert made == ["transformers OnnxExporter", "torch.onnx dynamo"]
