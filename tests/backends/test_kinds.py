"""One name, several backends: the registry's factory makes the one that a spec and a model mean."""

from __future__ import annotations

from pathlib import Path

import pytest

import driftwalk
from driftwalk.adapter import Replays, TimesLayers
from driftwalk.errors import BackendError, UsageError
from driftwalk.registry import BUILT_IN, KINDS, backend_class, create
from driftwalk.spec import Spec
from driftwalk_backends.faults.graph import faulty_backend
from driftwalk_backends.onnx.runtime import OnnxRuntime
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_eager import TorchEager
from nets import residual

MODEL = "demo:decoder"


@pytest.fixture
def graph(tmp_path: Path) -> str:
    return str(residual(tmp_path / "a.onnx"))


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("torch", "TorchEager"),
        ("torch:cpu:fp64,attn=eager", "TorchEager"),
        ("torch,compile=eager", "TorchCompiled"),
        ("onnxruntime", "OnnxRuntime"),
        ("onnxruntime,exporter=torch", "OnnxRuntime"),
        ("onnxruntime,exporter=auto", "OnnxRuntime"),
        ("onnxruntime,quantize=dynamic-int8", "OnnxInt8"),
        ("onnxruntime,file={graph}", "OnnxFile"),
    ],
)
def test_a_spec_means_one_class(spec: str, kind: str, graph: str) -> None:
    assert type(create(spec.format(graph=graph), MODEL)).__name__ == kind


@pytest.mark.parametrize("spec", ["onnxruntime", "onnxruntime,opt=off", "onnxruntime,file={graph}"])
def test_of_a_graph_it_is_the_graph_itself(spec: str, graph: str) -> None:
    for model in (graph, open_model(graph)):
        made = create(spec.format(graph=graph), model)
        assert type(made).__name__ == "GraphRuntime"
        assert made.run()


@pytest.mark.parametrize("spec", ["torch", "torch,compile=eager", "emulated:fp16", "truth"])
def test_torch_refuses_a_graph_before_anything_runs(spec: str, graph: str) -> None:
    with pytest.raises(UsageError, match="there is no torch model that torch"):
        create(spec, graph)


def test_a_class_is_not_asked_for_another() -> None:
    """An option that picks another class is never dropped without a word."""
    for option in ({"file": "a.onnx"}, {"quantize": "dynamic-int8"}):
        with pytest.raises(UsageError, match=r"driftwalk\.backend\(spec, model\)"):
            OnnxRuntime(Spec("onnxruntime", options=option), MODEL)
    with pytest.raises(UsageError, match=r"driftwalk\.backend\(spec, model\)"):
        TorchEager(Spec("torch", options={"compile": "eager"}), MODEL)


def test_every_option_of_a_name_is_known_to_its_class() -> None:
    """`driftwalk backends`, the documentation and typos go by the class that stands for a name."""
    assert KINDS.keys() <= BUILT_IN.keys()
    assert {"compile", "attn"} <= backend_class("torch").options.keys()
    assert {"file", "exporter", "quantize"} <= backend_class("onnxruntime").options.keys()
    with pytest.raises(UsageError, match="compile"):
        create("torch,compil=eager", MODEL)
    with pytest.raises(UsageError, match="expected one of torch, transformers, optimum, auto"):
        create("onnxruntime,exporter=nobody", MODEL)


def test_what_is_compiled_neither_replays_nor_times_layers() -> None:
    eager, compiled = create("torch", MODEL), create("torch,compile=eager", MODEL)
    assert isinstance(eager, Replays)
    assert isinstance(eager, TimesLayers)
    assert not isinstance(compiled, Replays)
    assert not isinstance(compiled, TimesLayers)


def test_no_fault_can_be_put_into_a_graph_that_others_made(graph: str) -> None:
    clean = create(f"onnxruntime,file={graph}", MODEL)
    with pytest.raises(BackendError, match="a graph that others made"):
        faulty_backend(clean, object(), driftwalk.Probe({"input_ids": [[1]]}))
