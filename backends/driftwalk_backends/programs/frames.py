"""The operations of an exported graph, grouped by the modules that they were traced in.

An exported graph is flat; each operation notes the modules around it (`nn_module_stack`). A run of
operations of one module is a frame: what it takes from outside, and what others take of it.
Constants and roundings (`roundings`) belong to whoever uses them, and are computed there: so that
what a layer hands on is its state, and not a rounding of it for the next one.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from driftwalk.errors import UsageError

from .roundings import kind_of

CONSTANT = "constant"
_SKIPPED = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range")
"""Operations that check, and compute nothing."""
_GUARDS = "_guards_fn"


@dataclass(frozen=True)
class Ref:
    """What another operation gave."""

    name: str


@dataclass(frozen=True, eq=False)
class Op:
    """One operation; of a constant, `target` is where the program has it."""

    name: str
    target: Any
    args: Any
    kwargs: Any
    kind: str = ""
    """How it rounds (`roundings.kind_of`), or that it is a constant."""

    @property
    def needs(self) -> tuple[str, ...]:
        found: list[str] = []
        _each_ref((self.args, self.kwargs), found.append)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """One call of a module; copies of it are itself."""

    path: str
    steps: tuple[Op | Frame, ...]
    takes: tuple[str, ...]
    """What it is handed, in the order of first use."""
    gives: tuple[str, ...]
    """What others use of it, the latest first."""

    def __deepcopy__(self, memo: object) -> Frame:
        return self

    def frames(self) -> Iterator[Frame]:
        """All of them, this one last."""
        for step in self.steps:
            if isinstance(step, Frame):
                yield from step.frames()
        yield self

    def ops(self) -> Iterator[Op]:
        return (step for step in self.steps if isinstance(step, Op))


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """A whole program; copies of it are itself."""

    root: Frame
    late: Mapping[str, Op] = field(default_factory=dict)
    """Constants and roundings, computed by those who use them."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """By path: the class that the module had in the model."""

    def __deepcopy__(self, memo: object) -> Plan:
        return self

    def reached(self, names: Iterable[str]) -> Iterator[Op]:
        """The constants and roundings behind some values."""
        for name in names:
            if (op := self.late.get(name)) is not None:
                yield op
                yield from self.reached(op.needs)


def is_program(module: object) -> bool:
    """Whether it is one flat graph that torch.export made."""
    return isinstance(module, fx.GraphModule) and any(
        node.meta.get("nn_module_stack") for node in module.graph.nodes
    )


def planned(graph: fx.Graph) -> Plan:
    """The frames of a graph."""
    late: dict[str, Op] = {}
    steps: list[tuple[tuple[str, ...], Op]] = []
    around: tuple[str, ...] = ("",)
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or _is_check(node):
            continue
        op = _op(node)
        if op.kind or _is_of(node, late):
            late[op.name] = op
            continue
        around = _around(node) or around
        steps.append((around, op))
    end = next(node for node in graph.nodes if node.op == "output")
    given: list[str] = []
    _each_ref(_refs(end.args), given.append)
    kinds = {
        _path(path): _class(kind)
        for node in graph.nodes
        for path, kind in (node.meta.get("nn_module_stack") or {}).values()
    }
    return Plan(_Grouping(steps, late, given).root, late, kinds)


def _op(node: fx.Node) -> Op:
    if node.op == "get_attr":
        return Op(node.name, str(node.target), (), {}, CONSTANT)
    if node.op != "call_function":
        raise UsageError(
            f"The program calls {str(node.target)!r} ({node.op}), as torch.export's own do not."
        )
    return Op(node.name, node.target, _refs(node.args), _refs(node.kwargs), kind_of(node.target))


def _is_check(node: fx.Node) -> bool:
    """Whether it only looks whether something is so."""
    named = node.op == "call_module" and node.target == _GUARDS
    return named or any(str(node.target).startswith(f"aten.{name}") for name in _SKIPPED)


def _is_of(node: fx.Node, late: Mapping[str, Op]) -> bool:
    """Whether it takes one of several things that a rounding chose."""
    first = node.args[0] if node.args else None
    return node.target is operator.getitem and isinstance(first, fx.Node) and first.name in late


def _around(node: fx.Node) -> tuple[str, ...]:
    """The paths of the modules around an operation, the model itself first."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [_path(path) for path, _ in stack.values()]
    return tuple(dict.fromkeys(["", *paths])) if paths else ()


