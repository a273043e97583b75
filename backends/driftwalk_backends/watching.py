"""One run of a model, watched: which numbered modules were called, with what, and what they gave.

Whether a call takes what the call before it gave is decided while the tensors are at hand: the very
same tensor or an equal one (`taken`), or, with a lineage, anything computed from it (`derived`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .lineage import Lineage
from .slots import Slot, call_tensors
from .tensors import float_outputs, is_float, same_values, stream_input, stream_slot

_NUMBERED = re.compile(r"(?P<group>.*?)(?P<number>\d+)\Z")

Form = tuple[torch.Size, torch.dtype]
Link = tuple[Slot, Slot]
"""A slot of the previous call's output, and the slot of this call's input that it went into."""


@dataclass
class Call:
    """One call of a numbered module, as seen from outside."""

    path: str
    kind: type
    stream: Slot
    """Where its first float tensor stands."""
    takes: dict[Slot, Form]
    taken: frozenset[Link]
    derived: frozenset[Link]
    gives: dict[Slot, Form] = field(default_factory=dict)
    order: int = 0


@dataclass
class Group:
    """Numbered siblings and their calls; tensors are kept so that their identity is certain."""

    path: str
    calls: list[Call] = field(default_factory=list)
    last: dict[Slot, torch.Tensor] = field(default_factory=dict)
    open: list[Call] = field(default_factory=list)
    norms: dict[tuple[int, Slot], str] = field(default_factory=dict)
    """Number of calls so far and a slot of the latest output -> the norm that took it."""
    later_norms: dict[tuple[int, Slot], str] = field(default_factory=dict)
    """The same for the first norm that took something computed from it, in its shape."""


def watch(
    module: nn.Module, run: Callable[[], Any], lineage: Lineage | None = None
) -> dict[str, Group]:
    """Run once with hooks on all numbered modules and all norms."""
    groups: dict[str, Group] = {}
    handles = []
    clock = iter(range(1 << 62))

    def before_block(path: str, group: Group) -> Callable[..., None]:
        def hook(block: nn.Module, args: Any, kwargs: Any) -> None:
            group.open.append(_begun(path, block, group, args, kwargs, lineage))

        return hook

    def after_block(path: str, group: Group) -> Callable[..., None]:
        def hook(block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            call, given = group.open.pop(), dict(float_outputs(output))
            if not call.takes or not given:
                return
            call.gives = {slot: _form(tensor) for slot, tensor in given.items()}
            call.order = next(clock)
            group.calls.append(call)
            group.last = given
            if lineage is not None:
                for slot, tensor in given.items():
                    lineage.mark(tensor, group.path, len(group.calls), slot, path)

        return hook

    def on_norm(path: str) -> Callable[..., None]:
        def hook(norm: nn.Module, args: Any, kwargs: Any) -> None:
            taken = stream_input(args, kwargs)
            if taken is None:
                return
            for group in groups.values():
                count = len(group.calls)
                for slot, last in group.last.items():
                    if same(last, taken):
                        group.norms.setdefault((count, slot), path)
                    if lineage is not None and _form(last) == _form(taken):
                        call, slots = lineage.of(taken).get(group.path, (0, frozenset()))
                        if call == count and slot in slots and not group.open:
                            group.later_norms.setdefault((count, slot), path)

        return hook

    for path, part in module.named_modules():
        parent, _, name = path.rpartition(".")
        match = _NUMBERED.match(name)
        if match:
            key = f"{parent}.{match['group']}".strip(".")
            group = groups.setdefault(key, Group(key))
            before, after = before_block(path, group), after_block(path, group)
            handles.append(part.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(part.register_forward_hook(after, with_kwargs=True))
        elif is_norm(part):
            handles.append(part.register_forward_pre_hook(on_norm(path), with_kwargs=True))
    try:
        with lineage or nullcontext():
            run()
    finally:
        for handle in handles:
            handle.remove()
        for group in groups.values():
            group.last = {}
    return groups


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same values: usually the very same tensor, sometimes a copy, a view or a cast of it."""
    if a is b:
        return True
    kinds = [(t.shape, t.dtype, t.device) for t in (a, b)]
    same_memory = kinds[0] == kinds[1] and a.data_ptr() == b.data_ptr()
    return same_memory or same_values(a, b)


def is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _begun(
    path: str, block: nn.Module, group: Group, args: Any, kwargs: Any, lineage: Lineage | None
) -> Call:
    taken, derived = set(), set()
    inputs = {slot: item for slot, item in call_tensors(args, kwargs) if is_float(item)}
    count = len(group.calls)
    for slot, tensor in inputs.items():
        taken |= {(given, slot) for given, last in group.last.items() if same(last, tensor)}
        if lineage is not None and count:
            call, slots = lineage.of(tensor).get(group.path, (0, frozenset()))
            forms = {given: _form(last) for given, last in group.last.items()}
            if call == count:
                derived |= {(s, slot) for s in slots if forms.get(s) == _form(tensor)}
    return Call(
        path,
        type(block),
        stream_slot(args, kwargs) or (),
        {slot: _form(tensor) for slot, tensor in inputs.items()},
        frozenset(taken),
        frozenset(derived),
    )


def _form(tensor: torch.Tensor) -> Form:
    return tensor.shape, tensor.dtype
