"""A case of the proving ground as data: a subject, what is done to it, how it is run, what is owed.

A family is one way to change a model: a small function over any module that has the place for it.
It is given a `Site` (a copy that it may change, inputs, chance) and gives a `Done`, or raises
`NoPlace` where the model has none. Families are registered by `family`; nothing in a family knows
a subject by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from torch import nn

Owed = Literal["fault", "honest", "odd", "unsteady", "undecidable"]
"""Must be caught and placed; must pass; must pass or be refused by name; must be drift or
unverified, since it differs from call to call or when it is watched; must be unverified."""
Drawn = Literal["by chance", "always", "by name"]
"""For which subjects a family is asked: some that are drawn, all, or those that `holes` names."""
Group = Literal["rewrite", "machine", "structure", "porting", "arithmetic", "lie"]


class NoPlace(Exception):  # noqa: N818 - a fact about a model, no error
    """The model has no place for what a family does."""


@dataclass(frozen=True)
class Site:
    """What a family works on."""

    module: nn.Module
    """A copy of the subject in float32, in evaluation mode: to be changed in place."""
    inputs: Mapping[str, Any]
    """The probe, as numpy arrays by name."""
    rng: Random
    """The choice of a place; the same case always draws the same."""

    def choose(self, places: list[Any]) -> Any:
        """One of the places that were found."""
        if not places:
            raise NoPlace
        return self.rng.choice(places)


@dataclass(frozen=True)
class Done:
    """What became of a site."""

    candidate: object
    """What `driftwalk.verify` is given: the changed module, another one, or a backend spec."""
    what: str
    """One sentence: what was changed."""
    targets: tuple[str, ...] = ()
    """Paths of the modules that compute wrongly, in order of execution; `path.weight` is `path`."""
    reference: object = None
    """Where the reference is not the subject: what is verified against `candidate`."""
    at_fault: Literal["candidate", "reference", "both"] = "candidate"
    options: Mapping[str, Any] = field(default_factory=dict)
    """More for `driftwalk.verify`: `depth`, `allow_missing` ..."""


@dataclass(frozen=True)
class Family:
    """One way to change a model."""

    name: str
    group: Group
    owed: Owed
    apply: Callable[[Site], Done]
    runs: tuple[str, ...]
    """The pipelines and formats in which it is a fair question: names of `pipelines.RUNS`."""
    drawn: Drawn = "by chance"

    @property
    def says(self) -> str:
        """What is done, in words: the first line of its function's docstring."""
        return (self.apply.__doc__ or self.name).strip().splitlines()[0].rstrip(".")


FAMILIES: dict[str, Family] = {}
WHOLE, HALVES, GRAPHS = ("fp32",), ("bf16", "fp16"), ("onnx",)
MANY = ("generate", "compare", "set", "pair", "module")
EVERY = (*WHOLE, *HALVES, "int8", *GRAPHS, *MANY)


def family(
    group: Group, owed: Owed, runs: tuple[str, ...] = EVERY, drawn: Drawn = "by chance"
) -> Callable[[Callable[[Site], Done]], Callable[[Site], Done]]:
    """Register a function as a family of its own name."""

    def register(apply: Callable[[Site], Done]) -> Callable[[Site], Done]:
        name = apply.__name__.replace("_", "-")
        assert name not in FAMILIES, name
        FAMILIES[name] = Family(name, group, owed, apply, runs, drawn)
        return apply

    return register


@dataclass(frozen=True)
class Case:
    """One question to driftwalk; `draw` tells apart cases that differ in chance alone."""

    subject: str
    family: str
    run: str
    draw: int = 0

    @property
    def id(self) -> str:
        return f"{self.subject}/{self.family}/{self.run}/{self.draw}"

    @classmethod
    def read(cls, name: str) -> Case:
        """The case of an id; a subject's name may have slashes of its own."""
        subject, family_, run, draw = name.rsplit("/", 3)
        return cls(subject, family_, run, int(draw))

    def rng(self, seed: int) -> Random:
        return Random(f"{seed}/{self.id}")
