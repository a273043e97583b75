"""The `executorch` backend: its own programs, files that others made, and eight bits."""

from __future__ import annotations

import copy
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

import driftwalk
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.judge.cautions import BIAS_SUMS
from driftwalk.mixture import FROM_BIAS
from driftwalk.registry import create
from driftwalk_backends.bias_sums import bias_sums
from driftwalk_backends.probes import make_probe
from driftwalk_backends.pte import lowering, program, trial
from driftwalk_backends.pte.backend import ExecuTorch
from driftwalk_backends.sources import LoadedModel, open_model

XNNPACK = "executorch,delegate=xnnpack"
INT8 = f"{XNNPACK},quantize=dynamic-int8"
PROBE = {"x": np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(self.act(self.up(x)))
        return out


class Small(nn.Module):
    """Two blocks and a head: lowered in seconds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(16, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x)
        return out


class OfTransformers(PreTrainedModel):
    """The same as a model of transformers, which its exporter asks for."""

    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.inner = Small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


class GivenTwice(Small):
    """One tensor is the state of a block and an output of the model."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = layer(x)
        return self.head(x), x


class Sorting(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.sort(-1).values)


@pytest.fixture
def executorch() -> Any:
    return pytest.importorskip("executorch", reason="executorch is not installed")


@pytest.fixture
def small() -> LoadedModel:
    return open_model(Small().eval())


def saved(model: LoadedModel, path: Path, spec: str = "executorch") -> Path:
    """A program as somebody else would make one."""
    with create(f"{spec},cache=off", model) as backend:
        assert isinstance(backend, ExecuTorch)
        made = backend._programs.shipped(make_probe(model, PROBE))
        path.write_bytes((made.folder / "program.pte").read_bytes())
    return path


def test_where_it_is_not_installed_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, small: LoadedModel
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "executorch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "executorch", None)
    (offer,) = ExecuTorch.offers()
    assert not offer.usable
    assert offer.note == "executorch is not installed. " + program.INSTALL
    with pytest.raises(BackendUnavailable, match=r"pip install 'driftwalk\[executorch\]'"):
        create("executorch", small)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("executorch:cpu:fp64", "has no dtype 'fp64'; it has fp32, fp16, bf16"),
        ("executorch:cuda", "has no device 'cuda'; it has cpu"),
        ("executorch,delegate=coreml", "expected one of none, xnnpack"),
        ("executorch,quantize=dynamic-int8", "add delegate=xnnpack"),
        (f"{XNNPACK},quantize=int4", "expected one of dynamic-int8"),
        ("executorch:cpu:fp16,delegate=xnnpack,quantize=dynamic-int8", "starts from fp32"),
        ("executorch,exporter=optimum", "expected one of torch, transformers"),
        ("executorch,exporter=transformers,delegate=none", "lowers to XNNPACK alone"),
        (f"{INT8},exporter=transformers", "quantize= is for exporter=torch"),
        ("executorch,exporter=transformers", "exports transformers models only, not Small"),
        ("executorch,export_limit=0", "expected a whole number, 1 or more"),
        ("executorch,file=nowhere.pte", "there is no such file"),
        ("executorch,file=nowhere.pte,delegate=xnnpack", "delegate= is for driftwalk's own"),
    ],
)
def test_what_it_can_never_do_is_refused_at_once(small: LoadedModel, spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        create(spec, small)


def test_it_offers_its_kernels_and_xnnpack(executorch: Any) -> None:
    offers = {offer.spec: offer for offer in ExecuTorch.offers()}
    assert offers["executorch:cpu"].usable
    assert offers["executorch:cpu,delegate=xnnpack"].usable


@pytest.mark.parametrize("spec", ["executorch", XNNPACK, "executorch:cpu:fp16"])
def test_a_model_passes(executorch: Any, spec: str, small: LoadedModel) -> None:
    report = driftwalk.verify(small, candidate=spec, probe=PROBE)
    assert report.ok, report
    assert report.coverage.compared == report.coverage.points
    assert report.observer["candidate"].within_tolerance
    flags = report.candidate.flags
    assert {"operations, plain", "operations, traced"} <= flags.keys()
    assert ("partition" in flags) == ("xnnpack" in spec)


@pytest.mark.parametrize("spec", ["executorch", XNNPACK])
def test_a_changed_weight_is_found_in_its_layer(
    executorch: Any, spec: str, small: LoadedModel
) -> None:
    faulty = copy.deepcopy(small.module)
    with torch.no_grad():
        faulty.get_submodule("layers.1.down").weight[5, 7] += 0.5
    with create(spec, LoadedModel(faulty, "faulty")) as candidate:
        report = driftwalk.verify(small, candidate=candidate, probe=PROBE)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert report.culprit is not None
    assert report.culprit.module == "layers.1.down"


def test_an_operation_without_a_kernel_is_named(executorch: Any) -> None:
    model = open_model(Sorting().eval())
    with create("executorch", model) as backend, pytest.raises(BackendError, match=r"sort"):
        backend.run(make_probe(model, PROBE))


def test_the_number_of_threads_is_the_runtimes_own_word(
    executorch: Any, small: LoadedModel
) -> None:
    with create("executorch,threads=1", small) as backend:
        backend.run(make_probe(small, PROBE))
        assert backend.info.flags["threads"] == "1"
        assert program.set_threads(None) == 1


def test_a_file_is_compared_at_its_outputs(
    executorch: Any, tmp_path: Path, small: LoadedModel
) -> None:
    path = saved(small, tmp_path / "m.pte")
    report = driftwalk.verify(small, candidate=f"executorch,file={path}", probe=PROBE)
    assert report.ok, report
    assert [layer.point.name for layer in report.layers if layer.verdict == "ok"] == ["logits"]
    assert report.candidate.flags["exporter"] == "none: a file"
    other = copy.deepcopy(small.module)
    with torch.no_grad():
        other.get_submodule("layers.1.down").weight[5, 7] += 0.5
    wrong = saved(LoadedModel(other, "other"), tmp_path / "wrong.pte")
    assert not driftwalk.verify(small, candidate=f"executorch,file={wrong}", probe=PROBE).ok
    longer = {"x": np.zeros((2, 6, 16), np.float32)}
    with pytest.raises(BackendError, match=r"Nothing in the probe fits input"):
        driftwalk.verify(small, candidate=f"executorch,file={path}", probe=longer)
    shorter = {"x": np.zeros((2, 4, 16), np.float32)}
    with pytest.raises(BackendError, match=r"It takes float32 \[2, 5, 16\]: shape the probe"):
        driftwalk.verify(small, candidate=f"executorch,file={path}", probe=shorter)


def test_a_file_that_xnnpack_runs_is_judged_by_its_sums(
    executorch: Any, tmp_path: Path, small: LoadedModel
) -> None:
    path = saved(small, tmp_path / "m.pte", XNNPACK)
    report = driftwalk.verify(small, candidate=f"executorch,file={path}", probe=PROBE)
    assert report.ok, report
    assert report.candidate.flags["sums"] == FROM_BIAS
    plain = saved(small, tmp_path / "plain.pte")
    other = driftwalk.verify(small, candidate=f"executorch,file={plain}", probe=PROBE)
    assert "sums" not in other.candidate.flags


@pytest.mark.parametrize("content", [b"", b"no program at all" * 9, None])
def test_a_bad_file_is_one_line(
    executorch: Any, tmp_path: Path, small: LoadedModel, content: bytes | None
) -> None:
    path = tmp_path / "bad.pte"
    path.write_bytes(saved(small, path).read_bytes()[:3000] if content is None else content)
    with (
        create(f"executorch,file={path}", small) as backend,
        pytest.raises(BackendError, match=r"\AExecuTorch cannot load bad.pte: .+\Z"),
    ):
        backend.run(make_probe(small, PROBE))


def test_a_file_that_ends_the_process_ends_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = tmp_path / "dies"
    dies.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dies.chmod(0o755)
    monkeypatch.setattr(trial.sys, "executable", str(dies))
    with pytest.raises(BackendError, match=r"m.pte ended the process that ran it \(SIGSEGV\)"):
        trial.tried(tmp_path / "m.pte", [])


def test_xnnpack_begins_its_sums_with_the_bias(executorch: Any) -> None:
    """What is declared of it, and so what it is judged by, is what it does."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(16, 256))
    with torch.no_grad():
        layer[0].bias *= 100
    model = open_model(layer.eval())
    probe = make_probe(model, {"input": PROBE["x"]})
    given = torch.from_numpy(PROBE["x"])
    with torch.no_grad(), bias_sums():
        emulated = layer(given).double().numpy()
    with create(XNNPACK, model) as backend:
        (found,) = backend.run(probe).values()
        assert backend.info.flags["sums"] == FROM_BIAS
    with torch.no_grad():
        true = copy.deepcopy(layer).double()(given.double()).numpy()
    error, expected = np.linalg.norm(found - true), np.linalg.norm(emulated - true)
    assert 0.8 < error / expected < 1.25
    with create(INT8, model) as backend:
        assert "sums" not in backend.info.flags


def test_an_output_that_is_a_state_too_is_given_twice(executorch: Any) -> None:
    report = driftwalk.verify(GivenTwice().eval(), candidate=XNNPACK, probe=PROBE)
    assert report.ok, report
    assert report.coverage.compared == report.coverage.points


def test_an_export_that_hangs_is_given_up(
    executorch: Any, small: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*_: Any) -> None:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(lowering.Programs, "captured", hang)
    with (
        create("executorch,export_limit=1,cache=off", small) as backend,
        pytest.raises(BackendError, match=r"\Atorch.export, .* no graph of Small after 1 s"),
    ):
        backend.run(make_probe(small, PROBE))


def test_transformers_own_exporter_gives_states(executorch: Any) -> None:
    clean = open_model(OfTransformers(PretrainedConfig()).eval())
    spec = "executorch,exporter=transformers"
    report = driftwalk.verify(clean, candidate=spec, probe=PROBE)
    assert report.ok, report
    assert report.coverage.compared == report.coverage.points
    assert report.observer["candidate"].within_tolerance
    flags = report.candidate.flags
    assert flags["exporter"] == "transformers ExecutorchExporter"
    assert flags["delegate"] == "xnnpack"
    assert " in 0 parts" not in flags["operations, plain"]
    assert BIAS_SUMS in report.notes
    assert all(one.requires_grad for one in clean.module.parameters())  # which it had changed
    faulty = copy.deepcopy(clean.module)
    with torch.no_grad():
        faulty.get_submodule("inner.layers.1.down").weight[5, 7] += 0.5
    with create(spec, LoadedModel(faulty, "faulty")) as candidate:
        wrong = driftwalk.verify(clean, candidate=candidate, probe=PROBE)
    assert wrong.verdict == "drift"
    assert wrong.root_cause is not None
    assert wrong.root_cause.point.name == "layer.1"


def test_who_else_may_export_a_model_is_said(executorch: Any) -> None:
    class Strange(OfTransformers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if float(x.sum()) > 0 else x

    model = open_model(Strange(PretrainedConfig()).eval())
    with create(XNNPACK, model) as backend, pytest.raises(BackendError, match=r"exporter=transfor"):
        backend.run(make_probe(model, PROBE))
    with create("executorch", model) as backend, pytest.raises(BackendError) as raised:
        backend.run(make_probe(model, PROBE))
    assert "exporter=transformers" not in str(raised.value)


def test_eight_bits_are_judged_by_their_own_rounding(executorch: Any, small: LoadedModel) -> None:
    report = driftwalk.verify(small, candidate=INT8, probe=PROBE)
    assert report.ok, report
    (logits,) = [layer for layer in report.layers if layer.point.name == "logits"]
    assert logits.metrics is not None
    assert logits.metrics.rel_l2 > 1e-3


def test_a_wrong_number_among_eight_bits_is_drift(
    executorch: Any, small: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantiser = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    convert = quantiser.convert_pt2e

    def wrong(prepared: Any) -> Any:
        made = convert(prepared)
        with torch.no_grad():
            made._frozen_param3[5, 7] = -made._frozen_param3[5, 7] // 2  # layers.1.down
        return made

    monkeypatch.setattr(quantiser, "convert_pt2e", wrong)
    report = driftwalk.verify(small, candidate=f"{INT8},cache=off", probe=PROBE)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
