"""Faults that show only in decoding: caught, their cause told, layer, step and slot named."""

from __future__ import annotations

import pytest

import decoders
import driftwalk

STEPS = 14
CACHED = ("gpt2", *decoders.ROTARY)


def generated(name, fault, given=None):
    model = decoders.build(name)
    given = decoders.prompt(name) if given is None else given
    return driftwalk.generate(
        model, candidate=decoders.broken(model, fault), prompt=given, steps=STEPS
    )


@pytest.mark.parametrize("name", CACHED)
def test_a_position_that_is_off_by_one(name):
    report = generated(name, decoders.position_off_by_one)
    assert report.verdict == "drift"
    assert report.cause == "shared"
    assert report.root_cause.step == 1
    assert report.first_divergence.step == 1
    assert "rotary" in report.explanation or "positions" in report.explanation


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "t5", "whisper"])
def test_a_stale_slot(name):
    behind_encoder = name in ("t5", "whisper")
    slot, tokens = (6, 2) if behind_encoder else (12, 8)
    report = generated(name, lambda port: decoders.stale_slot(port, slot=slot))
    prefix = "decoder." if behind_encoder else ""
    assert report.cause == "cache"
    assert report.root_cause.slot == slot
    assert report.root_cause.point.name == f"{prefix}layer.2"
    assert report.first_divergence.step == slot - tokens + 1
    assert report.first_divergence.point.name == f"{prefix}layer.2.key"
    assert f"slot {slot}" in report.explanation


@pytest.mark.parametrize("name", decoders.WINDOWED)
def test_a_stale_slot_that_has_left_the_window_since(name):
    report = generated(name, decoders.stale_slot)
    assert report.cause == "cache"
    assert report.root_cause.point.name == "layer.2"
    assert report.root_cause.step == 6


@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize(
    ("fault", "layer"),
    [(decoders.neighbours_cache, 2), (decoders.wrong_scale, 1)],
    ids=["neighbours_cache", "wrong_scale"],
)
def test_a_layers_cache_that_is_wrong_from_the_prompt_on(name, fault, layer):
    report = generated(name, fault)
    assert report.cause == "cache"
    assert report.root_cause.point.name == f"layer.{layer}"
    assert report.root_cause.step == 1
    assert f"layer.{layer}: what its cache holds as value" in report.explanation


@pytest.mark.parametrize("name", decoders.ROTARY)
def test_keys_that_are_kept_before_their_rotation(name):
    report = generated(name, decoders.keys_before_rotary)
    assert report.cause == "cache"
    assert report.root_cause.point.name == "layer.2"
    assert "as key" in report.explanation


@pytest.mark.parametrize("name", decoders.WINDOWED)
def test_a_window_whose_boundary_is_off_by_one(name):
    report = generated(name, decoders.window_off_by_one)
    assert report.cause == "cache"
    assert report.root_cause.point.name == "layer.2"


@pytest.mark.parametrize("name", CACHED)
def test_a_mask_that_ignores_padding(name):
    report = generated(name, decoders.mask_ignores_padding, decoders.padded(name))
    assert report.cause == "shared"
    assert report.root_cause.point.name == "shared.mask"
    assert report.root_cause.step == 1
    assert report.explanation.startswith("shared.mask, which all layers are handed: wrong from")


@pytest.mark.parametrize("name", decoders.ROTARY)
def test_an_offset_taken_from_the_padded_length(name):
    report = generated(name, decoders.offset_of_padded_length, decoders.padded(name))
    assert report.cause == "shared"
    assert report.root_cause.step == 1


def test_a_state_of_mamba_that_is_not_updated():
    report = generated("mamba", decoders.stale_state)
    assert report.cause == "cache"
    assert report.root_cause.point.name == "layer.2"
    assert report.root_cause.step == 6


@pytest.mark.parametrize("name", decoders.MAKERS)
def test_a_weight_is_the_backends_fault(name):
    report = generated(name, decoders.weight)
    assert report.cause == "backend"
    assert report.root_cause.point.name.endswith("layer.2")
    assert report.root_cause.step == 0


@pytest.mark.parametrize(
    "policy", ["dtype", driftwalk.Tolerance(1e-6, 1e-6), {"layer.*": driftwalk.Tolerance(1e-6)}]
)
def test_a_tolerance_places_the_step_as_well(policy):
    """Without the truth's distances, each step is measured by the tolerance in use."""
    model = decoders.build("llama")
    port = decoders.broken(model, decoders.position_off_by_one)
    given = decoders.prompt("llama")
    report = driftwalk.generate(model, port, prompt=given, steps=3, policy=policy, blame=False)
    assert report.first_divergence.step == 1
    assert report.first_divergence.point.name == "layer.0"
    at_prompt, *after = (
        next(row for row in step.layers if row.point.name == "layer.0") for step in report.steps
    )
    assert (at_prompt.ok, at_prompt.tolerance.needed) == (True, 0)
    assert all(not row.ok and row.tolerance.needed > 1 for row in after)
