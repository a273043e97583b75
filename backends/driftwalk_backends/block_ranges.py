"""A range of a model's blocks, run on its own: what one of several machines does.

The model's own forward runs, so that embeddings, masks and rotary angles are the model's own
business on every machine. Only blocks are cut: one before the range stands in for itself and gives
what was handed on of it; after the last block of the range the forward is cut short. What is handed
on is all that a block gave: of the block before the range, and of the last block of every stack
before that (an encoder, for a decoder).

Whatever else a model takes from earlier blocks (U-Net) is not there. Stand-ins give NaN for it, and
a result that depends on those is an error, never a wrong state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from driftwalk.adapter import Sink
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, UsageError
from driftwalk.states import State

from .calls import Inputs, call
from .eager_run import CUT_SHORT
from .layout import Layout
from .tensors import is_float, tensors_in, to_numpy
from .torch_eager import TorchEager
from .watching import BlockNumbers, Hook, hooked

Handed = Mapping[int, Any]
"""What blocks gave, by their number among all blocks."""

Run = Callable[[Sink], Any]
"""A run of a backend, whose states go to the sink."""

_UNKNOWN, _OTHER = float("nan"), 0.0
"""What stand-ins give that nothing may depend on; and what they give if something seems to."""


class _Done(Exception):  # noqa: N818 - nothing went wrong
    """The last block of the range has run."""


@dataclass(frozen=True)
class Blocks:
    """All blocks of a model in order of execution, each a module and which call of it."""

    calls: tuple[tuple[str, int], ...]
    points: tuple[str, ...]
    """The name of each block's state."""
    ends: frozenset[int]
    """The last block of each stack."""

    @classmethod
    def of(cls, layout: Layout) -> Blocks:
        stacks = [stack for stack in layout.stacks if not stack.walked]
        if not stacks:
            raise UsageError(
                "ranges=... cuts a stack of blocks that hand a state on, and this model has none. "
                "Name one with --blocks, or run the model in one process."
            )
        calls = (pair for s in stacks for pair in zip(s.blocks, s.calls, strict=True))
        points = (point.name for stack in stacks for point in stack.layers)
        ends = accumulate(len(stack.blocks) for stack in stacks)
        return cls(tuple(calls), tuple(points), frozenset(end - 1 for end in ends))

    def cut(self, module: nn.Module, count: int) -> tuple[range, ...]:
        """So many ranges, whose weights are about equally large."""
        if count > len(self.calls):
            raise UsageError(
                f"ranges={count}: the model has {len(self.calls)} blocks, and a range has at least "
                "one."
            )
        blocks = (module.get_submodule(path) for path, _ in self.calls)
        return split([sum(w.nbytes for w in block.parameters()) for block in blocks], count)

    def needs(self, module: nn.Module, some: range) -> set[str]:
        """The tensors that a range needs: those of its blocks, and all outside of blocks."""
        elsewhere = {f"{path}." for path, _ in self.calls}
        elsewhere -= {f"{self.calls[number][0]}." for number in some}
        named = (*module.named_parameters(), *module.named_buffers())
        return {name for name, _ in named if not name.startswith(tuple(elsewhere))}

    def name(self, some: range) -> str:
        first, last = self.points[some[0]], self.points[some[-1]]
        return first if first == last else f"{first} to {last}"


def split(sizes: Sequence[int], count: int) -> tuple[range, ...]:
    """Cut a row into `count` pieces of about the same sum, none of them empty."""
    sums = [0, *accumulate(sizes)]
    cuts = [0]
    for number in range(1, count):
        possible = range(cuts[-1] + 1, len(sizes) - count + number + 1)
        cuts.append(min(possible, key=lambda at: abs(sums[at] * count - sums[-1] * number)))
    return tuple(map(range, cuts, [*cuts[1:], len(sizes)]))


def run_range(
    backend: TorchEager, run: Run, blocks: Blocks, some: range, given: Handed, sink: Sink
) -> tuple[Handed, Any]:
    """Have a backend run a range of its model's blocks; its states go to the sink, in order.

    Gives what is to be handed on to the next range, and what the run gave.
    """
    seen: dict[str, bytes] = {}

    def pass_on(state: State) -> None:
        _note(seen, state.point.name, state.array)
        sink(state)

    handed, made = _run(backend, run, _Cut(blocks, some, given, _UNKNOWN), pass_on)
    _note_all(seen, handed, made)
    if seen:  # a model may well give NaN: then it does so whatever the stand-ins give
        again: dict[str, bytes] = {}
        cut = _Cut(blocks, some, given, _OTHER)
        _note_all(again, *_run(backend, run, cut, lambda s: _note(again, s.point.name, s.array)))
        if seen != again:
            name = next(name for name in seen if seen[name] != again.get(name))
            raise BackendError(
                f"The blocks {blocks.name(some)} cannot run on their own: {name} depends on blocks "
                "before them by more than the state that is handed on (a skip connection, states "
                "of all layers among the outputs). Run this model without ranges=..."
            )
    return handed, made


