"""Traces from other machines: each gives a verdict here, and says in what the machines differ.

They were recorded on aarch64 and on an H200 (tests/benchmarks/cross_machine.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.cross_machine import files, known, recorded
from driftwalk import Signature, State, Trace, compare

MACHINES = {"aarch64": "torch", "h200-fp16": "torch:cuda:fp16", "h200-fp32": "torch:cuda:fp32"}
TRACE, SIGNATURE = files("aarch64")


@pytest.fixture(scope="module")
def here() -> Trace:
    return recorded("torch")


def test_there_is_a_trace_of_each():
    assert known() == sorted(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_a_committed_trace_holds_on_this_machine(name, here):
    golden = Trace.load(files(name)[0])
    assert golden.backend.spec == MACHINES[name]
    assert golden.model["fingerprint"] == here.model["fingerprint"]
    report = compare(golden, here, "dtype")
    assert report.verdict == "pass"
    assert len(report.layers) == 6


@pytest.mark.parametrize("name", ["aarch64", "h200-fp32"])
def test_a_committed_signature_holds_on_this_machine(name, here):
    golden = Signature.load(files(name)[1])
    assert compare(golden, here, "l2:1e-5").verdict == "pass"
    assert compare(golden, here, "dtype").verdict != "drift"


def test_a_signature_in_half_precision_is_as_far_off_as_half_precision_is(here):
    golden = Signature.load(files("h200-fp16")[1])
    assert compare(golden, here, "l2:1e-5").verdict == "drift"
    assert compare(golden, here, "l2:1e-2").verdict == "pass"
    assert compare(golden, here, "dtype").verdict == "unverified"


def test_the_difference_of_the_machines_is_told(here):
    versions = {**here.backend.versions, "torch": "9.9"}
    other = replace(
        here,
        environment={**here.environment, "machine": "riscv64"},
        backend=replace(here.backend, versions=versions),
    )
    for golden in (Trace.load(TRACE), Signature.load(SIGNATURE)):
        (told,) = [n for n in compare(golden, other, "dtype").notes if n.startswith("Recorded on")]
        assert "machine aarch64 and riscv64" in told
        assert "and 9.9" in told


def test_a_fault_is_found_from_afar(here):
    at = here.names.index("layer.1")
    array = here["layer.1"] + np.float32(0.01) * (np.arange(32) == 7)
    states = (*here.states[:at], State(here.states[at].point, array), *here.states[at + 1 :])
    bad = replace(here, states=states)
    for golden in (Trace.load(TRACE), Signature.load(SIGNATURE)):
        report = compare(golden, bad, "dtype")
        assert report.verdict == "drift"
        assert report.first_divergence.point.name == "layer.1"
