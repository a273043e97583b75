"""A stored truth or export is used only where the model gives, now, the bits it gave then.

What changes here is in no weight, and mostly in no fingerprint: a function, a method, an argument.
Stored for the model as it was, a truth would raise an alarm at the changed model, which is right
about itself; and a stale graph that meets a stale truth would pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftwalk
from driftwalk.judge.sides import JudgedSide
from driftwalk.result import Report
from driftwalk.states import Trace
from driftwalk_backends.fingerprint import Evidence, fingerprint
from driftwalk_backends.onnx import export as onnx_export
from driftwalk_backends.sources import open_model

PROBE = {"src": np.random.default_rng(0).standard_normal((2, 5, 8), dtype=np.float32)}
OTHER = {"src": np.random.default_rng(1).standard_normal((2, 5, 8), dtype=np.float32)}

Change = Callable[[pytest.MonkeyPatch, Any], None]


def encoder(activation: Callable[..., Any] = F.gelu) -> nn.Module:
    """Two blocks of torch's own code: known, so that what is made of them may be stored."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True)
    layer.norm1.eps = 1e-4  # torch's fused block is for the usual epsilon
    layer.norm2.eps = 1e-3
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def scaled(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: real(*args, **kwargs) * 1.25


def with_activation(function: Callable[..., Any]) -> Change:
    def change(_: pytest.MonkeyPatch, module: Any) -> None:
        for layer in module.layers:
            layer.activation = function

    return change


def patched_method(patch: pytest.MonkeyPatch, _: Any) -> None:
    patch.setattr(nn.LayerNorm, "forward", scaled(nn.LayerNorm.forward))


def patched_private_method(patch: pytest.MonkeyPatch, _: Any) -> None:
    kind = nn.TransformerEncoderLayer
    patch.setattr(kind, "_ff_block", scaled(kind._ff_block))


def patched_function(patch: pytest.MonkeyPatch, _: Any) -> None:
    patch.setattr(F, "linear", scaled(F.linear))


def patched_in_modelling_file(patch: pytest.MonkeyPatch, _: Any) -> None:
    from torch.nn.modules import normalization

    class Patched:
        def __getattr__(self, name: str) -> Any:
            real = getattr(F, name)
            return scaled(real) if name == "layer_norm" else real

    patch.setattr(normalization, "F", Patched())


CHANGES: dict[str, tuple[Callable[..., Any], Change]] = {
    "partial": (
        partial(F.gelu, approximate="none"),
        with_activation(partial(F.gelu, approximate="tanh")),
    ),
    "partial of a tensor": (
        partial(torch.mul, torch.tensor(1.0)),
        with_activation(partial(torch.mul, torch.tensor(1.5))),
    ),
    "partial of a numpy number": (
        partial(torch.mul, other=np.float32(1.0)),
        with_activation(partial(torch.mul, other=np.float32(1.5))),
    ),
    "method of a class": (F.gelu, patched_method),
    "private method of a class": (F.gelu, patched_private_method),
    "function of torch": (F.gelu, patched_function),
    "function in a modelling file": (F.gelu, patched_in_modelling_file),
}


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []
    real = onnx_export.export

    def counted(module: nn.Module, layout: Any, called: Any, folder: Path, exporter: Any) -> None:
        made.append(folder)
        real(module, layout, called, folder, exporter)

    monkeypatch.setattr(onnx_export, "export", counted)
    return made


def verified(module: nn.Module, candidate: object, **options: Any) -> tuple[Report, bool]:
    """A report, and whether the calibration was found."""
    report = driftwalk.verify(module, candidate, **{"probe": PROBE, **options})
    return report, not any("was computed" in note for note in report.notes)


@pytest.mark.parametrize("what", CHANGES)
def test_a_stored_truth_is_not_used_for_a_changed_model(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    activation, change = CHANGES[what]
    assert verified(encoder(activation), encoder(activation))[0].ok
    again, found = verified(encoder(activation), encoder(activation))
    assert again.ok
    assert found, "the same model finds what was stored"
    changed, twin = encoder(activation), encoder(activation)
    with monkeypatch.context() as patch:
        change(patch, changed)
        change(patch, twin)
        report, found = verified(changed, twin)
        assert not found
        assert report.ok, "the changed model is right about itself"
        if what.startswith("partial"):  # in one process, old code beside new
            report, found = verified(changed, encoder(activation))
            assert found
            assert not report.ok, "what was right is a bug by now"
    report, found = verified(encoder(activation), encoder(activation))
    assert report.ok, "and back"


@pytest.mark.parametrize(
    "reference",
    ["torch:cpu:fp64", "torch:cpu:fp32,threads=1", encoder],
    ids=["fp64", "threads", "module"],
)
def test_it_is_proved_without_a_run_of_the_model_among_the_sides(
    reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> tuple[Report, bool]:
        given = reference if isinstance(reference, str) else reference()
        return verified(encoder(), encoder(), reference=given)

    assert run()[0].ok
    assert run()[1], "found"
    with monkeypatch.context() as patch:
        patched_function(patch, None)
        report, found = run()
        assert not found
        assert report.ok


def test_what_autocast_made_is_not_used_outside_of_it() -> None:
    """It is switched off for every run: what was stored inside is what would be stored outside."""
    with torch.autocast("cpu", torch.bfloat16):
        inside = driftwalk.verify(encoder(), encoder(), probe=PROBE)
    assert "bfloat16" in inside.candidate.flags["autocast"]
    outside = driftwalk.verify(encoder(), encoder(), probe=PROBE)
    fresh = driftwalk.verify(encoder(), encoder(), probe=PROBE, cache=False)
    assert inside.ok
    assert outside.ok
    for name in ("layer.0", "layer.1"):
        allowed = [report.layer(name).tolerance.atol for report in (inside, outside, fresh)]
        assert allowed == pytest.approx([allowed[-1]] * 3, rel=1e-6)


def test_one_loaded_model_that_changes_between_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = open_model(encoder())
    assert driftwalk.verify(loaded, encoder(), probe=PROBE).ok
    patched_function(monkeypatch, None)
    report = driftwalk.verify(loaded, encoder(), reference="torch:cpu:fp64", probe=PROBE)
    assert report.ok
    assert any("was computed" in note for note in report.notes)


@pytest.mark.parametrize(
    ("what", "probe"),
    [("partial of a numpy number", PROBE), ("function in a modelling file", OTHER)],
    ids=["same probe", "other probe"],
)
def test_a_stored_graph_is_not_used_for_a_changed_model(
    what: str, probe: Any, exports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    activation, change = CHANGES[what]
    first, _ = verified(encoder(activation), "onnxruntime")
    again, _ = verified(encoder(activation), "onnxruntime", probe=probe)
    assert first.ok
    assert again.ok
    assert len(exports) == 1, "the same model finds what was stored"
    changed = encoder(activation)
    with monkeypatch.context() as patch:
        change(patch, changed)
        report, _ = verified(changed, "onnxruntime", probe=probe)
        assert len(exports) == 2
        assert report.ok
        assert verified(changed, "onnxruntime", probe=probe, policy="dtype")[0].ok


@pytest.mark.parametrize("candidate", [encoder, "onnxruntime"], ids=["module", "export"])
def test_where_nothing_can_be_stored_the_verdict_is_the_same(
    candidate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path / "file"))
    given = candidate if isinstance(candidate, str) else candidate()
    report, found = verified(encoder(), given)
    assert report.ok
    assert not found
    (note,) = report.notes
    assert "not stored (" in note


def test_fingerprints_tell_what_attributes_hold() -> None:
    kinds: list[Callable[..., Any]] = [
        partial(F.gelu, approximate="tanh"),
        partial(F.gelu, approximate="none"),
        partial(torch.mul, 1.5),
        partial(torch.mul, np.float32(1.5)),
        partial(torch.mul, np.float64(1.5)),
        partial(torch.mul, torch.tensor(1.5)),
        partial(torch.mul, torch.tensor(1.25)),
        partial(torch.mul, torch.tensor([1.25])),
        partial(torch.mul, other={1.25, 2.5}),
        partial(torch.mul, other=np.arange(3)),
        partial(torch.mul, other=np.arange(4)),
    ]
    found = [fingerprint(encoder(kind)) for kind in kinds]
    assert len(set(found)) == len(kinds)
    assert found == [fingerprint(encoder(kind)) for kind in kinds]


def test_errors_of_the_reference_that_are_stored_are_those_that_would_be_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reference is often the very run that proves what is stored: it is not measured twice."""
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))

    def errors() -> list[object]:
        report = driftwalk.verify(encoder(), candidate="torch:cpu:fp64", probe=PROBE)
        return [row.truth.norms["reference"] for row in report.layers]

    cold = errors()
    measured: list[object] = []
    meet_all = JudgedSide.meet_all

    def counted(side: JudgedSide, trace: Trace) -> None:
        measured.append(side.side)
        meet_all(side, trace)

    monkeypatch.setattr(JudgedSide, "meet_all", counted)
    assert errors() == cold
    assert measured == []
    monkeypatch.setattr(Evidence, "trace", lambda *_: None)
    assert errors() == cold
    assert measured == ["reference"]


def test_a_reference_that_is_wrong_in_its_own_dtype_alone_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is stored for bf16 is proved by a run in fp32, which knows nothing of bf16 kernels."""
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))
    sides = {"reference": "torch:cpu:bf16", "candidate": "torch", "probe": PROBE}
    assert driftwalk.verify(encoder(), **sides).ok
    real = nn.LayerNorm.forward

    def wrong_in_half(norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        return real(norm, x) * (1.25 if x.dtype == torch.bfloat16 else 1)

    monkeypatch.setattr(nn.LayerNorm, "forward", wrong_in_half)
    report = driftwalk.verify(encoder(), **sides)
    assert (report.verdict, report.at_fault) == ("drift", "reference")
