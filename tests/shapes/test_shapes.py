"""One model at several shapes: what is right at one and wrong at another is told by its shape."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, ViTConfig, ViTModel
from typer.testing import CliRunner

import driftwalk
from driftwalk.cli.app import app
from driftwalk.errors import UsageError
from driftwalk.spec import Spec
from driftwalk.stage import open_model
from driftwalk.states import Probe
from driftwalk.tasks.shapes.shape import LONGEST, TRIED, Shape, shapes_of
from driftwalk_backends.depth import Look
from driftwalk_backends.onnx import export as onnx_export
from driftwalk_backends.onnx.exported import Exported
from driftwalk_backends.onnx.exporters import TorchExporter
from driftwalk_backends.onnx.exposed import Exposed, silence
from torch_nets import Block

SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
USUAL = Shape(2, 16)


class Averaging(BertModel):
    """The mean over all tokens; `tokens` is what a tracer makes of their number."""

    tokens: int | None = None

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> torch.Tensor:  # type: ignore[override]
        states = super().forward(input_ids, attention_mask=attention_mask).last_hidden_state
        return states.sum(1) / (self.tokens or states.shape[1])


def averaging(tokens: int | None = None) -> Averaging:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=60, intermediate_size=48, max_position_embeddings=48, **SIZES)
    made = Averaging(config, add_pooling_layer=False).eval()
    made.tokens = tokens
    return made


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "n_positions": 48, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).eval()


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with open axes, as people make them, with the number of tokens fixed inside."""
    ids = torch.arange(32).reshape(2, 16)
    size = torch.export.Dim.AUTO
    path = tmp_path_factory.mktemp("graph") / "g.onnx"
    with silence():
        torch.onnx.export(
            averaging(16),
            (ids, torch.ones_like(ids)),
            path,
            dynamo=True,
            input_names=["input_ids", "attention_mask"],
            output_names=["logits"],
            dynamic_shapes=({0: size, 1: size}, {0: size, 1: size}),
            external_data=False,
        )
    return path


@given(st.lists(st.tuples(st.integers(1, 9_999), st.integers(1, 9_999)), min_size=1, max_size=20))
def test_shapes_are_read_as_they_are_written(pairs: list[tuple[int, int]]) -> None:
    wanted = sorted(
        dict.fromkeys(Shape(*pair) for pair in pairs), key=lambda s: 1 in vars(s).values()
    )
    assert list(shapes_of(pairs, USUAL)) == wanted
    assert shapes_of(",".join(map(str, (Shape(*pair) for pair in pairs))), USUAL) == tuple(wanted)


def test_shapes_nobody_names_begin_with_that_at_which_a_graph_is_made() -> None:
    auto = shapes_of("auto", USUAL)
    assert auto[0] == USUAL
    assert set(auto) == {USUAL, *TRIED}
    assert {shape.rows for shape in TRIED} == {1, 3}
    assert {1, LONGEST} <= {shape.length for shape in TRIED}


@pytest.mark.parametrize(
    "given", ["", ",", "16", "1x", "0x4", "1x-3", "1x4x5", "a", 7, [(1, 2, 3)], [(0, 1)], None]
)
def test_what_is_no_shape_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match="is no shape; write rows x length"):
        shapes_of(given, USUAL)
    with pytest.raises(UsageError, match=r"^'1x0' is no shape"):
        shapes_of("1x0", USUAL)


def test_a_great_many_shapes_are_refused() -> None:
    with pytest.raises(UsageError, match="65 shapes are more than the 64"):
        shapes_of([(1, n) for n in range(1, 66)], USUAL)


def test_what_is_right_at_one_shape_alone_is_told_by_its_shape() -> None:
    model, candidate = averaging(), averaging(16)
    made = driftwalk.verify_all(model, [candidate], shapes="2x16,1x9,3x16")
    assert [(r.probe.shape, r.verdict) for r in made] == [
        ("2x16", "pass"),
        ("3x16", "pass"),
        ("1x9", "drift"),
    ]
    assert "It depends on the shape: pass at 2x16, 3x16; drift at 1x9." in " ".join(made[2].notes)
    assert "One of 3 shapes" in " ".join(made[0].notes)


def test_a_graph_with_an_axis_fixed_inside_is_caught_at_another_shape(graph: Path) -> None:
    made = driftwalk.verify_all(averaging(), [f"onnxruntime,file={graph}"], shapes="2x16,1x9,3x7")
    assert [r.verdict for r in made] == ["pass", "drift", "drift"]
    assert {r.first_divergence.point.name for r in made[1:] if r.first_divergence} == {"logits"}


def test_a_graph_that_does_not_take_a_shape_is_not_verified_there(
    graph: Path, tmp_path: Path
) -> None:
    model = onnx.load(graph)
    for taken in model.graph.input:
        for axis, size in zip(taken.type.tensor_type.shape.dim, (2, 16), strict=True):
            axis.dim_value = size
    onnx.save(model, tmp_path / "closed.onnx")
    named = f"onnxruntime,file={tmp_path / 'closed.onnx'}"
    made = driftwalk.verify_all(averaging(), [named], shapes="2x16,1x9")
    assert [r.verdict for r in made] == ["pass", "unverified"]
    assert "input_ids" in made[1].reason


def test_shapes_that_are_the_same_input_are_run_once() -> None:
    torch.manual_seed(0)
    config = ViTConfig(intermediate_size=48, image_size=16, patch_size=8, **SIZES)
    made = driftwalk.verify_all(
        ViTModel(config, add_pooling_layer=False).eval(), ["emulated:bf16"], shapes="auto"
    )
    assert [r.probe.shape for r in made] == ["2x3x16x16", "3x3x16x16", "1x3x16x16"]
    assert {r.verdict for r in made} == {"pass"}


