"""One thing inside one layer is wrong: the culprit is the module it is wrong in."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.adapter import BackendInfo, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, UsageError
from driftwalk.judge.drill import introduced, looking
from driftwalk.layer_drift import Culprit
from driftwalk.spec import Spec
from driftwalk_backends.demo import decoder, encoder
from driftwalk_backends.onnx import export as onnx_export
from driftwalk_backends.torch_eager import TorchEager

OUT, IN = 3, 5
IDS = {"input_ids": np.arange(16).reshape(2, 8)}
"""Every small id once, so that row 3 of a table is used, at row 0 and position 3."""

Maker = Callable[[], nn.Module]


def model(name: str) -> Maker:
    demos: dict[str, Maker] = {"decoder": decoder, "encoder": encoder, "untied": untied}
    return demos.get(name, lambda: zoo.build(name))


def untied() -> nn.Module:
    """The decoder with a head of its own; GPT-2 shares it with the embedding."""
    module = decoder()
    module.lm_head.weight = nn.Parameter(module.lm_head.weight.detach().clone())
    return module


def change(module: nn.Module, path: str) -> None:
    """One weight, of output channel OUT, by the largest of its matrix."""
    part = module.get_submodule(path)
    weight = part.weight
    assert isinstance(weight, torch.Tensor)
    place = (IN, OUT) if type(part).__name__ == "Conv1D" else (OUT, IN)
    with torch.no_grad():
        weight[place[-weight.ndim :] if weight.ndim > 1 else (OUT,)] += weight.abs().max()


def accused(good: object, bad: object, **options: Any) -> tuple[str, Culprit]:
    options = {"policy": "calibrated", "blame": True} | options
    report = driftwalk.verify(good, candidate=bad, **options)
    assert report.cause is not None
    assert report.culprit is not None, report.notes
    assert report.culprit.ratio > 4
    return report.cause, report.culprit


FAULTS = [
    ("decoder", "layer.4", "transformer.h.4.attn.c_attn"),
    ("decoder", "layer.4", "transformer.h.4.attn.c_proj"),
    ("decoder", "layer.0", "transformer.h.0.mlp.c_fc"),
    ("decoder", "layer.5", "transformer.h.5.ln_2"),
    ("encoder", "layer.2", "bert.encoder.layer.2.attention.self.value"),
    ("encoder", "layer.2", "bert.encoder.layer.2.output.dense"),
    ("encoder", "layer.2", "bert.encoder.layer.2.attention.output.LayerNorm"),
    ("llama", "layer.1", "model.layers.1.self_attn.k_proj"),
    ("llama", "layer.1", "model.layers.1.mlp.gate_proj"),
    ("llama", "layer.1", "model.layers.1.post_attention_layernorm"),
    ("t5", "encoder.layer.1", "encoder.block.1.layer.0.SelfAttention.v"),
    ("t5", "decoder.layer.1", "decoder.block.1.layer.1.EncDecAttention.o"),
    ("t5", "decoder.layer.2", "decoder.block.2.layer.2.DenseReluDense.wi"),
    ("t5", "decoder.layer.0", "decoder.block.0.layer.2.layer_norm"),
    ("albert", "layer.0", "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn"),
    ("albert", "layer.0", "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.value"),
]


@pytest.mark.parametrize(("name", "layer", "path"), FAULTS, ids=str)
def test_one_weight_is_placed_in_its_module_and_channel(name: str, layer: str, path: str) -> None:
    bad = model(name)()
    change(bad, path)
    cause, culprit = accused(model(name)(), bad)
    assert (cause, culprit.module, culprit.channel) == (layer, path, OUT)
    assert culprit.sentence.startswith(f"{layer} ")
    assert f"{path.rpartition('.')[2]}: introduced " in culprit.sentence
    assert f"channel {OUT} (suspect a weight)" in culprit.sentence


def wrong_epsilon(module: Any) -> str:
    module.transformer.h[3].ln_2.eps = 1e-2
    return "transformer.h.3.ln_2"


def wrong_activation(module: Any) -> str:
    module.transformer.h[3].mlp.act = nn.SiLU()
    return "transformer.h.3.mlp.act"


@pytest.mark.parametrize("fault", [wrong_epsilon, wrong_activation])
def test_a_wrong_operation_is_all_over_its_module(fault: Callable[[Any], str]) -> None:
    bad = decoder()
    path = fault(bad)
    cause, culprit = accused(decoder(), bad)
    assert (cause, culprit.module) == ("layer.3", path)
    assert (culprit.channel, culprit.token) == (None, None)
    assert "all channels and tokens (suspect an operation or a dtype)" in culprit.sentence


class Leaking(nn.Module):
    """A block of three parts with plain operations between them."""

    def __init__(self, slope: float, bump: float) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)
        self.slope, self.bump = slope, bump

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.leaky_relu(self.up(self.norm(hidden)), self.slope)
        last = self.down(inner)
        last[:, 2] += self.bump
        return hidden + last


def leaking(slope: float = 0.1, bump: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        blocks = [Leaking(0.1, 0.0), Leaking(slope, bump), Leaking(0.1, 0.0)]
        return nn.Sequential(*blocks)


FLOATS = {"input": np.random.default_rng(0).standard_normal((2, 8, 16), dtype=np.float32)}


def test_an_operation_between_modules_is_not_blamed_on_the_next() -> None:
    cause, culprit = accused(leaking(), leaking(slope=0.2), probe=FLOATS)
    assert (cause, culprit.module) == ("layer.1", "1")
    assert culprit.sentence.startswith("layer.1, before down: ")


def test_an_operation_after_all_modules() -> None:
    """At one position of both rows: not one token, but not a weight either."""
    cause, culprit = accused(leaking(), leaking(bump=0.5), probe=FLOATS)
    assert (cause, culprit.module, culprit.channel) == ("layer.1", "1", None)
    assert culprit.sentence.startswith("layer.1, after its modules: ")


def test_one_position_is_named() -> None:
    one_row = {"input": FLOATS["input"][:1]}
    _, culprit = accused(leaking(), leaking(bump=0.5), probe=one_row)
    assert culprit.token == (0, 2)
    assert "row 0 token 2 (suspect a position or a mask)" in culprit.sentence


def test_an_error_is_introduced_once() -> None:
    """What comes after the fault was only handed it, for the truth gets it too."""
    bad = leaking()
    change(bad, "1.norm")
    truth, given = driftwalk.backend("truth", leaking()), driftwalk.Probe(FLOATS)
    candidate = TorchEager.around(bad)
    with looking(truth, "module", "layer.1"), looking(candidate, "module", "layer.1"):
        trace = candidate.trace(given)
        found = introduced(truth, trace)
    wrong = [name for name, item in found.items() if item.error.max_abs > 1e-5]
    assert wrong == ["layer.1.norm"]
    assert list(found) == list(trace.names)


class Wide(Leaking):
    """The same function with a wider middle: no state there can take the other's place."""

    def __init__(self, narrow: Leaking) -> None:
        super().__init__(narrow.slope, narrow.bump)
        self.load_state_dict(narrow.state_dict())
        up, down = nn.Linear(16, 24), nn.Linear(24, 16)
        for new, old in ((up, self.up), (down, self.down)):
            nn.init.zeros_(new.weight)
            nn.init.zeros_(new.bias)
            rows, columns = old.weight.shape
            new.weight.data[:rows, :columns] = old.weight.data
            new.bias.data[:rows] = old.bias.data
        self.up, self.down = up, down


