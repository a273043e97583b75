"""Plain torch modules of any shape: walked, and a fault is placed in the module that has it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

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


def test_a_folded_norm_is_another_implementation() -> None:
    """A convolution and its norm are one unit: what folds them gives the same there."""
    folded = torch_nets.build("u-net")
    for part in folded.modules():
        for conv, norm in ("01", "34") if isinstance(part, nn.Sequential) else ():
            part[int(conv)] = fuse_conv_bn_eval(part[int(conv)], part[int(norm)])
            part[int(norm)] = nn.Identity()
    report = verify("u-net", folded)
    assert report.verdict == "pass", report.reason
    assert report.coverage.compared == 8


@pytest.mark.usefixtures("quantised_engine")
@pytest.mark.filterwarnings("ignore")
def test_parts_are_the_same_by_their_paths() -> None:
    """A quantised LSTM has no parameters any more, and is a part all the same."""
    model = torch_nets.build("lstm")
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM})
    report = verify("lstm", quantised)
    assert [(row.point.name, row.point.module) for row in report.layers[:2]] == [
        ("layer.0", "table"),
        ("layer.1", "lstm"),
    ]
    assert not report.coverage.missing


# The small resnet is exported alike, in a fifth of the time.
@pytest.mark.parametrize("name", [name for name in torch_nets.NETS if name != "resnet-50"])
def test_onnxruntime_passes(name: str) -> None:
    assert verify(name, "onnxruntime").verdict == "pass"
