"""`record` and `compare`, and recorded traces as backends."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import driftwalk as library
from cli.program import invoke as driftwalk
from driftwalk_backends.demo import faulty_decoder

MODEL = "demo:decoder"


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    for name, backend in {"fp32": "torch", "bf16": "torch:cpu:bf16"}.items():
        done = driftwalk("record", MODEL, "-b", backend, "-o", str(folder / name))
        assert done.code == 0, done.err
        assert "(9 states, " in done.err
    return folder


def test_two_traces_are_compared(traces):
    done = driftwalk("compare", str(traces / "fp32"), str(traces / "bf16"))
    assert done.code == 0
    assert "PASS: all 9 points agree" in done.out
    tight = driftwalk(
        "compare", str(traces / "fp32"), str(traces / "bf16"), "--policy", "fixed:1e-6", "--json"
    )
    assert tight.code == 1
    found = json.loads(tight.out)
    assert found["first_divergence"] == "embed"
    assert found["candidate"]["spec"] == "torch:cpu:bf16"
    assert found["model"]["label"] == MODEL


@pytest.mark.parametrize("side", ["--reference", "--candidate"])
def test_a_recorded_trace_is_a_backend_and_brings_its_probe(traces, side):
    done = driftwalk("verify", MODEL, side, f"trace:{traces / 'fp32'}", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    name = side.removeprefix("--")
    assert found[name]["flags"]["recorded by"] == "torch"
    assert found["observer"][name]["checked"] is False


def test_blame_needs_only_the_states_of_a_recording(tmp_path):
    made = library.record(faulty_decoder(layer=3), length=8)
    replace(made, model={}).save(tmp_path / "bad")  # as a port that knows of no fingerprints
    done = driftwalk("verify", MODEL, "--candidate", f"trace:{tmp_path / 'bad'}", "--json")
    assert done.code == 1, done.err
    assert json.loads(done.out)["root_cause"] == "layer.3"


@pytest.fixture(scope="module")
def signed(traces):
    done = driftwalk("record", MODEL, "--signature", "-o", str(traces / "a.signature.json"))
    assert done.code == 0, done.err
    assert "(9 states, " in done.err
    assert (traces / "a.signature.json").stat().st_size < 40_000
    return traces / "a.signature.json"


def test_a_signature_is_compared_on_either_side(traces, signed):
    same = driftwalk("compare", str(signed), str(traces / "fp32"))
    assert same.code == 0, same.err
    assert "agree exactly" in same.out
    assert "bounds, not measurements" in same.out
    other = driftwalk("compare", str(traces / "bf16"), str(signed), "--policy", "fixed:1e-6")
    assert other.code == 1
    assert "(bounds)" in other.out
    l2 = driftwalk("compare", str(signed), str(traces / "bf16"), "--policy", "l2:0.1", "--json")
    assert l2.code == 0
    assert json.loads(l2.out)["layers"][0]["bounds"]["exact"] is False


def test_traces_are_mapped(traces, tmp_path):
    stored = library.Trace.load(traces / "fp32")
    states = (replace(s, point=replace(s.point, name=f"my.{s.point.name}")) for s in stored)
    replace(stored, states=tuple(states)).save(tmp_path / "port")
    map_file = tmp_path / "map.toml"
    map_file.write_text('[points]\n"my.{a}" = "{a}"\n"my.layer.{i}" = "layer.{i}"\n')
    pair = (str(traces / "fp32"), str(tmp_path / "port"))
    assert driftwalk("compare", *pair, "--map", str(map_file)).code == 0
    assert driftwalk("compare", *pair).code in (1, 3)
    spec = f"trace:{tmp_path / 'port'},map={map_file}"
    assert driftwalk("verify", MODEL, "-c", spec, "--no-blame").code == 0
    map_file.write_text('[points]\n"my.{a}" = "{a}"\n')
    wrong = driftwalk("compare", *pair, "--map", str(map_file))
    assert wrong.code == 2
    assert "no line matches the state 'my.layer.0'" in wrong.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "nowhere", "nowhere"], "'nowhere' is no trace"),
        (["verify", MODEL, "-c", "trace:nowhere"], "'nowhere' is no trace"),
        (["verify", MODEL, "-c", "trace:"], "needs a folder: trace:golden.trace"),
        (["verify", "demo:encoder", "-c", "trace:{fp32}"], "recorded from other weights"),
        (["verify", MODEL, "-c", "trace:{fp32}", "--length", "4", "--ids", "1 2"], "another probe"),
        (["record", MODEL, "-o", "{here}"], "is no trace; nothing was written"),
        (["compare", "{fp32}", "{fp32}", "--policy", "fixed:x"], "write ATOL or ATOL,RTOL"),
        (["compare", "{fp32}", "{fp32}", "--policy", "l2:1"], "is for signatures"),
        (["compare", "{fp32}", "{here}/thesis.txt"], "is not JSON"),
        (["compare", "{fp32}", "{sig}", "--map", "x"], "the candidate is a signature"),
        (["verify", MODEL, "-r", "trace:{sig}"], "`driftwalk compare` takes one"),
        (["record", MODEL, "--signature", "-o", "{here}/thesis.txt"], "and is no signature"),
        (["record", MODEL, "--signature", "-o", "{here}"], "and is no signature"),
    ],
)
def test_mistakes_are_named(traces, signed, tmp_path, arguments, message):
    (tmp_path / "thesis.txt").touch()
    places = {"fp32": str(traces / "fp32"), "here": str(tmp_path), "sig": str(signed)}
    done = driftwalk(*(word.format(**places) for word in arguments))
    assert done.code == 2
    assert message in done.err