def test_another_implementation_is_drilled_as_far_as_it_is_alike() -> None:
    bad: Any = leaking()
    bad[1] = Wide(bad[1])
    change(bad, "1.down")
    cause, culprit = accused(leaking(), bad, probe=FLOATS)
    assert (cause, culprit.module, culprit.channel) == ("layer.1", "1.down", OUT)


@pytest.mark.parametrize(
    ("name", "path", "point", "channel"),
    [
        ("untied", "transformer.wte", "embed", IN),
        ("decoder", "transformer.ln_f", "norm", OUT),
        ("untied", "lm_head", "logits", OUT),
        ("encoder", "cls.predictions.decoder", "logits", OUT),
    ],
)
def test_outside_the_blocks_the_point_is_named(
    name: str, path: str, point: str, channel: int
) -> None:
    bad = model(name)()
    if path == "cls.predictions.decoder":  # tied to the embedding otherwise
        bad.cls.predictions.decoder.weight = nn.Parameter(
            bad.cls.predictions.decoder.weight.detach().clone()
        )
    change(bad, path)
    cause, culprit = accused(model(name)(), bad, probe=IDS)
    assert (cause, culprit.channel) == (point, channel)
    assert culprit.module == ("input of transformer.h.0" if point == "embed" else path)
    assert culprit.sentence.startswith(f"{point}: introduced ")
    assert culprit.token == ((0, OUT) if point == "embed" else None)


@pytest.mark.parametrize("candidate", ["torch,attn=eager", "emulated:fp16", "emulated:bf16"])
@pytest.mark.parametrize("name", ["decoder", "encoder", "llama"])
def test_nobody_is_accused_where_nothing_is_wrong(name: str, candidate: str) -> None:
    report = driftwalk.verify(model(name)(), candidate=candidate, policy="calibrated", blame=True)
    assert report.ok
    assert (report.root_cause, report.culprit) == (None, None)


def test_a_fault_is_found_in_half_precision_too() -> None:
    bad: Any = decoder()
    bad.transformer.h[2].mlp.c_proj.weight.data[IN, OUT] += 4  # a bit of the exponent
    cause, culprit = accused(decoder(), bad.to(torch.bfloat16))
    assert (cause, culprit.module) == ("layer.2", "transformer.h.2.mlp.c_proj")
    assert culprit.channel == OUT


