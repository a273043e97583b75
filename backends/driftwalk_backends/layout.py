"""Where the points of a model are: its stacks, in order of execution, and its outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from driftwalk.names import EMBED, NORM, in_stack, layer
from driftwalk.states import Point

from .depth import BLOCKS, Look
from .model_outputs import NO_OUTPUTS, OutputPoints
from .shared import Shared
from .tensors import Slot
from .watching import BlockNumbers


@dataclass(frozen=True)
class Stack:
    """A run of blocks in order of execution; a block applied L times stands here L times."""

    prefix: str
    """Before the names of its points; `encoder@2` where the model runs its blocks a second time."""
    path: str
    blocks: tuple[str, ...]
    calls: tuple[int, ...]
    """Which call of its module each block is, in one run of the model."""
    ran: int
    """How often these modules are called in one run of the model, all in all."""
    norm: str | None = None
    takes: Slot | None = None
    """Where the blocks take the residual stream; None: their first float tensor."""
    gives: Slot | None = None
    """Where they give it."""
    beside: tuple[Slot, ...] = ()
    """Where they give other streams, of whatever shape: the queries and the keys of SAM."""
    shared: tuple[Shared, ...] = ()
    """What several blocks are handed beside the stream."""
    walked: bool = False
    """Parts of the module tree (tree.py), with no stream from each to the next, and no `embed`."""
    places: tuple[int, ...] = ()
    """The numbers of these parts, where some that another model has are missing; else in order."""

    def name(self, rest: str) -> str:
        return in_stack(self.prefix, rest)

    def hands_on(self, slot: Slot, shape: torch.Size, main: torch.Size) -> bool:
        """Whether what a block gives is a stream: of the form of the main one, or beside it."""
        return shape == main or slot in self.beside

    @property
    def numbers(self) -> BlockNumbers:
        """Counts the calls of a run, and says which block each of them is."""
        return BlockNumbers(zip(self.blocks, self.calls, strict=True))

    @property
    def layers(self) -> tuple[Point, ...]:
        numbers = self.places or range(len(self.blocks))
        named = zip(numbers, self.blocks, strict=True)
        return tuple(Point(self.name(layer(number)), path) for number, path in named)

    @property
    def points(self) -> tuple[Point, ...]:
        norm = [Point(self.name(NORM), self.norm)] if self.norm else []
        embed = [] if self.walked else [Point(self.name(EMBED), f"input of {self.blocks[0]}")]
        return (*embed, *self.layers, *norm)


@dataclass(frozen=True)
class Layout:
    """All points of a model, in order of execution, and how they were confirmed."""

    stacks: tuple[Stack, ...]
    outputs: OutputPoints = NO_OUTPUTS
    """Which of the model's outputs are points."""
    confirmed: str = "unchecked"
    """What the model's own hidden_states said: see crosscheck.py."""
    notes: tuple[str, ...] = ()
    """What a reader of a report must know about how the points were found."""
    look: Look = BLOCKS
    """How far inside the blocks; `points` are those of block depth at any look."""

    @property
    def key(self) -> str:
        """Tells layouts apart: every point, its module, and where its blocks take and give it."""
        return repr((self.stacks, self.points))

    @property
    def points(self) -> tuple[Point, ...]:
        return (*(p for stack in self.stacks for p in stack.points), *self.outputs.points)
