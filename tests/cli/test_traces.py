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
    ],
)
def test_mistakes_are_named(traces, tmp_path, arguments, message):
    (tmp_path / "thesis.txt").touch()
    places = {"fp32": str(traces / "fp32"), "here": str(tmp_path)}
    done = driftwalk(*(word.format(**places) for word in arguments))
    assert done.code == 2
    assert message in done.err
