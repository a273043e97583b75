"""One run of a model, watched: which numbered modules were called, with what, and what they gave.

Whether a call takes what the call before it gave is decided while the tensors are at hand: the very
same tensor or an equal one (`taken`), or anything computed from it (`derived`, lineage.py).
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from .constants import LATEST_TENSORS
from .glimpses import Glimpse
from .lineage import Lineage, Marks
from .tensors import (
    Slot,
    call_tensors,
    float_outputs,
    output_tensors,
    same_values,
    stream_input,
    stream_slot,
)
from .tree import Visits

_NUMBERED = re.compile(r"(?P<group>.*?)(?P<number>\d+)\Z")

Form = tuple[torch.Size, torch.dtype]
Argument = tuple[Slot, Glimpse | None]
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
    stream: Slot = ()
    """Where its first float tensor stands."""
    takes: dict[Slot, Form] = field(default_factory=dict)
    taken: set[tuple[Slot, Slot]] = field(default_factory=set)
    """Slots of the previous call's output, and the slots of this call's input they went into."""
    derived: set[tuple[Slot, Slot]] = field(default_factory=set)
    arguments: list[Argument] = field(default_factory=list)
    """All tensors that it was given, and what it was given None for, if its group is kept."""
    marks: Marks = field(default_factory=dict)
    """The marks of all that it was given."""
    gives: dict[Slot, Form] = field(default_factory=dict)
    handed_back: set[Slot] = field(default_factory=set)
    """What it gave just as it was given it."""
    given: dict[Slot, Glimpse] = field(default_factory=dict)
    """What it gave, if its group is kept."""
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
        self.is_kept = False
        """Whether it may be a stack even if something lies between its members: then what these
        take and give stays in memory until the end of the run."""
        self.visits = visits
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
        self._open: list[tuple[Call, list[torch.Tensor]]] = []
        """Calls that are running, and what they were given."""

    def before(self, path: str, block: nn.Module, args: Any, kwargs: Any) -> None:
        if self.is_kept and self._lineage is not None:
            self._lineage.see(False)
        tensors = list(call_tensors(args, kwargs))
        inputs = {slot: item for slot, item in tensors if item.is_floating_point()}
        call = Call(path, block, self.visits.counts[path] - 1)  # this call is counted already
        call.takes = {slot: (tensor.shape, tensor.dtype) for slot, tensor in inputs.items()}
        call.stream = stream_slot(args, kwargs) or () if inputs else ()
        self._open.append((call, list(inputs.values())))
        for slot, tensor in inputs.items():
            taken = (given for given, latest in self._latest.items() if same(latest, tensor))
            call.taken.update((given, slot) for given in taken)
        if self.is_kept:
            call.arguments = [(slot, Glimpse(t, keep=True)) for slot, t in tensors]
            call.arguments += [((name,), None) for name, v in kwargs.items() if v is None]
        if self.is_kept and self._lineage is not None:
            for slot, tensor in inputs.items():
                call.derived.update((given, slot) for given in self._ancestors(tensor))
            call.marks = self._lineage.of(*(tensor for _, tensor in tensors))

    def after(self, path: str, output: Any) -> None:
        (call, inputs), given = self._open.pop(), dict(float_outputs(output))
        if call.takes and given:
            back = (slot for slot, tensor in given.items() if any(same(tensor, i) for i in inputs))
            call.handed_back.update(back)
            call.gives = {slot: (tensor.shape, tensor.dtype) for slot, tensor in given.items()}
            call.order = next(self.visits.clock)
            self.calls.append(call)
            self._latest = given
            if self.is_kept:
                call.given = {slot: Glimpse(tensor, keep=True) for slot, tensor in given.items()}
        if self.is_kept and self._lineage is not None:
            for slot, tensor in given.items() if call.gives else ():
                place = self.path, len(self.calls), slot
                self._lineage.mark(tensor, call.marks, *place, inside=path)
            self._lineage.see(True)

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
        if self._lineage is None or not self.is_kept:
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
    made: Made
    unhooked: dict[tuple[str, int], dict[Slot, Glimpse]]
    """What modules with hooks of their own gave before those, by path and call."""
    output: Any


class Made:
    """What modules gave: the last few tensors, and of all others whether they are still alive."""

    def __init__(self) -> None:
        self._latest: deque[tuple[str, torch.Tensor]] = deque(maxlen=LATEST_TENSORS)
        self._all: list[tuple[str, weakref.ref[torch.Tensor]]] = []

    def forget(self) -> None:
        self._latest.clear()
        self._all.clear()

    def hooks(self, module: nn.Module) -> Iterator[Hook]:
        for path, part in module.named_modules():
            if path:
                yield part, None, partial(self._after, path)

    def _after(self, path: str, part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.add(path, output)

    def add(self, path: str, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            self._latest.append((path, output))
            if output.is_floating_point():
                self._all.append((path, weakref.ref(output)))
        else:
            self._all += [(path, weakref.ref(tensor)) for tensor in output_tensors(output)]

    def maker(self, tensor: torch.Tensor) -> str:
        """The innermost module that gave this tensor; empty where it was made outside of all."""
        makers = [path for path, given in self._all if given() is tensor]
        makers = makers or [path for path, given in self._latest if same_values(given, tensor)]
        return max(makers, key=lambda path: path.count("."), default="")


def watch(
    module: nn.Module, run: Callable[[], Any], every: bool = False, by_hand: bool = False
) -> Watched:
    """Run once with hooks on all modules; numbered ones and norms are looked at more closely.

    `every`: any module may be a part of a walk; `by_hand`: and any numbered one a block.
    """
    with suppress(Exception):  # of the model itself? Then it fails again, and says so.
        return _Run(module, every, by_hand, Lineage()).watched(run)
    return _Run(module, every, by_hand, None).watched(run)


class _Run:
    """The hooks of one run, and what they have seen."""

    def __init__(
        self, module: nn.Module, every: bool, by_hand: bool, lineage: Lineage | None
    ) -> None:
        self._module = module
        self._parts = dict(module.named_modules())
        self._lineage = lineage
        self._visits, self._made = Visits(module), Made()
        self._groups: dict[str, Group] = {}
        self._numbered: dict[str, Group] = {}
        self._norms: set[str] = set()
        self._bare: set[str] = set()
        """Modules that only matter as the ones that made an output: an activation, a dropout."""
        self._unhooked: dict[tuple[str, int], dict[Slot, Glimpse]] = {}
        for path, part in self._parts.items():
            parent, _, name = path.rpartition(".")
            if match := _NUMBERED.match(name):
                key = f"{parent}.{match['group']}".strip(".")
                if key not in self._groups:
                    container = self._parts.get(key)
                    self._groups[key] = Group(key, container, self._visits, lineage)
                self._numbered[path] = group = self._groups[key]
                group.is_kept |= by_hand or group.is_list or any(part.children())
            elif is_norm(part):
                self._norms.add(path)
            elif path and not every and not (part._parameters or part._modules):
                self._bare.add(path)

    def watched(self, run: Callable[[], Any]) -> Watched:
        first = [
            (p, None, partial(self._unchanged, n))
            for n, p in self._parts.items()
            if p._forward_hooks
        ]
        hooks: list[Hook] = [
            (part, None, partial(self._after_bare, path))
            if path in self._bare
            else (part, partial(self._before, path), partial(self._after, path))
            for path, part in self._parts.items()
        ]
        try:
            with hooked(first, first=True), hooked(hooks):
                output = run()
        finally:
            self._forget_lineage()
        return Watched(self._groups, self._visits, self._made, self._unhooked, output)

    def _forget_lineage(self) -> None:
        if self._lineage is not None:
            self._lineage.forget()

    def _forget(self) -> None:
        """Begin anew: a run that failed may be run again."""
        self._forget_lineage()
        self._unhooked.clear()
        self._visits.forget()
        self._made.forget()
        for group in self._groups.values():
            group.forget()

    def _before(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        if not path:
            self._forget()
        with torch._C.DisableTorchFunction():  # whoever watches functions need not see ours
            self._visits.begin(path, part)
            if path in self._numbered:
                self._numbered[path].before(path, part, args, kwargs)
            elif path in self._norms and (taken := stream_input(args, kwargs)) is not None:
                for group in self._groups.values():
                    group.norm(path, taken)

    def _unchanged(self, path: str, part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """What a module gives before hooks of others can change it."""
        keep = path in self._numbered and self._numbered[path].is_kept
        given = {slot: Glimpse(tensor, keep) for slot, tensor in float_outputs(output)}
        self._unhooked[path, self._visits.counts[path] - 1] = given

    def _after_bare(self, path: str, part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        with torch._C.DisableTorchFunction():
            self._made.add(path, output)

    def _after(self, path: str, part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not path and self._lineage is not None:
            self._lineage.see(False)
        with torch._C.DisableTorchFunction():
            has_weights = bool(part._parameters or part._modules)
            self._visits.end(output, has_weights or path in self._norms)
            if path in self._numbered:
                self._numbered[path].after(path, output)
            if path:
                self._made.add(path, output)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same values: usually the very same tensor, sometimes a copy, a view or a cast of it."""
    if a is b:
        return True
    if a.shape != b.shape or a.device != b.device:
        return False
    return (a.dtype == b.dtype and a.data_ptr() == b.data_ptr()) or same_values(a, b)


def is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _form(tensor: torch.Tensor) -> Form:
    return tensor.shape, tensor.dtype