def test_lengths_beyond_the_positions_of_a_model_are_cut() -> None:
    made = driftwalk.verify_all(gpt2(), ["emulated:bf16"], shapes="auto")
    lengths = [int(r.probe.shape.split("x")[1]) for r in made]
    assert lengths[:-1] == [16, 7, 9, 32, 1, 8, 31, 33]
    assert 33 < lengths[-1] <= 48
    assert {r.verdict for r in made} == {"pass"}


@pytest.mark.parametrize("more", [{"probe": "hello"}, {"batch": 2}, {"length": 3}])
def test_shapes_are_those_of_default_probes(more: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="leave probe, batch and length out"):
        driftwalk.verify_all(gpt2(), ["emulated:bf16"], shapes="1x4", **more)


def test_one_report_cannot_be_of_several_shapes() -> None:
    with pytest.raises(UsageError, match="verify_all"):
        driftwalk.verify(gpt2(), "emulated:bf16", shapes="1x4")


def test_the_command_line_has_a_line_for_each_shape(tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path / "model")
    asked = [str(tmp_path / "model"), "-c", "emulated:bf16", "--shapes", "1x4,3x5"]
    out = tmp_path / "out"
    ran = CliRunner().invoke(app, ["verify", *asked, "--report", str(out)])
    assert ran.exit_code == 0, ran.output
    assert re.search(r"1x4 +emulated:bf16 +✓ pass", ran.output)
    assert "PASS: 2 runs: 2 pass." in ran.output
    folders = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert folders == ["01-emulated-bf16-3x5", "02-emulated-bf16-1x4"]
    assert "model at 3x5" in (out / "index.html").read_text()
    stored = json.loads((out / folders[1] / "result.json").read_text())
    assert stored["probe"]["inputs"]["input_ids"]["shape"] == [1, 4]


def test_one_graph_with_open_axes_serves_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, whole = [], onnx_export.export
    monkeypatch.setattr(onnx_export, "export", lambda *a: (made.append(a), whole(*a)))
    reports = driftwalk.verify_all(gpt2(), ["onnxruntime"], shapes="1x5,1x1,3x9")
    assert [(r.probe.shape, r.verdict) for r in reports] == [
        ("3x9", "pass"),
        ("1x5", "pass"),
        ("1x1", "pass"),
    ]
    assert len(made) == 1
    assert reports[0].candidate.spec == "onnxruntime,dynamic=on"


class Branching(nn.Module):
    """Goes another way with six tokens, as models do that have a window."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.blocks = nn.Embedding(20, 8), nn.ModuleList([Block(), Block()])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.table(input_ids)
        for block in self.blocks:
            x = block(x)
        return x * (2.0 if input_ids.shape[1] == 6 else 3.0)


def branching() -> Branching:
    torch.manual_seed(0)
    return Branching().eval()


def test_a_way_that_was_taken_when_a_graph_was_made_is_drift_at_another_shape() -> None:
    """torch.onnx leaves the condition out of its graph, and the axis open."""
    made = driftwalk.verify_all(branching(), ["onnxruntime"], shapes="2x6,3x6,2x7")
    assert [r.verdict for r in made] == ["pass", "pass", "drift"]
    assert "pass at 2x6, 3x6; drift at 2x7" in " ".join(made[2].notes)


def test_graphs_are_made_where_no_axis_is_one() -> None:
    made = driftwalk.verify_all(gpt2(), ["emulated:bf16"], shapes="1x1,1x4,3x2")
    assert [r.probe.shape for r in made] == ["3x2", "1x1", "1x4"]


def test_weights_are_streamed_at_all_shapes_where_asked() -> None:
    made = driftwalk.verify_all(gpt2(), ["torch,attn=eager"], shapes="2x4,3x4", stream=True)
    assert [r.candidate.spec for r in made] == ["torch,attn=eager,stream=on"] * 2


class Fixing(TorchExporter):
    """Says that its graphs have open axes, and fixes them."""

    def program(self, exposed: Exposed, outputs: Sequence[str]) -> Any:
        return TorchExporter().program(exposed, outputs)


def test_an_axis_that_is_fixed_has_another_graph_and_a_remark() -> None:
    given = open_model(branching()), Spec.parse("onnxruntime"), "fp32", False, {}
    exports = onnx_export.Exports(*given, (Fixing(dynamic=True),))
    probes = [Probe({"input_ids": np.zeros(shape, np.int64)}) for shape in ((2, 6), (2, 7))]
    first, second = (exports.get(probe, Look()) for probe in probes)
    assert first.takes(probes[0])
    assert first is not second
    assert second.takes(probes[1])
    assert exports.get(probes[0], Look()) is first
    assert "other shapes have another" in exports.flags["export"]
    exports.close()


def test_what_a_graph_takes_is_told_by_its_axes() -> None:
    axes = (("a", ("n", 4)), ("b", ("n",)))
    graph = Exported(Path(), (), (), axes=axes)

    def takes(**shapes: tuple[int, ...]) -> bool:
        return graph.takes(Probe({name: np.zeros(shape) for name, shape in shapes.items()}))

    assert takes(a=(3, 4), b=(3,))
    assert takes(a=(3, 4))
    assert not takes(a=(3, 5), b=(3,))
    assert not takes(a=(3, 4), b=(2,))
    assert not takes(a=(3, 4, 1), b=(3,))
