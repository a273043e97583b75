"""Which tensors were computed from what a block gave, however many operations lie between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .op_mode import OpMode
from .tensors import Slot

Marks = Mapping[str, tuple[int, frozenset[Slot]]]
"""By group of blocks: its latest call that a tensor descends from, and by which outputs of it."""

_UNMARKED: Marks = {}


class Lineage(OpMode):
    """Marks tensors: every operation hands the marks of what it takes on to what it gives.

    Operations are seen between blocks alone, since to see one costs as much as a small one itself:
    a block hands all marks on that it is given, and its output is marked as its own.

    Marks lie on memory, not on tensors: a view is a new tensor on the same memory. A weak reference
    to marked memory has it keep its name when it is gone, so that no other memory takes it on.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._marks: dict[int, Marks] = {}
        self._marked: dict[int, StorageWeakRef] = {}
        self._seeing = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch asks: its compiler would be imported to be told to leave this mode alone."""
        return False

    def see(self, on: bool) -> None:
        """Begin to see operations, or stop."""
        if on and not self._seeing:
            self.__enter__()  # type: ignore[no-untyped-call]
        elif self._seeing and not on:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._seeing = on

    def forget(self) -> None:
        self.see(False)
        self._marks.clear()
        self._marked.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        given = list(_memory((*args, *(kwargs or {}).values())))
        marks = self._on(given)
        output = func(*args, **(kwargs or {}))
        if marks:
            for memory in (*_memory((output,)), *(given[:1] if func._schema.is_mutable else ())):
                self._put(memory, marks)
        return output

    def of(self, *tensors: torch.Tensor) -> Marks:
        """The marks of some tensors, taken together."""
        return self._on(_memory(tensors))

    def _put(self, memory: torch.UntypedStorage, marks: Marks) -> None:
        place = memory._cdata
        self._marks[place] = marks
        if place not in self._marked:
            self._marked[place] = StorageWeakRef(memory)  # type: ignore[no-untyped-call]

    def mark(
        self, tensor: torch.Tensor, before: Marks, group: str, call: int, slot: Slot, inside: str
    ) -> None:
        """Mark a block's output, beside the marks of what the block was given; what runs inside
        the block is of no interest any more."""
        kept = {n: m for n, m in before.items() if not f"{n}.".startswith(f"{inside}.")}
        for memory in _memory((tensor,)):
            there = self._marks.get(memory._cdata, _UNMARKED)
            marked, slots = there.get(group, (0, frozenset()))
            own = (call, (slots if marked == call else frozenset()) | {slot})
            self._put(memory, {**kept, group: own})

    def _on(self, pieces: Iterable[torch.UntypedStorage]) -> Marks:
        """All marks on these pieces of memory; in each group the latest call counts."""
        found = (self._marks.get(memory._cdata, _UNMARKED) for memory in pieces)
        distinct = {id(marks): marks for marks in found if marks}
        first, *others = distinct.values() or [_UNMARKED]
        if not others:
            return first
        merged = dict(first)
        for marks in others:
            for group, (call, slots) in marks.items():
                latest, before = merged.get(group, (0, frozenset()))
                if call >= latest:
                    merged[group] = (call, slots | before if call == latest else slots)
        return merged


def _memory(values: Iterable[Any]) -> Iterator[torch.UntypedStorage]:
    """The memory of every tensor among some values; some kinds of tensors have none of their
    own."""
    for value in values:
        if isinstance(value, torch.Tensor):
            try:
                yield value.untyped_storage()
            except (NotImplementedError, RuntimeError):
                continue
        elif isinstance(value, tuple | list):
            yield from _memory(value)
        elif isinstance(value, dict):
            yield from _memory(value.values())
