"""Restoring layer k takes away the flips of a fault in layer j where k >= j, and not before."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from driftwalk.effects import Patch, Patching
from driftwalk.errors import UsageError
from driftwalk.registry import create
from driftwalk.tasks.studies.effects import flipped, patching
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_eager import TorchEager


def curve(name: str, fault: int, dtype: torch.dtype = torch.float32) -> Patching:
    model: Any = zoo.build(name)
    broken = copy.deepcopy(model)
    blocks = broken.transformer.h if name == "gpt2" else broken.model.layers
    with torch.no_grad():
        for parameter in blocks[fault].mlp.parameters():
            parameter.mul_(-40)
    loaded = open_model(model)
    probe = make_probe(loaded, None, batch=2, length=12)
    reference = create("torch", loaded).trace(probe)
    return patching(reference, TorchEager.around(broken.to(dtype)), probe)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("fault", range(zoo.LAYERS))
def test_flips_go_from_the_fault_on(name: str, fault: int) -> None:
    found = curve(name, fault)
    assert [patch.point for patch in found.patches] == [
        "embed",
        *(f"layer.{i}" for i in range(zoo.LAYERS)),
        "norm",
    ]
    assert found.flips > 0
    for number, patch in enumerate(found.patches, start=-1):
        if number < fault:
            assert patch.flips > 0
            assert found.removed(patch) == 0
        else:
            assert patch.flips == 0
    assert found.stops_at == f"layer.{fault}"
    assert found.runs == 6


def test_padding_is_not_counted() -> None:
    loaded = open_model(zoo.build("gpt2"))
    probe = make_probe(loaded, None, batch=2, length=12)
    mask = probe.inputs["attention_mask"]
    assert not mask.all()
    reference = create("torch", loaded).trace(probe)
    found = patching(reference, create("torch", loaded), probe)
    assert found.positions == mask.sum()
    assert found.flips == 0
    assert found.runs == 1


def test_a_state_takes_the_candidates_dtype() -> None:
    found = curve("gpt2", 1, torch.float64)
    assert found.stops_at == "layer.1"


def test_what_cannot_be_run_from_a_state_says_so() -> None:
    loaded = open_model(zoo.build("gpt2"))
    probe = make_probe(loaded, None)
    reference = create("torch", loaded).trace(probe)
    with pytest.raises(UsageError, match="onnxruntime cannot be run from a state"):
        patching(reference, create("onnxruntime", loaded), probe)


def test_a_model_without_logits_has_no_decisions() -> None:
    loaded = open_model(zoo.build("gpt2").transformer)  # type: ignore[arg-type]
    probe = make_probe(loaded, None)
    backend = create("torch", loaded)
    with pytest.raises(UsageError, match="no logits"):
        patching(backend.trace(probe), backend, probe)


def test_nan_is_a_flip() -> None:
    model: Any = zoo.build("gpt2")
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.transformer.h[2].mlp.c_fc.weight[0, 0] = np.nan
    loaded = open_model(model)
    probe = make_probe(loaded, None)
    found = patching(create("torch", loaded).trace(probe), TorchEager.around(broken), probe)
    assert found.flips == found.positions
    assert found.stops_at == "layer.2"


def test_no_choice_is_not_the_first_choice() -> None:
    """The argmax of NaN is 0, and so may be the reference's."""
    reference = np.array([[[3.0, 1.0], [3.0, 1.0], [1.0, 3.0], [np.nan, 1.0]]])
    candidate = np.array([[[2.0, 1.0], [np.nan, 1.0], [3.0, 1.0], [1.0, 1.0]]])
    assert flipped(reference, candidate, None).tolist() == [False, True, True]
    keep = np.array([[1, 0, 1, 1]])
    assert flipped(reference, candidate, keep).tolist() == [False, True]


def test_where_it_stops() -> None:
    def stops(*flips: int) -> str | None:
        return Patching(9, 5, tuple(Patch(str(i), n) for i, n in enumerate(flips))).stops_at

    assert stops(5, 3, 0, 0) == "2"
    assert stops(5, 0, 1, 0) == "3"
    assert stops(5, 3, 1, 1) is None
    assert stops(0, 0) == "0"
    assert stops() is None