def _path(noted: object) -> str:
    return str(noted).removeprefix("L['self']").lstrip(".")


def _class(noted: object) -> str:
    name = noted.__name__ if isinstance(noted, type) else str(noted).rpartition(".")[2]
    return name if name.isidentifier() else ""


def _refs(value: Any) -> Any:
    turn: Any = fx.map_arg
    return turn(value, lambda node: Ref(node.name))


def _each_ref(value: Any, do: Any) -> None:
    if isinstance(value, Ref):
        do(value.name)
    elif isinstance(value, list | tuple):
        for item in value:
            _each_ref(item, do)
    elif isinstance(value, Mapping):
        for item in value.values():
            _each_ref(item, do)
    elif isinstance(value, slice):
        _each_ref((value.start, value.stop, value.step), do)


def resolved(value: Any, at: Any) -> Any:
    """Arguments with values in the place of references."""
    if isinstance(value, Ref):
        return at(value.name)
    if isinstance(value, list | tuple):
        return type(value)(resolved(item, at) for item in value)
    if isinstance(value, Mapping):
        return {name: resolved(item, at) for name, item in value.items()}
    if isinstance(value, slice):
        return slice(*(resolved(one, at) for one in (value.start, value.stop, value.step)))
    return value


class _Grouping:
    """Operations in order, into nested frames."""

    def __init__(
        self, steps: list[tuple[tuple[str, ...], Op]], late: dict[str, Op], given: list[str]
    ) -> None:
        self._steps, self._late = steps, late
        self._maker = {op.name: place for place, (_, op) in enumerate(steps)}
        self._users: dict[str, list[int]] = {}
        for place, (_, op) in enumerate(steps):
            for name in self._used(op.needs):
                self._users.setdefault(name, []).append(place)
        for name in self._used(given):
            self._users.setdefault(name, []).append(len(steps))
        self.root = self._frame(0, len(steps), 0)

    def _used(self, names: Iterable[str]) -> Iterator[str]:
        """The values behind names that are no constants and no roundings."""
        for name in names:
            if name in self._late:
                yield from self._used(self._late[name].needs)
            else:
                yield name

    def _frame(self, first: int, end: int, depth: int) -> Frame:
        path = self._steps[first][0][depth] if first < end and depth else ""
        made: list[Op | Frame] = []
        place = first
        while place < end:
            around, op = self._steps[place]
            if len(around) == depth + 1:
                made.append(op)
                place += 1
                continue
            after = place
            while after < end and self._steps[after][0][: depth + 2] == around[: depth + 2]:
                after += 1
            made.append(self._frame(place, after, depth + 1))
            place = after
        return Frame(path, tuple(made), self._takes(first, end), self._gives(first, end))

    def _takes(self, first: int, end: int) -> tuple[str, ...]:
        used = (name for _, op in self._steps[first:end] for name in self._used(op.needs))
        return tuple(dict.fromkeys(n for n in used if not first <= self._maker.get(n, -1) < end))

    def _gives(self, first: int, end: int) -> tuple[str, ...]:
        names = (op.name for _, op in reversed(self._steps[first:end]))
        return tuple(n for n in names if any(u >= end for u in self._users.get(n, ())))


def unchecked(graph: fx.GraphModule) -> fx.GraphModule:
    """A part of a program that is called as a whole, without what only checks."""
    made = copy.deepcopy(graph)
    for node in reversed(made.graph.nodes):
        if _is_check(node):
            made.graph.erase_node(node)
    made.recompile()
    return made


def fixed_sizes(graph: fx.Graph) -> dict[str, tuple[int | None, ...]]:
    """By input: the sizes that it was exported for; None for those that may be any."""
    found: dict[str, tuple[int | None, ...]] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            found[node.name] = tuple(n if isinstance(n, int) else None for n in value.shape)
    return found
