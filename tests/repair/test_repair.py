"""`repair`: the part that costs most is found by measuring, and leaving it out reaches the goal."""

from __future__ import annotations

import copy
import json
import platform
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import driftwalk
import zoo
from driftwalk.cli.app import app
from driftwalk.tasks.repair.result import Repair
from driftwalk.tasks.repair.run import read_goal
from driftwalk.tasks.repair.words import lists_for

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
]


def with_outlier() -> nn.Module:
    """A tiny Llama, one of whose matrices has a number that makes all others coarse."""
    model = zoo.build("llama", 0)
    with torch.no_grad():
        model.model.layers[1].mlp.gate_proj.weight[3, 5] = 60.0
    return model


def int8(model: nn.Module) -> nn.Module:
    if platform.machine() not in ("x86_64", "AMD64"):
        torch.backends.quantized.engine = "qnnpack"
    made: nn.Module = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
    return made


@pytest.fixture(scope="module")
def found() -> Repair:
    model = with_outlier()
    return driftwalk.repair(model, int8(model), "snr=32")


def test_the_layer_with_an_outlier_is_ranked_first_and_enough(found: Repair) -> None:
    first = min(found.parts, key=lambda part: part.rank)
    assert first.name == "model.layers.1"
    assert found.chosen == ("model.layers.1",)
    assert found.reached
    assert found.before < 32 <= found.after
    assert found.steps[0].part == "model.layers.1"
    assert found.more == first.bytes > 0
    assert "model.layers.1.mlp.gate_proj" in found.modules


def test_the_candidate_without_it_passes_with_the_goal_as_its_limit(found: Repair) -> None:
    assert found.verdict == "pass"
    assert found.ok
    assert found.exit_code == 0
    assert all("model.layers.1.mlp.gate_proj" in text for text in found.lists.values())
    assert set(found.lists) == {"torchao", "transformers"}


def test_by_module_that_matrix_and_what_it_feeds_are_enough() -> None:
    """The inputs of `down_proj` are coarse, too: they have the outlier's result among them."""
    model = with_outlier()
    made = int8(model)
    # Engines of x86 round inputs to 7 bits, which costs 6 dB more.
    bits = 8 if torch.backends.quantized.engine == "qnnpack" else 7
    found = driftwalk.repair(model, made, f"snr={32 - 6 * (8 - bits)}", by="module")
    assert "model.layers.1.mlp.gate_proj" in found.modules
    assert set(found.modules) <= {f"model.layers.1.mlp.{name}_proj" for name in ("gate", "down")}


def test_what_is_good_enough_needs_no_repair() -> None:
    model = zoo.build("llama", 0)
    found = driftwalk.repair(model, int8(model), "kl=1")
    assert found.chosen == ()
    assert found.reached
    assert found.verdict is None
    assert found.runs == 1 + len(found.parts)


def test_a_graph_is_made_anew_without_its_nodes_and_passes() -> None:
    """The table and the head above it are one tensor, and one part."""
    spec = "onnxruntime,quantize=dynamic-int8"
    worst = driftwalk.verify("demo:decoder", spec).format
    assert worst is not None
    assert worst.decisions is not None
    found = driftwalk.repair("demo:decoder", spec, f"kl={worst.decisions.kl_mean / 2}")
    assert found.verdict == "pass"
    assert "exclude=" in found.remade
    (text,) = found.lists.values()
    assert text.startswith("nodes_to_exclude=[")
    shared = [part for part in found.parts if "lm_head" in part.modules]
    assert [sorted(part.modules) for part in shared] == [["lm_head", "transformer.wte"]]


@pytest.mark.parametrize(
    ("text", "why"), [("kl", "kl=X"), ("kl=-1", "kl=X"), ("snr=nan", "kl=X"), ("l2=3", "kl=X")]
)
def test_a_goal_that_means_nothing_is_refused(text: str, why: str) -> None:
    with pytest.raises(driftwalk.DriftwalkError, match=why):
        read_goal(text)


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        (["-c", "torch:cpu:bf16"], 3, "declares no format"),
        (["-c", "onnxruntime,quantize=dynamic-int8", "--goal", "x=1"], 2, "expected kl=X"),
        (["-c", "onnxruntime,quantize=dynamic-int8", "--by", "word"], 2, "by block or by module"),
        (["-c", "onnxruntime,exclude=a"], 2, "exclude= is for quantize="),
        (["-c", "onnxruntime,quantize=dynamic-int8,exclude=a"], 2, "has no such node"),
    ],
)
def test_bad_input_has_a_message_and_an_exit_code(given: list[str], code: int, why: str) -> None:
    result = CliRunner().invoke(app, ["repair", "demo:decoder", *given])
    assert result.exit_code == code, result.output
    assert why in " ".join(result.output.split())


def test_a_model_without_logits_has_no_kl_divergence() -> None:
    from driftwalk_backends.sources import open_model

    model = open_model(zoo.build("llama", 0).model)
    with pytest.raises(driftwalk.DriftwalkError, match="ask for an SNR instead"):
        driftwalk.repair(model, int8(model.module), "kl=1")


def test_the_command_prints_and_writes_what_was_found(tmp_path: Path) -> None:
    given = ["-c", "onnxruntime,quantize=dynamic-int8", "--goal", "snr=200", "-o", str(tmp_path)]
    result = CliRunner().invoke(app, ["repair", "cli.factories:Tiny", *given])
    assert "Result:" in result.output
    assert result.exit_code == 0, "with nothing rounded any goal is reached"
    stored = json.loads((tmp_path / "repair.json").read_text("utf-8"))
    assert stored["kind"] == "repair"
    assert driftwalk.load(tmp_path / "repair.json").goal.limit == 200
    assert {"repair.html", "repair.md"} <= {file.name for file in tmp_path.iterdir()}
    assert len(stored["chosen"]) == len(stored["parts"])


def test_lists_are_in_the_words_of_their_tools() -> None:
    sources = {"a.b": "node_1", "c": "node_2"}
    assert lists_for("onnxruntime", ["a.b", "c"], sources) == {
        "onnxruntime.quantization": 'nodes_to_exclude=["node_1", "node_2"]'
    }
    assert lists_for("llamacpp", ["a.b"], {"a.b": "blk.0.ffn_up.weight"}) == {
        "llama-quantize": "--tensor-type blk.0.ffn_up.weight=f16"
    }
    assert lists_for("torch", [], {}) == {}
