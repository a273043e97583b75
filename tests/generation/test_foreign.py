"""Sides that are no module of this process: recorded decodings, and programs that decode."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import decoders
import driftwalk
from driftwalk import Trace
from driftwalk.decoding import Decoding
from driftwalk.errors import BackendError, UsageError
from driftwalk.states import State

STEPS = 6


@cache
def model():
    return decoders.build("gpt2")


def given() -> dict[str, np.ndarray]:
    return decoders.prompt("gpt2", 2, 5)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    """What the model itself decodes."""
    folder = tmp_path_factory.mktemp("reference") / "reference.trace"
    return driftwalk.record(model(), "torch", given(), steps=STEPS).save(folder)


def recorded(folder: Path, like: Path, fault=None, steps: int | None = None) -> Path:
    """A port's trace of the same tokens."""
    port = decoders.broken(model(), fault or (lambda _: None))
    made = driftwalk.record(model(), port, like=Trace.load(like), steps=steps)
    return replace(made, model={}).save(folder)


def test_a_recorded_decoding_knows_its_steps_and_its_cache(reference):
    made = Trace.load(reference)
    assert made.decoding == Decoding((5,) + (1,) * STEPS)
    assert made.probe.inputs["input_ids"].shape == (2, 5 + STEPS)
    assert made["layer.2.key"].shape == (2, 5 + STEPS, 64)
    own = driftwalk.generate(model(), "torch", prompt=given(), steps=STEPS)
    fed = made.probe.inputs["input_ids"][:, 5:]
    assert fed.T.tolist() == [list(step.tokens) for step in own.steps[:-1]]


def test_a_trace_is_a_candidate_and_brings_prompt_and_steps(reference, tmp_path):
    port = recorded(tmp_path / "port", reference)
    report = driftwalk.generate(model(), f"trace:{port}")
    assert report.ok, report
    assert (report.prompt, len(report.steps)) == (5, STEPS + 1)
    assert list(report.cache_paths) == ["reference"]
    assert report.layer("layer.2.value").metrics is not None


@pytest.mark.parametrize("whole", [False, True])
def test_a_stale_slot_in_a_trace_is_placed(reference, tmp_path, whole):
    def stale(port):
        decoders.stale_slot(port, slot=7)

    port = recorded(tmp_path / "port", reference, stale)
    spec = f"trace:{port}"
    if whole:
        spec += f",whole={recorded(tmp_path / 'whole', reference, stale, steps=0)}"
    report = driftwalk.generate(model(), spec)
    assert report.cause == "cache"
    assert (report.root_cause.point.name, report.root_cause.slot) == ("layer.2", 7)
    assert report.root_cause.step == 4
    assert ("candidate" in report.cache_paths) is whole
    assert any("told by the prompt" in note for note in report.notes) is not whole


@pytest.mark.parametrize("whole", [False, True])
def test_a_wrong_weight_in_a_trace_is_the_backends(reference, tmp_path, whole):
    port = recorded(tmp_path / "port", reference, decoders.weight)
    spec = f"trace:{port}"
    if whole:
        spec += f",whole={recorded(tmp_path / 'whole', reference, decoders.weight, steps=0)}"
    report = driftwalk.generate(model(), spec)
    assert report.cause == "backend"
    assert report.root_cause.point.name == "layer.2"
    assert bool(report.whole) is whole


def test_a_trace_is_a_reference(reference):
    report = driftwalk.generate(model(), "emulated:bf16", reference=f"trace:{reference}")
    assert report.ok, report
    assert list(report.cache_paths) == ["candidate"]
    broken = decoders.broken(model(), lambda port: decoders.stale_slot(port, slot=7))
    report = driftwalk.generate(model(), broken, reference=f"trace:{reference}")
    assert (report.cause, report.at_fault) == ("cache", "candidate")
    assert report.root_cause.slot == 7


def test_other_tokens_are_refused_with_what_to_do(reference, tmp_path):
    made = Trace.load(reference)
    ids = made.probe.inputs["input_ids"].copy()
    ids[1, 7] += 1
    probe = replace(made.probe, inputs={"input_ids": ids})
    other = replace(made, probe=probe).save(tmp_path / "other")
    said = rf"token {ids[1, 7]} in step 3, not {ids[1, 7] - 1}\. .* --steps 6 -o reference.trace"
    with pytest.raises(UsageError, match=said):
        driftwalk.generate(model(), f"trace:{other}")


def test_what_was_recorded_otherwise_is_refused(reference, tmp_path):
    spec = f"trace:{reference}"
    with pytest.raises(UsageError, match=r"in steps of 5, then 6 x 1 tokens; this asks for 5, th"):
        driftwalk.generate(model(), spec, steps=3)
    ids = given()["input_ids"] + 1
    with pytest.raises(UsageError, match="recorded with another prompt"):
        driftwalk.generate(model(), "torch", spec, prompt={"input_ids": ids}, steps=STEPS)
    with pytest.raises(UsageError, match="recorded step by step"):
        driftwalk.verify(model(), spec)
    plain = driftwalk.record(model(), probe=given()).save(tmp_path / "plain")
    with pytest.raises(UsageError, match="has no steps: `driftwalk record MODEL --steps N`"):
        driftwalk.generate(model(), f"trace:{plain}")
    for options, said in (
        ({"steps": 0}, "at least one"),
        ({"steps": 2, "depth": "module"}, "leave the depth out"),
        ({"steps": 2, "like": Trace.load(reference)}, "brings prompt and steps"),
    ):
        with pytest.raises(UsageError, match=said):
            driftwalk.record(model(), **options)
    with pytest.raises(UsageError, match="it has no steps"):
        driftwalk.record(model(), "torch", like=Trace.load(plain))


def test_a_cache_that_is_not_shown_must_be_allowed_to_be_missing(reference, tmp_path):
    made = Trace.load(reference)
    states: tuple[State, ...] = tuple(
        state for state in made if not state.point.name.endswith((".key", ".value"))
    )
    spec = f"trace:{replace(made, states=states).save(tmp_path / 'bare')}"
    assert driftwalk.generate(model(), spec).verdict == "drift"
    allowed = driftwalk.generate(model(), spec, allow_missing=["*.key", "*.value"])
    assert allowed.ok, allowed


IGNORES = """
import json, pathlib, shutil, sys
shutil.copytree(sys.argv[1], sys.argv[3])
manifest = pathlib.Path(sys.argv[3]) / "manifest.json"
told = json.loads(manifest.read_text())
told.pop("decoding", None)
manifest.write_text(json.dumps(told | {"schema_version": 1}))
"""


def test_a_program_that_does_not_decode_is_no_pass(reference, tmp_path):
    """It gives the right states, of one run: nothing was decoded."""
    (tmp_path / "port.py").write_text(IGNORES)
    spec = f"command:{sys.executable} {tmp_path / 'port.py'} {reference}"
    with pytest.raises(BackendError, match=r"asked for steps of 5, then 6 x 1 tokens.*in one run"):
        driftwalk.generate(model(), spec, prompt=given(), steps=STEPS)
    with pytest.raises(UsageError, match="is fed tokens, and chooses none"):
        driftwalk.generate(model(), "torch", reference=spec, prompt=given(), steps=STEPS)