class Port(driftwalk.Backend):
    """Somebody's runtime: it gives its block states and nothing else."""

    name = "port"

    def __init__(self, module: nn.Module) -> None:
        super().__init__(Spec("port"))
        self._inner = TorchEager.around(module)

    @classmethod
    def offers(cls) -> list[Any]:
        return []

    @property
    def info(self) -> BackendInfo:
        return self._inner.info

    def _forward(self, probe: driftwalk.Probe, sink: Sink | None) -> dict[str, Array]:
        return dict(self._inner._forward(probe, sink))


def test_a_backend_that_cannot_look_inside_gets_the_layer() -> None:
    bad = decoder()
    change(bad, "transformer.h.4.mlp.c_proj")
    cause, culprit = accused(decoder(), Port(bad))
    assert (cause, culprit.module, culprit.channel) == ("layer.4", "transformer.h.4", OUT)
    assert culprit.sentence.startswith("layer.4: introduced ")
    with pytest.raises(UsageError, match="port cannot look inside blocks"):
        driftwalk.verify(decoder(), candidate=Port(decoder()), depth="module")


class Stubborn(TorchEager):
    def look(self, depth: str, layer: str = "") -> None:
        if layer:
            raise BackendError("no looking inside today")


def test_a_drill_that_breaks_costs_a_note_and_not_the_report() -> None:
    bad = decoder()
    change(bad, "transformer.h.4.mlp.c_proj")
    report = driftwalk.verify(
        decoder(), candidate=Stubborn.around(bad), policy="calibrated", blame=True
    )
    assert report.cause == "layer.4"
    assert report.culprit is None
    assert any("inside layer.4: no looking inside today" in note for note in report.notes)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Each look at the one model that is edited below is exported once."""
    made: dict[str, Path] = {}
    real = onnx_export.export

    def of(module: nn.Module, layout: Any, called: Any, exporter: Any) -> Path:
        if (look := f"{layout.key} {layout.look}") not in made:
            made[look] = tmp_path_factory.mktemp("export")
            real(module, layout, called, made[look], exporter)
        return made[look]

    return of


def edited_export(
    monkeypatch: pytest.MonkeyPatch, exports: Callable[..., Path], initialiser: str
) -> None:
    """Every export from now on has one weight changed in the graphs that were written."""

    def export(module: nn.Module, layout: Any, called: Any, folder: Path, exporter: Any) -> None:
        shutil.copytree(exports(module, layout, called, exporter), folder, dirs_exist_ok=True)
        for name in ("traced.onnx", "plain.onnx"):
            graph = onnx.load(str(folder / name))
            (found,) = [i for i in graph.graph.initializer if i.name.endswith(initialiser)]
            weight = onnx.numpy_helper.to_array(found).copy()
            weight[(IN, OUT)[-weight.ndim :]] += np.abs(weight).max()
            found.CopyFrom(onnx.numpy_helper.from_array(weight, found.name))
            onnx.save(graph, str(folder / name))

    monkeypatch.setattr(onnx_export, "export", export)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("initialiser", "path"),
    [
        ("h.1.mlp.c_proj.weight", "transformer.h.1.mlp.c_proj"),
        ("h.1.attn.c_attn.weight", "transformer.h.1.attn.c_attn"),
        ("h.1.ln_2.weight", "transformer.h.1.ln_2"),
    ],
)
def test_an_edited_onnx_graph(
    monkeypatch: pytest.MonkeyPatch,
    exports: Callable[..., Path],
    tmp_path: Path,
    initialiser: str,
    path: str,
) -> None:
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))
    edited_export(monkeypatch, exports, initialiser)
    cause, culprit = accused(zoo.build("gpt2"), "onnxruntime")
    assert (cause, culprit.module, culprit.channel) == ("layer.1", path, OUT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_onnx_states_inside_a_layer_are_torchs(name: str) -> None:
    """In the graph, as in torch: the same names in the same order, and the same numbers."""
    layer = "decoder.layer.1" if name == "t5" else "layer.1"
    traces = []
    for spec in ("torch", "onnxruntime"):
        with driftwalk.backend(spec, zoo.build(name)) as backend:
            backend.look("module", layer)  # type: ignore[attr-defined]
            traces.append(backend.trace(inputs(name)))
    assert traces[0].names == traces[1].names
    assert sum(point.startswith(f"{layer}.") for point in traces[0].names) > 8
    for state in traces[0]:
        np.testing.assert_allclose(traces[1][state.point.name], state.array, atol=1e-4)


def inputs(name: str) -> driftwalk.Probe:
    given = dict(IDS)
    if name == "t5":
        given["decoder_input_ids"] = IDS["input_ids"]
    return driftwalk.Probe(given)
