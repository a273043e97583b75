"""Families of faults: each changes what some tiny subject gives, in copies of it too."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_nets
import zoo
from proving.case import FAMILIES, Done, NoPlace, Site
from proving.faults import arithmetic as faults_arithmetic
from proving.faults import attention as faults_attention
from proving.faults import heads as faults_heads
from proving.faults import images as faults_images
from proving.faults import lies as faults_lies
from proving.faults import outputs as faults_outputs
from proving.faults import porting as faults_porting
from proving.faults import several as faults_several
from proving.faults import weights as faults_weights
from proving.places import run
from proving.spots import LEAST, distance, floats, wide
from proving.subjects import own

FILES = (
    *(faults_arithmetic, faults_attention, faults_heads, faults_images, faults_lies),
    *(faults_outputs, faults_porting, faults_several, faults_weights),
)
NAMES = [
    name for name, one in FAMILIES.items() if one.apply.__module__ in {f.__name__ for f in FILES}
]
Inputs = Mapping[str, Any]


class Upsampling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 4, 3, padding=1)
        self.larger = nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.larger(self.inner(x))


def _scaled_logits() -> nn.Module:
    from transformers import CohereConfig, CohereForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": zoo.VOCABULARY}
    config = CohereConfig(**sizes, num_hidden_layers=2, num_attention_heads=4, pad_token_id=0)
    return CohereForCausalLM(config).eval()


def _image(size: int = 12) -> Inputs:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((2, 3, size, size), dtype=np.float32)}


def _ids(decoder: bool = False) -> Inputs:
    ids = np.random.default_rng(0).integers(3, zoo.VOCABULARY, (2, 7))
    mask = np.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask} | (
        {"decoder_input_ids": ids} if decoder else {}
    )


SUBJECTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    **{name: (lambda name=name: zoo.build(name), _ids) for name in ("gpt2", "llama", "bert")},
    "lstm": (lambda: torch_nets.build("lstm"), lambda: torch_nets.inputs("lstm")),
    "u-net": (lambda: torch_nets.build("u-net"), lambda: torch_nets.inputs("u-net")),
    "mixer": (lambda: torch_nets.build("mixer"), lambda: torch_nets.inputs("mixer")),
    "small resnet": (lambda: torch_nets.build("small resnet"), _image),
    "resnet": (lambda: torch_nets.ResNet(4, (1, 1, 1, 1)).eval(), lambda: _image(40)),
    "upsampling": (Upsampling, _image),
    "scaled logits": (_scaled_logits, _ids),
    "mixtral": (lambda: zoo.build("mixtral"), _ids),
    "t5": (lambda: zoo.build("t5"), lambda: _ids(decoder=True)),
    "own gpt": own.MODELS["gpt"],
}


@cache
def _subject(name: str) -> tuple[nn.Module, Inputs, list[torch.Tensor]]:
    """A clean model, its inputs, and what it gives."""
    make, inputs = SUBJECTS[name]
    module = make()
    return module, inputs(), floats(run(module, inputs()))


@cache
def _expected(name: str) -> list[torch.Tensor]:
    module, inputs, _ = _subject(name)
    return _in_float64(module, inputs)


def _in_float64(module: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    return floats(run(wide(module), inputs, torch.float64))


def _done(family: str, subject: str, draw: int = 0) -> Done:
    module, inputs, _ = _subject(subject)
    rng = Random(f"{subject}/{family}/{draw}")
    return FAMILIES[family].apply(Site(copy.deepcopy(module), inputs, rng))


@pytest.mark.parametrize("family", NAMES)
def test_a_fault_shows_in_copies_and_leaves_the_subject_alone(family: str) -> None:
    for subject in SUBJECTS:
        try:
            done = _done(family, subject)
        except NoPlace:
            continue
        break
    else:
        pytest.fail(f"{family} has no place in any of {', '.join(SUBJECTS)}")
    module, inputs, before = _subject(subject)
    after = floats(run(module, inputs))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    reference = module if done.reference is None else done.reference
    assert isinstance(reference, nn.Module)
    assert isinstance(done.candidate, nn.Module)
    expected = _expected(subject) if reference is module else _in_float64(reference, inputs)
    twin = wide(copy.deepcopy(done.candidate))
    results = [floats(run(twin, inputs, torch.float64)) for _ in range(2)]
    assert max(distance(expected, result) for result in results) > LEAST
    names = {n for side in (reference, done.candidate) for n, _ in side.named_modules()}
    assert done.targets
    assert set(done.targets) <= names
    assert done.what
    assert not FAMILIES[family].says.endswith(".")


@pytest.mark.parametrize(
    ("family", "subject"),
    [("row-zeroed", "mixtral"), ("sees-one-ahead", "t5"), ("wrong-in-padded-row", "t5")],
)
def test_a_fault_has_a_place_in_two_stacks_and_among_experts(family: str, subject: str) -> None:
    assert _done(family, subject).targets


@pytest.mark.parametrize("family", NAMES)
def test_a_module_without_a_place_has_none(family: str) -> None:
    with pytest.raises(NoPlace):
        FAMILIES[family].apply(
            Site(nn.Identity(), {"input": np.ones((2, 3), np.float32)}, Random(0))
        )


@pytest.mark.parametrize("family", ["weight-scaled", "wrong-in-one-channel"])
def test_a_case_always_draws_the_same_place(family: str) -> None:
    first, again = _done(family, "gpt2"), _done(family, "gpt2")
    assert first.what == again.what
    assert len({_done(family, "gpt2", draw).what for draw in range(4)}) > 1
