"""ONNX Runtime against torch, and the cache of exports: reused when it may be, never otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.states import same_bits
from driftwalk_backends.demo import decoder
from driftwalk_backends.onnx import backend as onnx_backend
from driftwalk_backends.onnx import export as onnx_export
from driftwalk_backends.onnx import runtime
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "bert", "albert", "t5", "vit"])
def test_an_architecture_agrees_with_torch(name: str) -> None:
    report = driftwalk.verify(zoo.build(name), candidate="onnxruntime", policy="dtype")
    assert report.ok, report
    assert not report.coverage.missing
    assert not report.coverage.extra
    assert report.coverage.compared == report.coverage.points
    assert report.observer["candidate"].checked
    # Another runtime that agreed in every bit would be the same runtime.
    assert any(layer.metrics and layer.metrics.max_abs > 0 for layer in report.layers)


def tiny(seed: int = 0) -> nn.Module:
    """Two blocks and a norm, of torch's own code only: known, so it may be cached."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8))


def probe(rows: int = 2) -> driftwalk.Probe:
    values = np.random.default_rng(0).standard_normal((rows, 3, 8), dtype=np.float32)
    return driftwalk.Probe({"input": values})


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Every export made, with a cache that starts empty."""
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))
    made: list[Path] = []
    real = onnx_export.export

    def counted(module: nn.Module, layout: Any, called: Any, folder: Path, exporter: Any) -> None:
        made.append(folder)
        real(module, layout, called, folder, exporter)

    monkeypatch.setattr(onnx_export, "export", counted)
    return made


def trace(module: nn.Module, spec: str = "onnxruntime", rows: int = 2) -> driftwalk.Trace:
    with driftwalk.backend(spec, module) as backend:
        return backend.trace(probe(rows))


def changed_weight() -> nn.Module:
    module = tiny()
    module[1].weight.data[0, 0] += 1e-3
    return module


def changed_epsilon() -> nn.Module:
    module = tiny()
    module[2].eps = 1e-3
    return module


def test_the_same_model_is_exported_once(exports: list[Path]) -> None:
    first, second = trace(tiny()), trace(tiny())
    assert len(exports) == 1
    for state in first:
        np.testing.assert_array_equal(state.array, second[state.point.name])
    trace(tiny(), "onnxruntime,opt=off")
    assert len(exports) == 1, "the optimisation level is no part of the exported graph"
    trace(tiny(), "onnxruntime,cache=off")
    assert len(exports) == 2


@pytest.mark.slow
def test_any_change_misses_the_cache(exports: list[Path]) -> None:
    trace(tiny())
    changes: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
        "a weight": (changed_weight, "onnxruntime", 2),
        "an epsilon": (changed_epsilon, "onnxruntime", 2),
        "the shape": (tiny, "onnxruntime", 1),
        "the dtype": (tiny, "onnxruntime:cpu:fp64", 2),
    }
    for number, (what, (make, spec, rows)) in enumerate(changes.items(), start=2):
        changed = trace(make(), spec, rows)
        assert len(exports) == number, f"{what} was changed, and an old export was taken"
        expected = driftwalk.backend("torch", make()).trace(probe(rows))
        assert driftwalk.compare(expected, changed, policy="dtype").ok, what


@pytest.mark.parametrize("damage", ["garbage", "gone"])
def test_a_damaged_entry_is_made_again(exports: list[Path], tmp_path: Path, damage: str) -> None:
    before = trace(tiny())
    (graph,) = tmp_path.glob("onnx/*/traced.onnx")
    if damage == "garbage":
        graph.write_bytes(b"not a graph")
    else:
        graph.unlink()
    after = trace(tiny())
    assert len(exports) == 2
    np.testing.assert_array_equal(before["norm"], after["norm"])
    trace(tiny())
    assert len(exports) == 2, "the new entry is good"


class Local(nn.Sequential):
    """Code of no known version: it may change under the same name."""


def test_code_of_unknown_version_is_never_cached(exports: list[Path], tmp_path: Path) -> None:
    module = Local(*tiny())
    trace(module)
    trace(module)
    assert len(exports) == 2
    assert not list(tmp_path.glob("onnx/*"))
    assert not exports[0].exists(), "the scratch folder is gone with the backend"


def test_a_backend_exports_once_per_shape_even_uncached(exports: list[Path]) -> None:
    with driftwalk.backend("onnxruntime,cache=off", tiny()) as backend:
        backend.trace(probe())
        backend.run(probe())
        backend.trace(probe())
        assert len(exports) == 1
        assert backend.seconds["export"] > 0
        backend.trace(probe(1))
        assert len(exports) == 2


@pytest.mark.parametrize("level", ["off", "basic", "extended", "all"])
def test_every_optimisation_level_agrees_with_torch(level: str) -> None:
    report = driftwalk.verify(
        "demo:decoder", candidate=f"onnxruntime,opt={level},threads=1", policy="dtype"
    )
    assert report.ok, report
    assert report.candidate.flags["opt"] == level
    assert report.candidate.flags["threads"] == "1"
    assert report.candidate.flags["provider"] == "CPUExecutionProvider"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("onnxruntime,opt=max", "expected one of off, basic, extended, all"),
        ("onnxruntime,optt=all", "Did you mean 'opt'"),
        ("onnxruntime:cpu:bf16", "no dtype 'bf16'; it has fp32, fp16, fp64"),
        ("onnxruntime:tpu", "no device 'tpu'; it has cpu, cuda"),
        ("onnxruntime,threads=-1", "threads=-1"),
        ("onnxruntime,cache=maybe", "expected one of on, off"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_construction(spec: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        driftwalk.backend(spec, "demo:decoder")
    assert says in str(caught.value)


def test_an_unknown_provider_lists_those_there_are() -> None:
    with pytest.raises(BackendUnavailable, match=r"no NoSuchProvider here \(it has .*CPUExecution"):
        driftwalk.backend("onnxruntime,provider=NoSuchProvider", "demo:decoder")


@pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(), reason="CUDA provider is installed"
)
def test_cuda_without_its_provider_says_what_to_install() -> None:
    with pytest.raises(BackendUnavailable, match="Install onnxruntime-gpu for CUDAExecution"):
        driftwalk.backend("onnxruntime:cuda", "demo:decoder")
    offers = {offer.spec: offer for offer in runtime.OnnxRuntime.offers()}
    assert offers["onnxruntime:cpu"].usable
    assert not offers["onnxruntime:cuda"].usable
    assert "onnxruntime-gpu" in offers["onnxruntime:cuda"].note


class Branching(nn.Module):
    """Whether it takes a step depends on the data: no graph can say so."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            input = layer(input)
        return input * 2 if input.sum() > 0 else input


