"""Faults: seeded bugs for copies of a model, the kind that ports, exporters and memory make.

A fault is small frozen data. `plan` finds places for every kind by the anatomy of a model, never by
its name; `inject` makes the faulty copy. A kind that a model has no place for is named with a
reason. Where each fault should be found is `points`: the points that use what was changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, zip_longest
from random import Random
from typing import Any

import torch
from torch import nn

from ..anatomy import Anatomy
from ..layout import Layout
from ..loaded import LoadedModel
from . import code, weights
from .fault import Fault, NoPlace, Subject


@dataclass(frozen=True)
class Plan:
    """The faults to inject, and the kinds this model has no place for, each with the reason."""

    faults: tuple[Fault, ...]
    absent: Mapping[str, str]


@dataclass(frozen=True)
class Kind:
    """How faults of a kind are found and applied; `absent` says what a model lacks for it."""

    find: Callable[[Subject, str, Random, Any], Fault]
    apply: Callable[[nn.Module, Fault], None]
    absent: str
    variants: tuple[Any, ...] = (None,)


class OtherModel(LoadedModel):
    """A changed copy that is walked at the points of the clean model: a NaN must not move them."""

    def __init__(self, clean: LoadedModel, module: nn.Module, label: str) -> None:
        super().__init__(module, label, blocks=clean.blocks)
        self.clean = clean

    @property
    def has_known_code(self) -> bool:
        """Nothing made from it may be stored."""
        return False

    def layout(self, module: nn.Module, inputs: Mapping[str, Any], run: Any) -> Layout:
        return self.clean.layout(module, inputs, run)


class FaultyModel(OtherModel):
    """A copy with a fault."""

    def __init__(self, clean: LoadedModel, fault: Fault) -> None:
        label = f"{clean.label} ({fault.description})"
        super().__init__(clean, inject(clean.module, fault), label)
        self.fault = fault


def plan(model: LoadedModel, anatomy: Anatomy, dtype: str, number: int, seed: int) -> Plan:
    """At most `number` faults: every kind in turn, each over the layers in a seeded order."""
    subject = Subject.of(model, anatomy, dtype)
    lines = [(name, variant) for name, kind in KINDS.items() for variant in kind.variants]
    drawn = [draws(subject, name, variant, seed) for name, variant in lines]
    turns = (fault for turn in zip_longest(*drawn) for fault in turn if fault is not None)
    chosen = tuple(islice(turns, number))
    kinds = {fault.kind for fault in chosen}
    absent = {
        name: kind.absent
        for name, kind in KINDS.items()
        if name not in kinds
        and not any(True for v in kind.variants for _ in draws(subject, name, v, seed))
    }
    return Plan(chosen, absent)


def draws(subject: Subject, name: str, variant: Any, seed: int | str) -> Iterator[Fault]:
    """Different faults of one kind, each round over all points; ends when a round is stale."""
    rng = Random(f"{seed}|{name}|{variant}")
    points, drawn = list(subject.anatomy.points), set[str]()
    fresh = True
    while fresh:
        fresh = False
        rng.shuffle(points)
        for point in points:
            try:
                fault = KINDS[name].find(subject, point, rng, variant)
            except NoPlace:
                continue
            if fault.description not in drawn:
                drawn.add(fault.description)
                fresh = True
                yield fault


def inject(module: nn.Module, fault: Fault) -> nn.Module:
    """A deep copy with the fault; the original is left alone."""
    twin = copy.deepcopy(module)
    with torch.no_grad():
        KINDS[fault.kind].apply(twin, fault)
    return twin


NO_HEADS = "no attention heads were found in its blocks"
KINDS: dict[str, Kind] = {
    "bit_flip": Kind(weights.find_flip, weights.flip, "it has no float parameters", weights.ROLES),
    "scaled_weight": Kind(
        weights.find_scale, weights.scale, "it has no weight matrices", weights.SCALES
    ),
    "dropped_bias": Kind(weights.find_bias, weights.drop_bias, "it has no biases"),
    "wrong_epsilon": Kind(code.find_epsilon, code.set_epsilon, "no part of it has an epsilon"),
    "wrong_activation": Kind(
        code.find_activation,
        code.set_activation,
        "no part of it is an activation with a known variant",
    ),
    "swapped_heads": Kind(weights.find_two_heads, weights.swap_heads, NO_HEADS),
    "zeroed_head": Kind(weights.find_head, weights.zero_head, NO_HEADS),
    "shifted_positions": Kind(
        code.find_shift, code.alter, "neither a table of positions nor rotary angles were found"
    ),
    "leaking_mask": Kind(code.find_leak, code.alter, "no block is handed a causal mask"),
    "ignored_padding": Kind(
        code.find_padding, code.alter, "no block is handed a mask with padding on this probe"
    ),
    "stale_layer": Kind(
        weights.find_stale, weights.make_stale, "no two blocks have weights of their own"
    ),
    "transposed_weight": Kind(
        weights.find_transpose, weights.transpose, "it has no square weight matrices"
    ),
}
