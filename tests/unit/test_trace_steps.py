"""Traces of decoding: stored whole or step by step, and refused where the steps cannot be."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftwalk import DriftwalkError, Trace
from driftwalk.decoding import Decoding
from driftwalk.traces.tensor_file import read_tensors, write_tensors
from unit.test_trace_file import same, trace
from unit.test_trace_fuzz import fuzz, only_inside, spoiled

PLAN = Decoding((1, 2), "static")


def by_step(folder, points=("embed", "layer.0", "logits")) -> None:
    """Have the file of a stored trace hold its states once for each step."""
    file = folder / "states.safetensors"
    tensors = {name: np.array(array) for name, array in read_tensors(file).items()}
    for name in points:
        whole = tensors.pop(name)
        for step, (start, end) in enumerate(PLAN.steps(3)):
            tensors[f"step.{step}:{name}"] = whole[:, start:end]
    write_tensors(file, tensors)


def changed(folder, **change) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


def test_steps_are_stored_with_the_trace(tmp_path):
    made = trace(decoding=PLAN)
    folder = made.save(tmp_path / "a")
    loaded = Trace.load(folder)
    assert same(loaded, made)
    assert loaded.decoding == PLAN
    assert json.loads((folder / "manifest.json").read_text())["schema_version"] == 2


def test_a_trace_of_one_run_is_written_as_before(tmp_path):
    told = json.loads((trace().save(tmp_path / "a") / "manifest.json").read_text())
    assert told["schema_version"] == 1
    assert "decoding" not in told


def test_states_of_single_steps_are_joined_and_their_hashes_hold(tmp_path):
    made = trace(decoding=PLAN)
    folder = made.save(tmp_path / "a")
    by_step(folder, ("embed", "layer.0"))
    assert same(Trace.load(folder), made)
    tensors = {n: np.array(a) for n, a in read_tensors(folder / "states.safetensors").items()}
    tensors["step.1:layer.0"][0, 0, 0] += 1
    write_tensors(folder / "states.safetensors", tensors)
    with pytest.raises(DriftwalkError, match=r"is damaged: 'layer\.0'"):
        Trace.load(folder)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"chunks": [1, 2, 0]}, "steps of no tokens"),
        ({"chunks": [4, -1]}, "steps of no tokens"),
        ({"chunks": []}, "steps of no tokens"),
        ({"chunks": [2, 1]}, "'embed' of step 0 as fp32.2, 1, 8.; a step of 2 tokens"),
        ({"chunks": [1, 1, 1]}, "of step 1 as fp32.2, 2, 8.; a step of 1 tokens"),
        ({"chunks": "12"}, "should be a list"),
        ({"chunks": [1, 2], "cache": 3}, "should be str"),
        ([], "should be an object"),
    ],
)
def test_steps_that_cannot_be_are_refused(tmp_path, plan, message):
    folder = trace(decoding=PLAN).save(tmp_path / "a")
    by_step(folder)
    changed(folder, decoding=plan)
    with pytest.raises(DriftwalkError, match=message):
        Trace.load(folder)


def test_steps_of_another_sequence_are_refused(tmp_path):
    folder = trace(decoding=PLAN).save(tmp_path / "a")
    changed(folder, decoding={"chunks": [1, 1]})
    with pytest.raises(DriftwalkError, match="2 tokens together, and 3 tokens as input"):
        Trace.load(folder)


def test_a_lacking_step_is_named(tmp_path):
    folder = trace(decoding=PLAN).save(tmp_path / "a")
    by_step(folder)
    changed(folder, decoding={"chunks": [1, 2, 3]})
    with pytest.raises(DriftwalkError, match="'embed' of step 0, and not of step 2"):
        Trace.load(folder)


def test_many_steps_in_the_same_bytes_take_no_memory(tmp_path):
    """A small file whose steps all lie at one place would be large once they are joined."""
    folder = trace(decoding=Decoding((1, 1, 1))).save(tmp_path / "a")
    file = folder / "states.safetensors"
    tensors = {name: np.array(array) for name, array in read_tensors(file).items()}
    whole = tensors.pop("embed")
    write_tensors(file, tensors | {"step.0:embed": np.repeat(whole[:, :1], 40, 2)})
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header |= {f"step.{n}:embed": header["step.0:embed"] for n in (1, 2)}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    changed(folder, points=[{"name": "embed"}])
    with pytest.raises(DriftwalkError, match="several steps in the same bytes"):
        Trace.load(folder)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = trace(size=2, decoding=PLAN).save(tmp_path_factory.mktemp("stored") / "a")
    by_step(folder)
    return folder


@fuzz
@given(data=st.data())
def test_no_manifest_of_steps_does_harm(tmp_path, stored, data):
    told = json.loads((stored / "manifest.json").read_text("utf-8"))
    told["decoding"] = spoiled(told["decoding"], data)
    states = (stored / "states.safetensors").read_bytes()
    (tmp_path / "states.safetensors").write_bytes(states)
    (tmp_path / "manifest.json").write_text(json.dumps(told), "utf-8")
    with only_inside(tmp_path), contextlib.suppress(DriftwalkError):
        assert same(Trace.load(tmp_path), trace(size=2, decoding=PLAN))
