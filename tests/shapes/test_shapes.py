"""One model at several shapes: what is right at one and wrong at another is told by its shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, ViTConfig, ViTModel
from typer.testing import CliRunner

import driftwalk
from driftwalk.cli.app import app
from driftwalk.errors import UsageError
from driftwalk.tasks.shapes.shape import LONGEST, TRIED, Shape, shapes_of
from driftwalk_backends.onnx.export import silence

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
    wanted = tuple(dict.fromkeys(Shape(*pair) for pair in pairs))
    assert shapes_of(pairs, USUAL) == wanted
    assert shapes_of(",".join(map(str, (Shape(*pair) for pair in pairs))), USUAL) == wanted


def test_shapes_nobody_names_begin_with_that_at_which_a_graph_is_made() -> None:
    assert shapes_of("auto", USUAL) == (USUAL, *TRIED)
    assert {shape.rows for shape in TRIED} == {1, 3}
    assert {1, LONGEST} <= {shape.length for shape in TRIED}


@pytest.mark.parametrize(
    "given", ["", ",", "16", "1x", "0x4", "1x-3", "1x4x5", "a", 7, [(1, 2, 3)], [(0, 1)], None]
)
def test_what_is_no_shape_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match="is no shape; write rows x length"):
        shapes_of(given, USUAL)


def test_a_great_many_shapes_are_refused() -> None:
    with pytest.raises(UsageError, match="65 shapes are more than the 64"):
        shapes_of([(1, n) for n in range(1, 66)], USUAL)


def test_what_is_right_at_one_shape_alone_is_told_by_its_shape() -> None:
    model, candidate = averaging(), averaging(16)
    made = driftwalk.verify_all(model, [candidate], shapes="2x16,1x9,3x16")
    assert [(r.probe.shape, r.verdict) for r in made] == [
        ("2x16", "pass"),
        ("1x9", "drift"),
        ("3x16", "pass"),
    ]
    assert "It depends on the shape: pass at 2x16, 3x16; drift at 1x9." in " ".join(made[1].notes)
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
    assert [r.probe.shape for r in made] == ["2x3x16x16", "1x3x16x16", "3x3x16x16"]
    assert {r.verdict for r in made} == {"pass"}


def test_lengths_beyond_the_positions_of_a_model_are_cut() -> None:
    made = driftwalk.verify_all(gpt2(), ["emulated:bf16"], shapes="auto")
    lengths = [int(r.probe.shape.split("x")[1]) for r in made]
    assert lengths[:-1] == [16, 1, 7, 8, 9, 31, 32, 33]
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
    assert "emulated:bf16 at 1x4" in ran.output
    assert "PASS: 2 runs: 2 pass." in ran.output
    folders = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert folders == ["01-emulated-bf16-1x4", "02-emulated-bf16-3x5"]
    assert "emulated:bf16 at 3x5" in (out / "index.html").read_text()
    stored = json.loads((out / folders[1] / "result.json").read_text())
    assert stored["probe"]["inputs"]["input_ids"]["shape"] == [3, 5]