def test_a_model_that_cannot_be_exported_says_so_in_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(BackendError, match="Branching could not be exported to ONNX: ") as caught:
        trace(Branching())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_exporting_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    trace(tiny(seed=3), "onnxruntime,cache=off")
    assert capfd.readouterr() == ("", "")


def test_a_fault_inside_the_graph_is_placed_in_its_layer() -> None:
    model = open_model("demo:decoder")
    candidate = driftwalk.backend("onnxruntime", model)
    faulty = open_model("demo:decoder").module
    faulty.transformer.h[2].mlp.c_fc.weight.data[3, 5] += 0.5
    report = driftwalk.verify(faulty, candidate=candidate, probe=make_probe(model), policy="dtype")
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == "layer.2"


def test_of_a_heavy_graph_one_session_is_kept_at_a_time(monkeypatch) -> None:
    model = decoder()
    probe = driftwalk.Probe({"input_ids": [[1, 2, 3]]})
    with driftwalk.backend("onnxruntime", model) as light:
        light.run(probe)
        light.trace(probe)
        assert len(light._sessions) == 2
    monkeypatch.setattr(onnx_backend, "_HEAVY", 1000)
    with driftwalk.backend("onnxruntime", model) as heavy:
        outputs = heavy.run(probe)
        heavy.trace(probe)
        assert len(heavy._sessions) == 1
        assert same_bits(heavy.run(probe), outputs)
