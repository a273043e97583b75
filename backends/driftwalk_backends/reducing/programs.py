"""Operations of a torch module as a graph: what a cut is made of, and how it runs.

The module is traced by torch's own tracer, as in `driftwalk extract`: what is left of it are calls
of `torch.ops.aten` and tensors. None of its code is in them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from ..bundles.layer_code import TracedLayer, needed
from ..tensors import from_numpy, to_numpy
from .cuts import Cut, Cutting, Place

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SIZES = re.compile(r"SymInt\S* (\w+)")


@dataclass(frozen=True)
class Ref:
    """A tensor that an operation takes, by its name."""

    name: str


@dataclass(frozen=True, eq=False)
class Operation:
    """One call of an operation."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: tuple[str, ...]
    attribute: tuple[Any, ...] = ()
    """Nodes of ONNX have some."""

    @cached_property
    def input(self) -> tuple[str, ...]:
        return tuple(ref.name for ref in _refs((self.args, dict(self.kwargs))))

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.input

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.output

    @property
    def op_type(self) -> str:
        if self.target is operator.getitem:
            return "getitem"
        return str(self.target).removeprefix("aten.").partition(".")[0]

    op = op_type

    @property
    def told(self) -> dict[str, Any]:
        """Its arguments by their places, or names."""
        return {str(place): arg for place, arg in enumerate(self.args)} | dict(self.kwargs)

    def changed(self, change: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments, each single value changed."""
        made = tuple(_mapped(arg, change) for arg in self.args)
        return made, {key: _mapped(value, change) for key, value in self.kwargs.items()}

    def resized(self, number: Callable[[int], int]) -> Operation:
        """With other sizes; numbers of axes and indices stay."""
        if self.target is operator.getitem:
            return self
        sizes = set(_SIZES.findall(str(self.target._schema).partition("->")[0]))
        names = [argument.name for argument in self.target._schema.arguments]

        def sized(name: str, value: Any) -> Any:
            whole = type(value) is int or isinstance(value, list | tuple)
            return _mapped(value, lambda v: _whole(v, number)) if name in sizes and whole else value

        return replace(
            self,
            args=tuple(sized(name, arg) for name, arg in zip(names, self.args, strict=False)),
            kwargs={name: sized(name, value) for name, value in self.kwargs.items()},
        )


def _whole(value: Any, number: Callable[[int], int]) -> Any:
    return number(value) if type(value) is int else value


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return change(value)


def _refs(value: Any) -> Iterable[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _refs(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _refs(item)


@dataclass(frozen=True, eq=False)
class TorchCut(Cut):
    """Some operations, and what they are given."""

    def resized(self, number: Callable[[int], int]) -> TorchCut:
        return replace(self, nodes=tuple(node.resized(number) for node in self.nodes))

    @property
    def constants(self) -> dict[Place, float]:
        """Numbers that its operations are told."""
        return {
            (i, name): value
            for i, node in enumerate(self.nodes)
            for name, value in node.told.items()
            if type(value) is float
        }

    def with_constants(self, changed: Mapping[Place, float]) -> TorchCut:
        made = []
        for i, node in enumerate(self.nodes):
            new = {name: value for (at, name), value in changed.items() if at == i}
            args = tuple(new.get(str(place), arg) for place, arg in enumerate(node.args))
            kwargs = {name: new.get(name, value) for name, value in node.kwargs.items()}
            made.append(replace(node, args=args, kwargs=kwargs))
        return replace(self, nodes=tuple(made))

    def tensors(self, device: torch.device) -> dict[str, torch.Tensor]:
        arrays = {**self.stored, **self.given}
        return {name: from_numpy(array, device) for name, array in arrays.items()}


def ran(
    nodes: Sequence[Operation],
    tensors: Mapping[str, torch.Tensor],
    output: str,
    each: Callable[[str, Any], Any] | None = None,
) -> Any:
    """Run operations in order; `each` may look at, and change, what one gives."""
    values: dict[str, Any] = dict(tensors)
    for node in nodes:
        args, kwargs = node.changed(lambda v: values[v.name] if isinstance(v, Ref) else v)
        made = node.target(*args, **kwargs)
        (name,) = node.output
        values[name] = made if each is None else each(name, made)
    return values[output]


def widened(node: Operation) -> Operation:
    """The same in float64: no operation is told to give anything narrower."""

    def wide(value: Any) -> Any:
        narrow = isinstance(value, torch.dtype) and value in FLOATS
        return torch.float64 if narrow else value

    args, kwargs = node.changed(wide)
    return replace(node, args=args, kwargs=kwargs)


@dataclass(frozen=True)
class _Named:
    name: str


class Program:
    """All operations behind a point, as `Cutting` wants a graph."""

    def __init__(self, layer: TracedLayer) -> None:
        graph = layer.graph.graph
        wanted = needed(graph)
        self.weights: dict[str, Array] = {}
        self.nodes: list[Operation] = []
        names: dict[Node, str] = {}
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for node, name in zip(placeholders, layer.inputs, strict=True):
            names[node] = f"input {name}"
        for node in (node for node in graph.nodes if node in wanted):
            if node.op == "get_attr":
                tensor = getattr(layer.graph, str(node.target))
                names[node] = layer.paths.get(id(tensor), f"constant {node.target}")
                self.weights[names[node]] = _plain(tensor)
            elif node.op == "call_function":
                names[node] = f"{node.name}"
                self.nodes.append(_operation(node, names))
            elif node.op == "output":
                self.output = names[node.args[0]]
        self.inputs = [_Named(names[node]) for node in placeholders if node in wanted]
        self.producers = {node.output[0]: i for i, node in enumerate(self.nodes)}

    def stored(self, name: str) -> Array | None:
        return self.weights.get(name)


def _plain(tensor: torch.Tensor) -> Array:
    if tensor.is_floating_point() and tensor.dtype not in FLOATS:
        raise BackendError(f"a tensor of {tensor.dtype} cannot be taken out of the module.")
    return to_numpy(tensor.detach())


def _operation(node: Node, names: Mapping[Node, str]) -> Operation:
    target = node.target
    ours = isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims")
    if target is not operator.getitem and not ours:
        raise BackendError(f"the operation {target} cannot be taken out of the module.")

    def named(value: Any) -> Any:
        return Ref(names[value]) if isinstance(value, Node) else value

    args = tuple(_mapped(arg, named) for arg in node.args)
    kwargs = {key: _mapped(value, named) for key, value in node.kwargs.items()}
    return Operation(target, args, kwargs, (names[node],))


class ProgramCutting(Cutting):
    """Makes cuts of a program whose tensors' values are known."""

    def __init__(self, program: Program, given: Mapping[str, Array], device: torch.device) -> None:
        self.graph: Any = program
        values: dict[str, Array] = dict(given)

        def keep(name: str, made: Any) -> Any:
            if isinstance(made, torch.Tensor) and made.dtype in (*FLOATS, torch.int64, torch.bool):
                values[name] = to_numpy(made)
            return made

        arrays = {**program.weights, **given}
        tensors = {name: from_numpy(array, device) for name, array in arrays.items()}
        with torch.no_grad():
            ran(program.nodes, tensors, program.output, keep)
        self.values = values
        fixed = {value.name for value in program.inputs}
        for node in program.nodes:
            if fixed & set(node.inputs):
                fixed |= set(node.outputs)
        self.is_constant = lambda name: name not in fixed

    def cut(
        self, nodes: Iterable[int], output: str, given: Mapping[str, Array] | None = None
    ) -> TorchCut:
        wanted, loose = self._behind(output, set(nodes))
        arrays = {name: np.asarray(self.value(name)) for name in loose}
        stored = {name: array for name, array in arrays.items() if self.is_constant(name)}
        fed = {name: array for name, array in arrays.items() if name not in stored}
        kept = tuple(node for i, node in enumerate(self.graph.nodes) if i in wanted)
        return TorchCut(kept, stored, fed, output, (), 0)
