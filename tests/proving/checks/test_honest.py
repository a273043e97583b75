"""Honest families: each finds a place, changes something there, and keeps the function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_nets
import zoo
from proving.case import FAMILIES, Done, NoPlace, Site
from proving.honest import attention as honest_attention
from proving.honest import forms as honest_forms
from proving.honest import machine as honest_machine
from proving.honest import nets as honest_nets
from proving.honest import outputs as structure_outputs
from proving.honest import ports as structure_ports
from proving.honest import rewrites as honest
from proving.honest import steps as honest_steps
from proving.honest import structure
from proving.honest.wiring import changed, drawn, written_out
from proving.places import run
from proving.subjects import own

FILES = (
    *(honest, honest_attention, honest_forms, honest_machine, honest_nets, honest_steps),
    *(structure, structure_outputs, structure_ports),
)
NAMES = [
    name for name, one in FAMILIES.items() if one.apply.__module__ in {f.__name__ for f in FILES}
]
FIRST = ("own:gpt", "llama", "gpt2", "bert")
"""One of them is tried first; it is another for each family."""
REST = ("own:cnn", "own:reader", "own:parallel-gpt", "graph", "two towers", "diffusion", "t5")
ENOUGH = {"rewrite": 1, "machine": 1, "structure": 1}
"""Subjects on which a family of a group is looked at."""
FLOAT32_INSIDE = {"llama", "t5"}
"""Norms that compute in float32 whatever they are given: no closer than that rounds."""
SPECS = {"compiled", "attention-by-option", "threads-by-option"}
STORED_ANEW = {
    *("norm-gain-folded", "norm-gains-folded-everywhere", "norm-scale-moved", "smooth-scales"),
    *("value-scale-moved", "up-scale-moved", "values-bias-moved", "query-scale-moved"),
    *("queries-and-keys-rotated", "queries-and-keys-turned-with-positions", "values-rotated"),
    *("channel-scales-moved", "batch-norm-folded", "batch-norms-folded-everywhere"),
    *("batch-norm-as-scale-and-shift", "trained-for-integers-and-stored"),
}
"""Numbers that are made anew are rounded to float32 once; all others are the same numbers."""
Inputs = Mapping[str, Any]


@cache
def subject(name: str) -> tuple[nn.Module, Inputs]:
    if name.startswith("own:"):
        make, inputs = own.MODELS[name.removeprefix("own:")]
        return make(), inputs()
    if name in torch_nets.NETS:
        return torch_nets.build(name), torch_nets.inputs(name)
    ids = np.random.default_rng(0).integers(3, zoo.VOCABULARY, (2, 9))
    decoder = {"decoder_input_ids": ids[:, :5]} if name == "t5" else {}
    return zoo.build(name), {"input_ids": ids, **decoder}


@cache
def applied(name: str) -> tuple[tuple[str, Done], ...]:
    """The first subjects on which a family finds a place, with what it makes there."""
    made: list[tuple[str, Done]] = []
    turn = NAMES.index(name) % len(FIRST)
    for one in (*FIRST[turn:], *FIRST[:turn], *REST):
        module, inputs = subject(one)
        try:
            site = Site(module, inputs, Random(f"{name}/{one}"))
            made.append((one, FAMILIES[name].apply(site)))
        except NoPlace:
            continue
        if len(made) == ENOUGH[FAMILIES[name].group]:
            break
    return tuple(made)


@cache
def widened(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).double()


def floats(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output.double()] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        output = list(output.values())
    elif is_dataclass(output) or isinstance(output, SimpleNamespace):
        output = list(vars(output).values())
    return [one for v in output for one in floats(v)] if isinstance(output, list | tuple) else []


def given(module: nn.Module, inputs: Inputs, dtype: torch.dtype) -> list[torch.Tensor]:
    return floats(run(module, inputs, dtype))


def apart(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    assert [one.shape for one in first] == [one.shape for one in second]
    assert first
    pairs = zip(first, second, strict=True)
    return max(float((a - b).norm() / a.norm().clamp(min=1e-30)) for a, b in pairs)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SPECS])
def test_a_family_changes_a_model_and_keeps_its_function(name: str) -> None:
    assert applied(name), "no subject has a place"
    for one, done in applied(name):
        module, inputs = subject(one)
        reference = module if done.reference is None else done.reference
        assert isinstance(reference, nn.Module)
        assert isinstance(done.candidate, nn.Module)
        assert changed(module, done.candidate) or _setting(module) != _setting(done.candidate)

        single = given(done.candidate, inputs, torch.float32)
        wide = copy.deepcopy(done.candidate).double()
        with written_out():
            right = given(widened(reference), inputs, torch.float64)
            assert apart(right, given(wide, inputs, torch.float64)) < _allowed(name, one)
        assert apart(right, single) < 1e-4
        again = given(done.candidate, inputs, torch.float32)
        assert all(torch.equal(a, b) for a, b in zip(single, again, strict=True))
        assert all(value.dtype != torch.float64 for value in done.candidate.state_dict().values())


def _setting(module: nn.Module) -> object:
    return getattr(getattr(module, "config", None), "_attn_implementation", None)


def _allowed(name: str, one: str) -> float:
    return 1e-6 if name in STORED_ANEW or one in FLOAT32_INSIDE else 1e-12


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_family_names_a_backend(name: str) -> None:
    module, inputs = subject("gpt2")
    done = FAMILIES[name].apply(Site(module, inputs, Random(0)))
    assert str(done.candidate).startswith("torch,")


def _nothing(module: nn.Module) -> None:
    pass


def _too_much(module: nn.Module) -> None:
    module.get_submodule("layers.1.mlp.fc1").weight.data *= 1.01  # type: ignore[operator, union-attr]


@pytest.mark.parametrize("change", [_nothing, _too_much])
def test_what_changes_nothing_or_too_much_has_no_place(change: Callable[[nn.Module], None]) -> None:
    module, inputs = subject("own:gpt")
    site = Site(module, inputs, Random(0))

    def changing(copied: nn.Module, _: str) -> str:
        change(copied)
        return "changed"

    with pytest.raises(NoPlace):
        drawn(site, ["here"], changing)


@pytest.mark.parametrize("name", NAMES)
def test_a_family_says_what_is_done(name: str) -> None:
    assert len(FAMILIES[name].says) > 10
    assert not FAMILIES[name].says.endswith(",")
    assert FAMILIES[name].runs[0] == "fp32"
