"""One run of a model, watched: which numbered modules were called, with what, and what they gave.

Whether a call takes what the call before it gave is decided while the tensors are at hand: the very
same tensor or an equal one (`taken`), or, with a lineage, anything computed from it (`derived`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .tensors import (
    Slot,
    call_tensors,
    float_outputs,
    is_float,
    same_values,
    stream_input,
    stream_slot,
)
from .tree import Visits

_NUMBERED = re.compile(r"(?P<group>.*?)(?P<number>\d+)\Z")

Form = tuple[torch.Size, torch.dtype]
Hook = tuple[nn.Module, Callable[..., Any] | None, Callable[..., Any] | None]
"""A module, what is called with (module, args, kwargs) before each of its calls, and what is called
with (module, args, kwargs, output) after it."""


@contextmanager
def hooked(hooks: Iterable[Hook], first: bool = False) -> Iterator[None]:
    """Hooks on modules, removed in any case; `first`: outputs are seen before other hooks do."""
    with ExitStack() as handles:
        for module, before, after in hooks:
            if isinstance(module, torch.jit.ScriptModule):
                continue  # it takes none
            if before is not None:
                handles.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
            if after is not None:
                handle = module.register_forward_hook(after, with_kwargs=True, prepend=first)
                handles.enter_context(handle)
        yield


class BlockNumbers:
    """Counts the calls of a stack's modules in a run, and says which block each of them is."""

    def __init__(self, blocks: Iterable[tuple[str, int]]) -> None:
        self._numbers = {block: number for number, block in enumerate(blocks)}
        self._ran = dict.fromkeys((path for path, _ in self._numbers), 0)

    @property
    def paths(self) -> list[str]:
        return list(self._ran)

    @property
    def ran(self) -> int:
        """How many calls there were so far."""
        return sum(self._ran.values())

    def next(self, path: str) -> int | None:
        """Count a call of this module; None where that call is no block of the stack."""
        call = self._ran[path]
        self._ran[path] = call + 1
        return self._numbers.get((path, call))

    def forget(self) -> None:
        for path in self._ran:
            self._ran[path] = 0


@dataclass
class Call:
    """One call of a numbered module, as seen from outside."""

    path: str
    module: nn.Module
    number: int
    """Which call of this module in the run, counted from 0."""
    stream: Slot
    """Where its first float tensor stands."""
    takes: dict[Slot, Form]
    taken: set[tuple[Slot, Slot]]
    """Slots of the previous call's output, and the slots of this call's input they went into."""
    derived: set[tuple[Slot, Slot]]
    gives: dict[Slot, Form] = field(default_factory=dict)
    order: int = 0


