"""Which tensors were computed from which block's output, however many operations lie between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .slots import Slot

Marks = Mapping[str, tuple[int, frozenset[Slot]]]
"""By group of blocks: its latest call that a tensor descends from, and by which outputs of it."""

_NONE: Marks = {}


class Lineage(TorchDispatchMode):
    """Marks tensors while it is entered; every operation hands marks on to what it gives.

    Marks lie on memory, not on tensors: a view is a new tensor on the same memory. Memory that is
    used again was given out by an operation that is seen here, which writes its marks anew.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._marks: dict[int, Marks] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        given = list(_memory((args, kwargs)))
        marks = _merged(self._marks.get(place, _NONE) for place in given)
        output = func(*args, **(kwargs or {}))
        made = list(_memory(output))
        if func._schema.is_mutable:
            made += given[:1]
        for place in made:
            self._marks[place] = marks
        return output

    def of(self, tensor: torch.Tensor) -> Marks:
        """The marks of a tensor."""
        return _merged(self._marks.get(place, _NONE) for place in _memory(tensor))

    def mark(self, tensor: torch.Tensor, group: str, call: int, slot: Slot, inside: str) -> None:
        """Mark a block's output; what runs inside the block is of no interest any more."""
        for place in _memory(tensor):
            before = self._marks.get(place, _NONE)
            known = before.get(group)
            slots = known[1] if known is not None and known[0] == call else frozenset()
            kept = {
                name: mark
                for name, mark in before.items()
                if name != group and not f"{name}.".startswith(f"{inside}.")
            }
            self._marks[place] = {**kept, group: (call, slots | {slot})}


def _merged(all_marks: Iterable[Marks]) -> Marks:
    """In each group the latest call counts."""
    merged: Marks = _NONE
    for marks in all_marks:
        if not marks or marks is merged:
            continue
        if not merged:
            merged = marks
            continue
        both = dict(merged)
        for group, (call, slots) in marks.items():
            known = both.get(group)
            if known is None or known[0] < call:
                both[group] = (call, slots)
            elif known[0] == call:
                both[group] = (call, known[1] | slots)
        merged = both
    return merged


def _memory(value: Any) -> Iterator[int]:
    """The memory of every tensor in a value; some kinds of tensors have none of their own."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            try:
                yield leaf.untyped_storage()._cdata
            except (NotImplementedError, RuntimeError):
                continue
