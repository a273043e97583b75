"""What of a model a probe exercises: exact counts, and the proof that the rest is really unread."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from driftwalk.exercised import Touched
from driftwalk.states import Probe
from driftwalk_backends.calls import call, quietly
from driftwalk_backends.model_outputs import named_outputs
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from watched_models import MODELS, MOE, Odd, exercised, item_of, probe_of, watched


@pytest.mark.parametrize("name", MODELS)
def test_what_is_called_unread_may_be_nan(name: str) -> None:
    model = MODELS[name]()
    probe = probe_of(name, model)
    found = exercised(model, probe)
    touching, inputs, outputs = watched(model, probe)
    assert not touching.blind
    kept = total = 0
    for weight in touching.weights:
        total += weight.parameter.numel()
        unread = torch.from_numpy(~weight.used)
        rows = weight.parameter.data.view(len(unread), -1)
        rows[unread] = math.nan
        kept += int((~rows.isnan()).sum())
    with quietly(model):
        again = named_outputs(call(model, inputs))
    for key, output in outputs.items():
        assert torch.equal(output, again[key]), key
    assert found.weights == pytest.approx(kept / total, abs=0)


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "odd", *MOE])
def test_a_nan_in_a_weight_that_took_part_shows(name: str) -> None:
    """The other half: what is said to be used is not padded out with what is not."""
    model = MODELS[name]()
    probe = probe_of(name, model)
    touching, inputs, _ = watched(model, probe)
    tables = [w for w in touching.weights if 0 < w.used.sum() < len(w.used) and not w.whole]
    assert tables
    for weight in tables:
        for row in np.flatnonzero(weight.used)[[0, -1]]:
            before = weight.parameter.data[row].clone()
            weight.parameter.data[row] = math.nan
            with quietly(model):
                outputs = named_outputs(call(model, inputs))
            weight.parameter.data[row] = before
            spoilt = any(bool(output.isnan().any()) for output in outputs.values())
            assert spoilt, f"{weight.name}[{row}]"


def _ids(probe: Probe, name: str = "input_ids") -> np.ndarray:
    return probe.inputs[name]


def test_gpt2_counts_tokens_and_positions() -> None:
    model = zoo.build("gpt2")
    probe = Probe({"input_ids": np.array([[5, 6, 5, 7, 98]])})
    found = exercised(model, probe)
    words = item_of(found, "embedding rows")
    assert (words.where, words.used, words.of) == ("transformer.wte", 4, 99)
    assert words.shared, "the tied output layer reads every row"
    assert item_of(found, "positions") == Touched(
        "positions", "transformer.wpe", 5, 64, False, "a text of 64 tokens"
    )
    total = sum(p.numel() for p in model.parameters())
    assert found.weights == (total - 59 * zoo.WIDTH) / total


def test_an_untied_table_counts_by_its_rows() -> None:
    model = zoo.build("llama")
    probe = make_probe(open_model(model))
    found = exercised(model, probe)
    used = len(set(_ids(probe).flatten().tolist()))
    words = item_of(found, "embedding rows")
    assert (words.used, words.of, words.shared) == (used, 99, False)
    assert words.advice == "input_ids of the whole vocabulary (2 rows of 64)"
    total = sum(p.numel() for p in model.parameters())
    assert found.weights == (total - (99 - used) * zoo.WIDTH) / total
    assert item_of(found, "positions").used == _ids(probe).shape[1]


def test_the_advice_for_a_vocabulary_works() -> None:
    model = zoo.build("llama")
    ids = np.resize(np.arange(99), (2, 64))
    found = exercised(model, Probe({"input_ids": ids}))
    assert found.weights == 1
    assert item_of(found, "embedding rows").tried
    assert item_of(found, "positions").tried


def test_bert_counts_token_types() -> None:
    model = zoo.build("bert")
    ids = np.array([[5, 6, 7, 8]])
    one = item_of(exercised(model, Probe({"input_ids": ids})), "token types")
    assert (one.used, one.of) == (1, 2)
    assert one.advice == "token_type_ids of 0 to 1"
    both = Probe({"input_ids": ids, "token_type_ids": np.array([[0, 0, 1, 1]])})
    assert item_of(exercised(model, both), "token types").tried


def test_ids_that_count_are_still_no_positions() -> None:
    found = exercised(zoo.build("llama"), Probe({"input_ids": np.arange(9)[None]}))
    assert item_of(found, "embedding rows").used == 9


def test_roberta_counts_positions_behind_padding() -> None:
    probe = Probe(
        {
            "input_ids": np.array([[5, 6, 7, 8], [5, 6, 1, 1]]),
            "attention_mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]]),
        }
    )
    positions = item_of(exercised(zoo.build("roberta"), probe), "positions")
    assert positions.used == 5, "four from padding_idx + 1 on, and padding_idx itself"


@pytest.mark.parametrize("name", MOE)
def test_experts_are_those_that_the_router_chose(name: str) -> None:
    model = MODELS[name]()
    probe = probe_of(name, model)
    chosen: dict[str, set[int]] = {}
    width = 16

    def hook(path: str) -> Any:
        def look(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            logits = output[0] if isinstance(output, tuple) else output
            if name == "switch":
                picked = set(output[0].reshape(-1, width).nonzero()[:, 1].tolist())
            elif name == "deepseek_v3":
                picked = set(output[2].flatten().tolist())
            else:
                picked = set(logits.topk(1).indices.flatten().tolist())
            chosen[path.rpartition(".")[0]] = picked

        return look

    routers = [
        (path, part)
        for path, part in model.named_modules()
        if path.rpartition(".")[2] in ("gate", "router") and not isinstance(part, nn.Linear)
    ]
    handles = [p.register_forward_hook(hook(path), with_kwargs=True) for path, p in routers]
    found = exercised(model, probe)
    for handle in handles:
        handle.remove()
    experts: dict[str, int] = {}
    for item in found.of("experts"):
        assert item.of == 16
        experts[item.where.rpartition(".")[0]] = item.used
    assert experts
    assert any(used < 16 for used in experts.values()), "else nothing is shown"
    assert experts == {path: len(picked) for path, picked in chosen.items()}


def test_both_ways_to_run_experts_count_the_same() -> None:
    model = MODELS["mixtral16"]()
    probe = probe_of("mixtral16", model)
    found = {}
    for how in ("eager", "batched_mm", "grouped_mm"):
        model.set_experts_implementation(how)
        found[how] = exercised(model, probe)
    units = {how: [(one.where, one.units, one.low) for one in f.driven] for how, f in found.items()}
    assert units["eager"] == units["batched_mm"] == units["grouped_mm"]
    counted = [replace(one, driven=()) for one in found.values()]  # their inputs are rounded apart
    assert counted[0] == counted[1] == counted[2]


def test_a_plain_module_is_read_through_its_functions() -> None:
    found = exercised(Odd(), Probe({"ids": np.array([[3, 3, 1, 7, 9]])}))
    assert item_of(found, "embedding rows", "words").used == 4
    assert item_of(found, "positions", "places").used == 5
    assert [(i.where, i.used, i.of) for i in found.of("weight rows")] == [("bank", 2, 5)]
    assert item_of(found, "embedding rows", "scale").used == 3
    assert item_of(found, "experts").used == 2, "one by its module, one by its memory"
    assert [item.where for item in found.of("unused")] == ["adapter"]
    assert not found.of("padding")
    assert not found.of("cache")
    assert item_of(found, "batch").advice == "a second row"


MASKS = {
    "none": [[1, 1, 1, 1], [1, 1, 1, 1]],
    "right": [[1, 1, 1, 1], [1, 1, 0, 0]],
    "left": [[1, 1, 1, 1], [0, 0, 1, 1]],
    "left and right": [[1, 1, 1, 0], [0, 0, 1, 1]],
    "inner": [[1, 1, 1, 1], [1, 0, 1, 1]],
}


@pytest.mark.parametrize("sides", MASKS)
@pytest.mark.parametrize(("name", "causal"), [("llama", True), ("gpt2", True), ("bert", False)])
def test_padding_sides(sides: str, name: str, causal: bool) -> None:
    ids = np.array([[5, 6, 7, 8], [9, 10, 11, 12]])
    probe = Probe({"input_ids": ids, "attention_mask": np.array(MASKS[sides])})
    found = item_of(exercised(zoo.build(name), probe), "padding")
    assert found.where == sides
    assert found.tried == (sides != "none" and not (causal and sides == "right"))
    assert bool(found.advice) != found.tried
    assert ("left" in found.advice) == (causal and not found.tried)


def test_the_cache_is_named_where_there_is_one() -> None:
    for name in ("gpt2", "llama", "t5", "bart", "whisper"):
        model = zoo.build(name)
        assert not item_of(exercised(model, probe_of(name, model)), "cache").tried, name
    for name in ("bert", "vit", "modernbert", "distilbert"):
        model = zoo.build(name)
        assert not exercised(model, probe_of(name, model)).of("cache"), name


@pytest.mark.parametrize(
    ("name", "length", "tried"),
    [("gemma3", 8, False), ("gemma3", 9, True), ("modernbert", 5, False), ("modernbert", 6, True)],
)
def test_a_window_is_tried_by_a_probe_that_is_longer(name: str, length: int, tried: bool) -> None:
    model = zoo.build(name)
    ids = np.arange(3, 3 + length)[None]
    window = item_of(exercised(model, Probe({"input_ids": ids})), "window")
    assert window.tried == tried
    assert bool(window.advice) != tried
    # What is claimed: only beyond it does the window change anything.
    wide = zoo.build(name)
    for part in (wide, *wide.modules()):
        for setting in ("sliding_window", "local_attention"):
            if isinstance(getattr(part, setting, None), int):
                setattr(part, setting, 10_000)
    for setting in ("sliding_window", "local_attention"):
        if isinstance(getattr(wide.config, setting, None), int):
            setattr(wide.config, setting, 10_000)
    with torch.no_grad():
        same = torch.equal(model(torch.from_numpy(ids)).logits, wide(torch.from_numpy(ids)).logits)
    assert same != tried


def test_mistral_says_that_its_window_is_longer_than_the_probe() -> None:
    model = zoo.build("mistral")
    window = item_of(exercised(model, probe_of("mistral", model)), "window")
    assert (window.used, window.of, window.tried) == (16, 4096, False)


def test_t5_counts_both_halves() -> None:
    model = zoo.build("t5")
    probe = probe_of("t5", model)
    found = exercised(model, probe)
    ids = {int(i) for n in ("input_ids", "decoder_input_ids") for i in _ids(probe, n).flat}
    assert item_of(found, "embedding rows", "shared").used == len(ids)
    halves = [i.where.partition(".")[0] for i in found.items if "relative" in i.where]
    assert halves == ["encoder", "decoder"]


def test_vit_has_nothing_to_say_of_text() -> None:
    model = zoo.build("vit")
    found = exercised(model, probe_of("vit", model))
    assert found.weights == 1
    assert {item.what for item in found.items} == {"batch"}
