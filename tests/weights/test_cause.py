"""A drift report whose cause is a weight says so first; any other says nothing of the kind."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import driftwalk
import nets
import zoo
from driftwalk.adapter import HasWeights
from driftwalk.result import Report, from_dict, to_dict
from driftwalk.tasks.weights import cause
from driftwalk_backends.demo import decoder, encoder
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_eager import TorchEager
from driftwalk_reports.html import render as render_html
from driftwalk_reports.markdown import render as render_markdown
from driftwalk_reports.sentences import headline
from driftwalk_reports.terminal import render as render_text
from driftwalk_reports.weight_words import weights_sentence

ENTRY = (
    "DRIFT: layer.3: its mlp.c_proj.weight is not the reference's: one entry [7, 11] is off by 0.5"
)


def changed(
    make: Callable[[], nn.Module], path: str, edit: Callable[[torch.Tensor], None]
) -> Report:
    port = make()
    with torch.no_grad():
        edit(port.get_parameter(path))
    return driftwalk.verify(make(), candidate=port)


def one_entry(weight: torch.Tensor) -> None:
    weight[(7, 11)[: weight.ndim]] += 0.5


@pytest.fixture(scope="module")
def report() -> Report:
    return changed(decoder, "transformer.h.3.mlp.c_proj.weight", one_entry)


def test_every_report_says_it_first(report: Report) -> None:
    assert headline(report).startswith(ENTRY)
    assert ENTRY in render_text(report).splitlines()[-1]
    assert ENTRY.replace("[", r"\[").replace("_", r"\_").split(":")[-1] in render_markdown(report)
    page = render_html(report)
    said = page[page.index("<h1>") : page.index("</h1>")]
    assert "mlp.c_proj.weight is not the reference&#39;s: one entry [7, 11] is off by 0.5" in said
    assert said.index("c_proj.weight") < said.index("departs")


def test_it_is_stored_and_read_again_and_older_results_are_too(report: Report) -> None:
    data = to_dict(report)
    assert from_dict(data) == report
    del data["weights"]
    assert from_dict(data) == replace(report, weights=None)
    assert headline(from_dict(data)).startswith("DRIFT: first divergence at layer.3")


@pytest.mark.parametrize(
    ("make", "path", "where", "words"),
    [
        (decoder, "transformer.wpe.weight", "embed: its transformer.wpe.weight", "off by 0.5"),
        (decoder, "transformer.ln_f.weight", "norm: its weight", "one entry [7] is off by 0.5"),
        (encoder, "cls.predictions.transform.dense.weight", "logits: its cls.pred", "off by 0.5"),
        (
            encoder,
            "bert.encoder.layer.2.output.dense.bias",
            "layer.2: its output.dense.bias",
            "[7]",
        ),
    ],
)
def test_weights_of_every_part(
    make: Callable[[], nn.Module], path: str, where: str, words: str
) -> None:
    said = headline(changed(make, path, one_entry))
    assert said.startswith(f"DRIFT: {where}"), said
    assert words in said[:200]


def test_a_transposed_and_a_permuted_matrix() -> None:
    def turn(weight: torch.Tensor) -> None:
        weight.copy_(weight.t().clone())

    def swap(weight: torch.Tensor) -> None:
        weight.copy_(weight.flip(1))

    path = "transformer.h.2.attn.c_proj.weight"
    assert f"{path[16:]} is not the reference's: it is transposed" in headline(
        changed(decoder, path, turn)
    )
    assert "its columns are in another order: reversed" in headline(changed(decoder, path, swap))


def test_a_wrong_reference_is_said_to_be() -> None:
    port = decoder()
    port.transformer.h[3].mlp.c_proj.weight.data[7, 11] += 0.5
    report = driftwalk.verify(decoder(), candidate="torch", reference=port)
    assert report.at_fault == "reference"
    said = "layer.3: the reference's mlp.c_proj.weight is not the model's: one entry [7, 11]"
    assert headline(report).startswith(f"DRIFT: {said}")


class Louder(nn.Module):
    """A fault of code: no weight tells of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: object, **options: object) -> torch.Tensor:
        return self.inner(*args, **options) * 1.5


