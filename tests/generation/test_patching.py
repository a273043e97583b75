"""`--patch`: which layer's drift parts the two sides, by restoring one after the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
from driftwalk.effects import Patch, Patching
from driftwalk_reports.generation import look, render_markdown
from generation.reported import PROMPT, before_each_step, decoder, outcome


def scaled_values(model: nn.Module) -> nn.Module:
    """In each step from the second on, what layer 1 holds as values is scaled."""

    def change(named, step):
        if step >= 2:
            named["past_key_values"].layers[1].values.mul_(-8)

    return before_each_step(model, change)


def wrong_block(model: nn.Module) -> nn.Module:
    made = decoder()
    made.load_state_dict(model.state_dict())
    with torch.no_grad():
        made.transformer.h[1].mlp.c_proj.weight.mul_(-1)
    return made


def generated(port: nn.Module, **options):
    return driftwalk.generate(decoder(), port, prompt=PROMPT, steps=5, **options)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [(scaled_values, "cache"), (wrong_block, "backend")],
    ids=["cache", "backend"],
)
def test_the_layer_whose_drift_parts_the_sides_is_found(fault, cause):
    report = generated(fault(decoder()), patch=True)
    assert report.cause == cause
    assert report.parted is not None
    assert not report.parted.tie
    curve = report.parted.patching
    assert curve is not None
    assert (curve.positions, curve.flips) == (1, 1)
    assert [patch.point for patch in curve.patches] == [
        *("embed", "layer.0", "layer.1", "layer.2", "norm")
    ]
    assert [patch.flips for patch in curve.patches] == [1, 1, 0, 0, 0]
    assert curve.stops_at == "layer.1"
    said = "It is the drift of layer.1: with the reference's states there, the candidate chooses"
    assert said in look(report).sentences[-1]
    assert said in render_markdown(report)


def test_nothing_is_patched_unasked_or_where_nothing_parts():
    assert generated(wrong_block(decoder())).parted.patching is None
    clean = driftwalk.generate(decoder(), "torch", prompt=PROMPT, steps=2, patch=True)
    assert clean.parted is None


def test_a_tie_is_not_patched():
    """Two tokens whose logits honest arithmetic cannot tell apart."""
    model = decoder()
    with torch.no_grad():
        head = model.lm_head.weight
        best = int(model(torch.tensor(PROMPT["input_ids"])).logits[0, -1].argmax())
        head[(best + 1) % 32] = head[best] * (1 - 1e-9)
    port = decoder()
    port.load_state_dict(model.state_dict())

    def tip(_, args, output):
        output.logits[..., (best + 1) % 32] += 1e-6

    port.register_forward_hook(tip)
    report = driftwalk.generate(model, port, prompt=PROMPT, steps=1, patch=True)
    assert report.parted is not None
    assert report.parted.tie
    assert report.parted.patching is None


def test_what_takes_no_states_costs_a_note(tmp_path: Path):
    made = driftwalk.record(decoder(), probe=PROMPT, steps=5)
    port = driftwalk.record(decoder(), wrong_block(decoder()), like=made)
    folder = replace(port, model={}).save(tmp_path / "port")
    report = driftwalk.generate(decoder(), f"trace:{folder}", patch=True)
    assert report.parted is not None
    assert report.parted.patching is None
    assert any(note.startswith("Patching was not possible: trace:") for note in report.notes)


def test_a_curve_without_an_end_says_so():
    report = outcome("shared")
    assert report.parted is not None
    never = Patching(1, 1, (Patch("embed", 1), Patch("layer.0", 1)))
    told = look(replace(report, parted=replace(report.parted, patching=never)))
    assert told.sentences[-1].endswith("No restored layer brings the reference's choice back.")


def test_both_sides_tokens_and_the_whole_sequence_are_told():
    report = generated(wrong_block(decoder()))
    assert len(report.ids) == 1
    assert report.ids[0][: report.prompt] == tuple(PROMPT["input_ids"][0])
    assert report.ids[0][report.prompt :] == tuple(step.token for step in report.steps[:-1])
    assert report.steps[report.parted.step].theirs == (report.parted.tokens[1],)
    flips = [int(np.count_nonzero(np.array(s.tokens) != s.theirs)) for s in report.steps]
    assert flips == [step.flips for step in report.steps]
    assert any(flips)
    text = render_markdown(report)
    assert f"`{report.steps[report.parted.step].their_texts[0]}`" in text
    assert " | ".join(" ".join(map(str, p)) for p in (report.ids[0][:6], report.ids[0][6:])) in (
        text.replace("\\|", "|")
    )
