"""Nothing that the gate trusts goes unchecked: the reference is judged as the candidate is."""

from __future__ import annotations

import copy

import pytest
import torch

import driftwalk
import zoo
from driftwalk_backends.sources import open_model


def zeroed_mlp(module: torch.nn.Module, layer: int = 1) -> torch.nn.Module:
    port = copy.deepcopy(module)
    port.model.layers[layer].mlp.down_proj.weight.data.zero_()
    return port


@pytest.fixture(scope="module")
def llama() -> torch.nn.Module:
    return zoo.build("llama")


def test_a_wrong_reference_does_not_pass(llama):
    report = driftwalk.verify(llama, reference=zeroed_mlp(llama), candidate="torch")
    assert report.verdict == "drift"
    assert report.at_fault == "reference"
    assert report.first_divergence.point.name == report.root_cause.point.name == "layer.1"
    assert "mlp" in report.culprit.module
    row = report.layer("layer.1")
    assert row.sides["reference"].needed > 1 >= row.sides["candidate"].needed
    assert row.tolerance.side == "reference"


def test_a_wrong_candidate_is_at_fault(llama):
    report = driftwalk.verify(llama, candidate=zeroed_mlp(llama))
    assert (report.verdict, report.at_fault, report.cause) == ("drift", "candidate", "layer.1")


def test_both_wrong_in_the_same_way_agree_and_do_not_pass(llama):
    wrong = zeroed_mlp(llama)
    report = driftwalk.verify(llama, reference=wrong, candidate=copy.deepcopy(wrong))
    assert report.layer("layer.1").metrics.max_abs == 0
    assert (report.verdict, report.at_fault, report.cause) == ("drift", "both", "layer.1")


def test_a_golden_trace_from_before_a_change_of_the_code_does_not_pass(llama, tmp_path):
    with driftwalk.backend("torch", zeroed_mlp(llama, 2)) as before:
        from driftwalk_backends.probes import make_probe

        before.trace(make_probe(open_model(llama))).save(tmp_path / "golden.trace")
    golden = f"trace:{tmp_path / 'golden.trace'}"
    report = driftwalk.verify(llama, reference=golden, candidate="torch")
    assert (report.verdict, report.at_fault, report.cause) == ("drift", "reference", "layer.2")


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_an_honest_reference_of_any_dtype_passes(llama, dtype):
    report = driftwalk.verify(llama, reference=f"torch:cpu:{dtype}", candidate="torch:cpu:fp32")
    assert report.ok
    assert report.at_fault is None


def test_a_small_fault_of_the_reference_is_not_put_on_the_candidate():
    """One weight: far below the noise of all layers, and seen only from block to block."""
    module = zoo.build("gpt2")
    port = copy.deepcopy(module)
    port.transformer.h[2].mlp.c_proj.weight.data[3, 5] *= 1.001
    report = driftwalk.verify(module, reference=port, candidate="torch", batch=4, length=32)
    assert (report.verdict, report.at_fault, report.cause) == ("drift", "reference", "layer.2")


def test_at_fault_is_kept_in_the_result(llama, tmp_path):
    report = driftwalk.verify(llama, reference=zeroed_mlp(llama), candidate="torch")
    report.save(tmp_path)
    again = driftwalk.load(tmp_path / "result.json")
    assert again.at_fault == "reference"
    assert again.layer("layer.1").sides["reference"] == report.layer("layer.1").sides["reference"]
    assert "the reference" in (tmp_path / "summary.md").read_text()
