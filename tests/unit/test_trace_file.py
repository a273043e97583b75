"""Traces on disk: nothing is lost, nothing damaged is believed, nothing outside is touched."""

from __future__ import annotations

import json

import numpy as np
import pytest

from driftwalk import DriftwalkError, Probe, Trace, compare
from driftwalk.dtypes import FORMATS
from driftwalk.states import BackendInfo, Point, State
from driftwalk.traces.tensor_file import read_tensors, write_tensors

DTYPES = [f.dtype for n, f in FORMATS.items() if n != "tf32"]


def trace(seed: int = 0, size: int = 8, dtype=np.float32, **told) -> Trace:
    rng = np.random.default_rng(seed)
    states = tuple(
        State(Point(name, f"model.{name}"), rng.standard_normal((2, 3, size)).astype(dtype))
        for name in ("embed", "layer.0", "logits")
    )
    probe = Probe({"input_ids": np.arange(6).reshape(2, 3)}, "a test", ("é\ud800",))
    info = BackendInfo("torch", "torch", "cpu", "fp32", {"torch": "2"}, {"tf32": "off"})
    return Trace(states, probe, info, {"logits": states[-1].array}, **told)


def same(a: Trace, b: Trace) -> bool:
    pairs = [(a[n], b[n]) for n in a.names] + [(a.outputs[n], b.outputs[n]) for n in a.outputs]
    return (a.names, a.probe.sha256, a.backend, a.model) == (
        b.names,
        b.probe.sha256,
        b.backend,
        b.model,
    ) and all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in pairs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_saved_is_loaded(tmp_path, dtype):
    made = trace(dtype=dtype, model={"label": "m", "fingerprint": "f"})
    loaded = Trace.load(made.save(tmp_path / "a.trace"))
    assert same(loaded, made)
    assert loaded.states[1].point.module == "model.layer.0"
    assert loaded.probe.origin == "a test"
    assert not loaded["embed"].flags.writeable
    assert compare(made, loaded, policy="dtype").verdict == "pass"


def test_the_same_trace_gives_the_same_bytes(tmp_path):
    files = [sorted((trace().save(tmp_path / name)).iterdir()) for name in ("a", "b")]
    assert [f.name for f in files[0]] == ["manifest.json", "states.safetensors"]
    assert [f.read_bytes() for f in files[0]] == [f.read_bytes() for f in files[1]]


def test_a_trace_is_replaced_whole_and_nothing_is_left_behind(tmp_path):
    for seed in range(4):
        trace(seed).save(tmp_path / "a")
        assert same(Trace.load(tmp_path / "a"), trace(seed))
        assert len(list((tmp_path / "a").iterdir())) == 2


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DriftwalkError, match="is no trace; nothing was written"):
        trace().save(tmp_path)
    with pytest.raises(DriftwalkError, match="is no trace; nothing was written"):
        trace().save(tmp_path / "thesis.txt")
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.txt"]


def test_safetensors_of_others_are_read_and_ours_by_others(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = {"a": np.arange(6, dtype=np.int64).reshape(2, 3), "b": np.ones(3, np.float16)}
    safetensors.save_file(arrays, tmp_path / "theirs", metadata={"who": "they"})
    write_tensors(tmp_path / "ours", arrays)
    for found in (read_tensors(tmp_path / "theirs"), safetensors.load_file(tmp_path / "ours")):
        assert {n: a.tolist() for n, a in found.items()} == {
            n: a.tolist() for n, a in arrays.items()
        }


def test_every_flipped_byte_and_every_cut_is_noticed(tmp_path):
    folder = trace(size=2).save(tmp_path / "a")
    for name in ("states.safetensors", "manifest.json"):
        file, whole = folder / name, (folder / name).read_bytes()
        at = range(0, len(whole), 7)
        for place in at:
            spoiled = bytearray(whole)
            spoiled[place] ^= 0x10
            for data in (bytes(spoiled), whole[:place]):
                file.write_bytes(data)
                try:
                    loaded = Trace.load(folder)
                except DriftwalkError:
                    continue
                # What can be changed unnoticed is what the manifest only tells, never a number.
                assert all(loaded[n].tobytes() == trace(size=2)[n].tobytes() for n in loaded.names)
                assert name == "manifest.json"
        file.write_bytes(whole)


def test_what_a_manifest_may_not_say(tmp_path):
    folder = trace().save(tmp_path / "a")
    (tmp_path / "outside.safetensors").write_bytes((folder / "states.safetensors").read_bytes())
    good = json.loads((folder / "manifest.json").read_text())
    (folder / "link.safetensors").symlink_to(tmp_path / "outside.safetensors")
    twice = [*good["points"], good["points"][0]]
    for change, message in [
        ({"file": "../outside.safetensors"}, "outside its folder"),
        ({"file": str(tmp_path / "outside.safetensors")}, "outside its folder"),
        ({"file": "link.safetensors"}, "outside its folder"),
        ({"file": ".."}, "outside its folder"),
        ({"schema_version": 3}, "version 3"),
        ({"points": []}, "lists no points"),
        ({"points": twice}, "one of them twice"),
        ({"points": [{"name": "other"}]}, "lacks 'other'"),
        ({"points": [{"name": "embed", "shape": [2, 3]}]}, "its manifest says"),
        ({"points": [{"name": "embed", "dtype": "fp16"}]}, "its manifest says fp16"),
        ({"points": [{"name": "embed", "sha256": "0" * 64}]}, "is damaged"),
        ({"points": [[[[]]]]}, "should be an object"),
        ({"probe": {"sha256": "0" * 64, "inputs": good["probe"]["inputs"]}}, "from a probe 0000"),
        ({"probe": {}}, "does not say what inputs"),
    ]:
        (folder / "manifest.json").write_text(json.dumps(good | change))
        with pytest.raises(DriftwalkError, match=message):
            Trace.load(folder)


def test_traces_of_other_inputs_or_weights_are_refused_with_the_difference(tmp_path):
    one, two = trace(model={"fingerprint": "a" * 64}), trace(model={"fingerprint": "b" * 64})
    with pytest.raises(DriftwalkError, match="different weights: a model aaaaaaaaaaaa and"):
        compare(one, two)
    other = Probe({"input_ids": np.arange(6).reshape(2, 3) + 1, "more": np.ones(2)})
    with pytest.raises(DriftwalkError, match="input_ids differs in 6 of 6 elements; more is only"):
        compare(one, Trace(one.states, other, one.backend))


def test_other_machines_are_named(tmp_path):
    one = trace(environment={"machine": "aarch64", "python": "3.11"})
    two = trace(environment={"machine": "x86_64", "python": "3.11"})
    (note,) = compare(one, two, policy="dtype").notes
    assert note == "Recorded on different machines: machine aarch64 and x86_64."
    assert compare(one, trace(), policy="dtype").notes == ()