def broken(module: nn.Module) -> nn.Module:
    """The activation of one layer is off, no weight is."""
    port = copy.deepcopy(module)
    port.transformer.h[3].mlp.act = Louder(port.transformer.h[3].mlp.act)
    return port


def test_a_fault_of_code_is_not_blamed_on_weights() -> None:
    report = driftwalk.verify(decoder(), candidate=broken(decoder()))
    assert report.cause == "layer.3"
    assert report.weights is not None
    assert (report.weights.cause, report.weights.changes) == ("", ())
    assert headline(report).startswith("DRIFT: first divergence")
    assert weights_sentence(report) == (
        "All 12 weights of layer.3 are the reference's: the cause is no weight."
    )
    assert "the cause is no weight" in render_html(report)


def test_a_fault_of_code_is_not_blamed_on_a_weight_beside_it() -> None:
    port = decoder()
    port.transformer.h[3].mlp.act = nn.ReLU()
    with torch.no_grad():
        port.transformer.h[3].attn.c_proj.weight[0, 0] *= 1 + 1e-4
    report = driftwalk.verify(decoder(), candidate=port)
    assert report.cause == "layer.3"
    assert report.culprit is not None
    assert report.culprit.module == "transformer.h.3.mlp.act"
    assert report.weights is not None
    assert not report.weights.cause
    assert "weight" not in headline(report)


def test_half_weights_are_no_finding() -> None:
    report = driftwalk.verify(decoder(), candidate=broken(decoder()).bfloat16())
    assert report.cause == "layer.3"
    assert report.weights is not None
    assert report.weights.changes == ()


def test_a_weight_elsewhere_is_not_accused() -> None:
    """An embedding that the probe does not use, and a fault of code in a layer."""
    port = broken(decoder())
    port.transformer.wte.weight = nn.Parameter(port.transformer.wte.weight.detach().clone())
    port.transformer.wte.weight.data[200] += 1
    report = driftwalk.verify(decoder(), candidate=port, probe={"input_ids": [[1, 2, 3, 4]]})
    assert report.cause == "layer.3"
    assert report.weights is not None
    assert [one.name for one in report.weights.changes] == ["transformer.wte.weight"]
    assert report.weights.cause == ""
    assert headline(report).startswith("DRIFT: first divergence")