def _run(backend: TorchEager, run: Run, cut: _Cut, sink: Sink) -> tuple[Handed, Any]:
    backend.calls = cut.call
    try:
        made = run(lambda state: sink(state) if cut.is_begun else None)
    finally:
        backend.calls = call
    return cut.handed, made


def _note(seen: dict[str, bytes], name: str, array: Array) -> None:
    """Keep a hash of an array that has NaN."""
    if array.dtype.kind not in "iub?" and np.isnan(array).any():
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        seen[name] = hashlib.blake2b(data.data).digest()


def _note_all(seen: dict[str, bytes], handed: Handed, made: Any) -> None:
    for number, output in handed.items():
        for slot, tensor in tensors_in(output):
            _note(seen, f"what block {number} hands on {slot}", to_numpy(tensor))
    for name, array in made.items() if isinstance(made, Mapping) else ():
        _note(seen, f"output {name!r}", array)


class _Cut:
    """One forward of a model, of whose blocks only some are computed."""

    def __init__(self, blocks: Blocks, some: range, given: Handed, unknown: float) -> None:
        self._blocks = blocks
        self._some = some
        self._given = given
        self._unknown = unknown
        self._numbers = BlockNumbers(blocks.calls)
        self._open: list[int | None] = []
        """The blocks that are being computed, by number; None for a call that is no block."""
        self._next = 0
        self._stand_in: Any = None
        self.is_begun = some.start == 0
        """Whether what follows is this range's: the state before it was handed on."""
        self.handed: dict[int, Any] = {}

    def call(self, module: nn.Module, inputs: Inputs) -> Any:
        """What the model gives, or that it was cut short before it gave anything."""
        with self._standing_in(module), hooked(self._hooks(module)):
            try:
                return call(module, inputs)
            except _Done:
                return CUT_SHORT

    @contextmanager
    def _standing_in(self, module: nn.Module) -> Iterator[None]:
        with ExitStack() as restore:
            for path in self._numbers.paths:
                block = module.get_submodule(path)
                own = vars(block).get("forward")
                restore.callback(
                    partial(setattr, block, "forward", own)
                    if own is not None
                    else partial(delattr, block, "forward")
                )
                block.forward = partial(self._forward, block.forward)
            yield

    def _hooks(self, module: nn.Module) -> Iterator[Hook]:
        # The last hooks of each block: they see what others, those of a replay say, made of it.
        for path in self._numbers.paths:
            yield module.get_submodule(path), partial(self._before, path), self._after

    def _before(self, path: str, block: nn.Module, args: Any, kwargs: Any) -> None:
        number = self._numbers.next(path)
        if number is not None and number != self._next:
            raise BackendError(
                f"The stacks of this model take turns ({self._blocks.points[number]} comes before "
                f"{self._blocks.points[self._next]}): ranges=... needs one stack after the other."
            )
        self._open.append(number)

    def _forward(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        number = self._open[-1] if self._open else None
        if number is None or number >= self._some.start:
            return own(*args, **kwargs)
        if number in self._given:
            self._stand_in = tree_map(_own_copy, self._given[number])
            return self._stand_in
        # Of a block that nothing was handed on of, the form is that of a later one of its stack.
        like = min(other for other in self._given if other >= number)
        return tree_map(self._in_form, self._given[like])

    def _in_form(self, value: Any) -> Any:
        return torch.full_like(value, self._unknown) if is_float(value) else value

    def _after(self, block: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        number = self._open.pop()
        if number is None:
            return None
        self._next = number + 1
        if number < self._some.start:
            if number not in self._given:
                return None
            output = self._stand_in  # as it was handed on: hooks had their say then
            self.is_begun = number == self._some.start - 1
        if self._next < len(self._blocks.calls):  # nobody takes over from the last block of all
            is_last = self._next == self._some.stop
            if is_last or number in self._blocks.ends:
                self.handed[number] = _handed_on(self._blocks.points[number], output)
            if is_last:
                raise _Done
        return output


def _own_copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _handed_on(point: str, output: Any) -> Any:
    """A copy of what a block gave; an error where another machine could not be given it."""
    leaves = tree_leaves(output)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) and next(tensors_in(leaf), None) is not None:
            raise BackendError(
                f"The block at {point} gives tensors in a {type(leaf).__name__}, which cannot be "
                "handed on to another machine."
            )
    return tree_map(_own_copy, output)
