"""A trace from another machine: it gives a verdict here, and says in what the machines differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.cross_machine import SIGNATURE, TRACE, recorded
from driftwalk import Signature, State, Trace, compare


@pytest.fixture(scope="module")
def here() -> Trace:
    return recorded("torch")


def test_the_weights_are_the_same_everywhere(here):
    assert here.model["fingerprint"] == Trace.load(TRACE).model["fingerprint"]


def test_the_committed_trace_holds_on_this_machine(here):
    report = compare(Trace.load(TRACE), here, "dtype")
    assert report.verdict == "pass"
    assert len(report.layers) == 6


def test_the_committed_signature_holds_on_this_machine(here):
    assert compare(Signature.load(SIGNATURE), here, "l2:1e-5").verdict == "pass"
    assert compare(Signature.load(SIGNATURE), here, "dtype").verdict != "drift"


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
