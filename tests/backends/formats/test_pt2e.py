"""Programs quantised by PT2E: what they round is read, and told from what their kernels add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import driftwalk
import exported_programs as programs
from benchmarks import pt2e_table as table

pytest.importorskip("torchao")

SMALL: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 128,
    "num_attention_heads": 4,
}
LAYER = {"Llama": "model.layers.1.mlp.down_proj", "BERT": "bert.encoder.layer.1.output.dense"}
IDS = torch.arange(40, 64).reshape(2, 12)
GIVEN = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
PROBE = {name: value.numpy() for name, value in GIVEN.items()}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2, use_cache=False))
    return {"Llama": llama.eval(), "BERT": BertForMaskedLM(BertConfig(**SMALL)).eval()}


@pytest.fixture(scope="module")
def made(models: dict[str, Any]) -> Callable[[str, str], fx.GraphModule]:
    kept: dict[tuple[str, str], fx.GraphModule] = {}

    def make(name: str, word: str) -> fx.GraphModule:
        if (name, word) not in kept:
            quantiser = table.QUANTISERS[word]()
            kept[name, word] = programs.quantised(models[name], GIVEN, quantiser)
        return programs.copied(kept[name, word])

    return make


def checked(model: Any, program: fx.GraphModule) -> driftwalk.Report:
    return driftwalk.verify(model, program, probe=PROBE)


@pytest.mark.parametrize(
    ("name", "word", "inputs", "block"),
    [
        ("BERT", "x86, static", "8 bits, a fixed step", "a row"),
        ("BERT", "matrix, dynamic", "8 bits, one step for all", "the whole matrix"),
        ("Llama", "x86, dynamic", "8 bits, one step for all", "a row"),
        ("Llama", "x86, static", "8 bits, a fixed step", "a row"),
    ],
)
def test_a_clean_program_passes_and_its_format_is_told(
    models: dict[str, Any],
    made: Callable[[str, str], fx.GraphModule],
    name: str,
    word: str,
    inputs: str,
    block: str,
) -> None:
    report = checked(models[name], made(name, word))
    assert report.verdict == "pass", report.notes
    found = report.format
    assert found is not None
    assert not found.wrong
    (stored,) = found.stored
    assert (stored.kind, stored.inputs, stored.block) == ("int8", inputs, block)
    assert stored.weights == {"BERT": 14, "Llama": 15}[name]
    for cost in found.layers.values():
        assert cost.kernel <= cost.format or cost.format == 0


@pytest.mark.parametrize("fault", table.FAULTS)
@pytest.mark.parametrize(("name", "word"), [("BERT", "x86, static"), ("Llama", "x86, dynamic")])
def test_a_fault_is_caught_and_placed(
    models: dict[str, Any],
    made: Callable[[str, str], fx.GraphModule],
    name: str,
    word: str,
    fault: str,
) -> None:
    wrong = made(name, word)
    change, part = table.FAULTS[fault]
    change(wrong, LAYER[name])
    report = checked(models[name], wrong)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert report.format is not None
    if part == "format":
        assert list(report.format.wrong) == [LAYER[name]]


def test_weights_that_are_rounded_while_it_runs_are_read_too(models: dict[str, Any]) -> None:
    program = programs.quantised(models["BERT"], GIVEN, programs.own(), fold=False)
    report = checked(models["BERT"], program)
    assert report.verdict == "pass"
    assert report.format is not None
    assert report.format.stored[0].weights == 14


def test_a_layer_that_was_left_in_float_is_named(models: dict[str, Any]) -> None:
    program = programs.quantised(models["BERT"], GIVEN, programs.own(leave=LAYER["BERT"]))
    report = checked(models["BERT"], program)
    assert report.verdict == "pass"
    assert report.format is not None
    assert report.format.in_float == (LAYER["BERT"],)


def test_a_program_exported_once_more_is_still_read(
    models: dict[str, Any], made: Callable[[str, str], fx.GraphModule]
) -> None:
    again = torch.export.export(made("BERT", "x86, static"), (), dict(GIVEN), strict=False)
    report = checked(models["BERT"], again)  # type: ignore[arg-type]
    assert report.verdict == "pass", report.notes
    assert report.format is not None
    assert report.format.stored[0].weights == 14


def test_repair_names_what_to_leave_in_float(
    models: dict[str, Any], made: Callable[[str, str], fx.GraphModule]
) -> None:
    with pytest.raises(driftwalk.DriftwalkError, match="no format whose weights could be put back"):
        driftwalk.repair(models["Llama"], made("Llama", "x86, static"), goal="kl=1e-9", probe=PROBE)