class Group:
    """Numbered siblings and their calls; tensors are kept so that their identity is certain."""

    def __init__(
        self, path: str, container: nn.Module | None, visits: Visits, lineage: Lineage | None
    ) -> None:
        self.path = path
        self.container = container
        """The module of that path, if there is one: `block1`, `block2` ... are in no list."""
        self.is_list = isinstance(container, nn.ModuleList)
        self._visits = visits
        self._lineage = lineage
        self.forget()

    def forget(self) -> None:
        """Begin anew: a run that failed may be run again."""
        self.calls: list[Call] = []
        self.norms: dict[tuple[int, Slot], str] = {}
        """Number of calls so far and a slot of the latest output -> the norm that took it."""
        self.later_norms: dict[tuple[int, Slot], str] = {}
        """The same for the first norm that took something computed from it, in its shape."""
        self._latest: dict[Slot, torch.Tensor] = {}
        self._open: list[Call] = []

    def before(self, path: str, block: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = {slot: item for slot, item in call_tensors(args, kwargs) if is_float(item)}
        taken = {
            (given, slot)
            for slot, tensor in inputs.items()
            for given, latest in self._latest.items()
            if same(latest, tensor)
        }
        derived = {(given, slot) for slot, t in inputs.items() for given in self._ancestors(t)}
        forms = {slot: _form(tensor) for slot, tensor in inputs.items()}
        stream = stream_slot(args, kwargs) or ()
        number = self._visits.counts[path] - 1  # this call is counted already
        self._open.append(Call(path, block, number, stream, forms, taken, derived))

    def after(self, path: str, block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call, given = self._open.pop(), dict(float_outputs(output))
        if not call.takes or not given:
            return
        call.gives = {slot: _form(tensor) for slot, tensor in given.items()}
        call.order = next(self._visits.clock)
        self.calls.append(call)
        self._latest = given
        if self._lineage is not None:
            for slot, tensor in given.items():
                self._lineage.mark(tensor, self.path, len(self.calls), slot, path)

    def norm(self, path: str, taken: torch.Tensor) -> None:
        if all(taken.shape != latest.shape for latest in self._latest.values()):
            return
        calls = len(self.calls)
        for slot, latest in self._latest.items():
            if same(latest, taken):
                self.norms.setdefault((calls, slot), path)
        if not self._open:
            for slot in self._ancestors(taken):
                self.later_norms.setdefault((calls, slot), path)

    def _ancestors(self, tensor: torch.Tensor) -> set[Slot]:
        """The outputs of the latest call that a tensor was computed from, and has the form of."""
        if self._lineage is None:
            return set()
        call, slots = self._lineage.of(tensor).get(self.path, (0, frozenset()))
        if call != len(self.calls):
            return set()
        forms = {slot: _form(latest) for slot, latest in self._latest.items()}
        return {slot for slot in slots if forms.get(slot) == _form(tensor)}


@dataclass(frozen=True)
class Watched:
    """What one run showed."""

    groups: dict[str, Group]
    visits: Visits


def watch(module: nn.Module, run: Callable[[], Any], lineage: Lineage | None = None) -> Watched:
    """Run once with hooks on all modules; numbered ones and norms are looked at more closely."""
    groups: dict[str, Group] = {}
    visits = Visits()

    def begin(*_: Any) -> None:
        visits.forget()
        for group in groups.values():
            group.forget()

    hooks: list[Hook] = [(module, begin, None), *visits.hooks(module)]

    def see_norm(path: str, norm: nn.Module, args: Any, kwargs: Any) -> None:
        taken = stream_input(args, kwargs)
        if taken is not None:
            for group in groups.values():
                group.norm(path, taken)

    parts = dict(module.named_modules())
    for path, part in parts.items():
        parent, _, name = path.rpartition(".")
        if match := _NUMBERED.match(name):
            key = f"{parent}.{match['group']}".strip(".")
            group = groups.setdefault(key, Group(key, parts.get(key), visits, lineage))
            hooks.append((part, partial(group.before, path), partial(group.after, path)))
        elif is_norm(part):
            hooks.append((part, partial(see_norm, path), None))
    with hooked(hooks), lineage or nullcontext():
        run()
    return Watched(groups, visits)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same values: usually the very same tensor, sometimes a copy, a view or a cast of it."""
    if a is b:
        return True
    kinds = [(t.shape, t.dtype, t.device) for t in (a, b)]
    same_memory = kinds[0] == kinds[1] and a.data_ptr() == b.data_ptr()
    return same_memory or same_values(a, b)


def is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _form(tensor: torch.Tensor) -> Form:
    return tensor.shape, tensor.dtype


Marks = Mapping[str, tuple[int, frozenset[Slot]]]
"""By group of blocks: its latest call that a tensor descends from, and by which outputs of it."""

_UNMARKED: Marks = {}


class Lineage(TorchDispatchMode):
    """Marks tensors while it is entered: which block's output they were computed from, however many
    operations lie between. Every operation hands marks on to what it gives.

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
        marks = self._on(given)
        output = func(*args, **(kwargs or {}))
        made = list(_memory(output))
        if func._schema.is_mutable:
            made += given[:1]
        for place in made:
            self._marks[place] = marks
        return output

    def of(self, tensor: torch.Tensor) -> Marks:
        """The marks of a tensor."""
        return self._on(_memory(tensor))

    def mark(self, tensor: torch.Tensor, group: str, call: int, slot: Slot, inside: str) -> None:
        """Mark a block's output; what runs inside the block is of no interest any more."""
        for place in _memory(tensor):
            before = self._marks.get(place, _UNMARKED)
            marked, slots = before.get(group, (call, frozenset()))
            kept = {n: m for n, m in before.items() if not f"{n}.".startswith(f"{inside}.")}
            own = (call, (slots if marked == call else frozenset()) | {slot})
            self._marks[place] = {**kept, group: own}

    def _on(self, places: Iterable[int]) -> Marks:
        """All marks on these pieces of memory; in each group the latest call counts."""
        distinct = {id(m): m for place in places if (m := self._marks.get(place, _UNMARKED))}
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


def _memory(value: Any) -> Iterator[int]:
    """The memory of every tensor in a value; some kinds of tensors have none of their own."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            try:
                yield leaf.untyped_storage()._cdata
            except (NotImplementedError, RuntimeError):
                continue
