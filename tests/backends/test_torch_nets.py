"""Plain torch modules of any shape: walked, and a fault is placed in the module that has it."""

from __future__ import annotations

import copy

import pytest
import torch

import driftwalk
import torch_nets


def verify(name: str, candidate: object) -> driftwalk.Report:
    return driftwalk.verify(
        torch_nets.build(name), candidate=candidate, probe=torch_nets.inputs(name)
    )


@pytest.mark.parametrize("name", torch_nets.NETS)
def test_a_copy_passes_and_half_precision_does(name: str) -> None:
    model, probe = torch_nets.build(name), torch_nets.inputs(name)
    reports = driftwalk.verify_all(
        model, candidates=[copy.deepcopy(model), "emulated:bf16"], probe=probe
    )
    assert [report.verdict for report in reports] == ["pass", "pass"]
    assert all(seen.bit_identical for seen in reports[0].observer.values())


@pytest.mark.parametrize("name", torch_nets.NETS)
def test_a_fault_is_placed_in_its_module(name: str) -> None:
    broken, fault = torch_nets.build(name), torch_nets.FAULTS[name]
    with torch.no_grad():
        dict(broken.named_parameters())[fault].mul_(1.05)
    report = verify(name, broken)
    assert report.verdict == "drift"
    cause = report.root_cause
    assert cause is not None
    assert fault.startswith(f"{cause.point.module}.")


@pytest.mark.parametrize("name", torch_nets.NETS)
def test_onnxruntime_passes(name: str) -> None:
    assert verify(name, "onnxruntime").verdict == "pass"