class Linear(nn.Module):
    """GPT-2's Conv1D with its matrix stored the other way round."""

    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(like.weight.detach().t().clone())
        self.bias = nn.Parameter(like.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


def test_what_sound_layers_have_too_is_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that stores matrices transposed, square ones too, and has a fault of code."""
    port = broken(decoder())
    for block in port.transformer.h:
        for part, name in ((block.attn, "c_attn"), (block.attn, "c_proj"), (block.mlp, "c_fc")):
            setattr(part, name, Linear(getattr(part, name)))
    for small in (cause.WEIGHTS_COMPARED_WHOLE, 0):  # all weights, or those of three layers
        monkeypatch.setattr(cause, "WEIGHTS_COMPARED_WHOLE", small)
        report = driftwalk.verify(decoder(), candidate=port)
        assert report.cause == "layer.3"
        assert report.weights is not None
        assert {one.verdict for one in report.weights.changes} == {"transposed"}
        assert report.weights.cause == ""
    assert report.weights.compared == 3 * 12
    # And its own wrong weight is told from that.
    port.transformer.h[3].attn.c_proj.weight.data[5, 6] += 0.5
    report = driftwalk.verify(decoder(), candidate=port)
    assert "attn.c_proj.weight is not the reference's" in headline(report)


@pytest.mark.parametrize("spec", ["emulated:bf16", "torch:cpu:bf16", "truth"])
def test_the_same_model_in_another_dtype_is_not_asked(spec: str) -> None:
    model = open_model(decoder())
    with driftwalk.backend(spec, model) as backend:
        assert isinstance(backend, HasWeights)
        assert backend.other_weights(model, make_probe(model)) is None
    same = TorchEager.around(model.module)
    assert same.other_weights(model, make_probe(model)) is None
    other = TorchEager.around(decoder()).other_weights(model, make_probe(model))
    assert other is not None
    assert "lm_head.weight" in other.ties


# ---- graphs ----


def patched(module: nn.Module, folder: Path, wanted: Callable[[onnx.TensorProto], bool]) -> Path:
    """The export of a module, one entry of one initialiser changed."""
    with driftwalk.backend("onnxruntime", module) as backend:
        graph = onnx.load(str(backend._export(backend._fixed(None)).plain))  # type: ignore[attr-defined]
    chosen = next(tensor for tensor in graph.graph.initializer if wanted(tensor))
    array = numpy_helper.to_array(chosen).copy()
    array[3, 4] += 0.5
    chosen.CopyFrom(numpy_helper.from_array(array, chosen.name))
    path = folder / "bad.onnx"
    onnx.save(graph, str(path))
    return path


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_a_changed_initialiser_is_the_cause(kind: str, tmp_path: Path) -> None:
    """Under its own name, or as `val_163`, which holds the matrix transposed."""
    module = zoo.build(kind)
    name, right = next(
        (name, weight)
        for name, weight in module.named_parameters()
        if ".1." in name and weight.ndim == 2 and weight.shape[0] != weight.shape[1]
    )
    right = right.detach().numpy()

    def wanted(tensor: onnx.TensorProto) -> bool:
        array = numpy_helper.to_array(tensor)
        return any(array.shape == one.shape and (array == one).all() for one in (right, right.T))

    path = patched(module, tmp_path, wanted)
    report = driftwalk.verify(module, candidate=f"onnxruntime,file={path}")
    assert report.cause == "layer.1"
    assert report.weights is not None
    assert report.weights.cause == name
    assert "is not the reference's: one entry [" in headline(report)[:120]


@pytest.mark.parametrize(("options", "silent"), [(",quantize=dynamic-int8", True), ("", False)])
def test_an_export_in_eight_bits_is_silent(options: str, silent: bool) -> None:
    model = open_model(decoder())
    with driftwalk.backend(f"onnxruntime{options}", model) as backend:
        assert isinstance(backend, HasWeights)
        assert (backend.other_weights(model, make_probe(model)) is None) == silent


def test_two_graphs(tmp_path: Path) -> None:
    stored = nets.weights()
    a = nets.residual(tmp_path / "a.onnx", stored)
    b = nets.residual(tmp_path / "b.onnx", nets.spoilt(stored, "w1"))
    report = driftwalk.verify(str(a), candidate=f"onnxruntime,file={b}")
    assert report.weights is not None
    assert report.weights.cause == "w1"
    assert "its w1 is not the reference's: one entry [4, 0] is off by 0.5" in headline(report)


def test_two_graphs_of_which_one_computes_something_else(tmp_path: Path) -> None:
    a = nets.residual(tmp_path / "a.onnx")
    b = nets.residual(tmp_path / "b.onnx", alpha=2.0)
    report = driftwalk.verify(str(a), candidate=f"onnxruntime,file={b}")
    assert report.verdict == "drift"
    assert report.weights is not None
    assert (report.weights.cause, report.weights.changes) == ("", ())


def test_weights_that_cannot_be_read_cost_a_note(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise driftwalk.DriftwalkError("no such luck")

    monkeypatch.setattr(cause, "findings", fail)
    again = changed(decoder, "transformer.h.3.mlp.c_proj.weight", one_entry)
    assert again.weights is None
    assert "The weights could not be compared: no such luck" in again.notes


def test_nan_in_a_weight() -> None:
    def spoil(weight: torch.Tensor) -> None:
        weight[7, 11] = math.nan

    said = headline(changed(decoder, "transformer.h.3.mlp.c_proj.weight", spoil))
    assert "entry [7, 11] is NaN, not" in said
