"""A flat program as modules again: its layers can be hooked, replaced and looked into.

Without anybody who looks, the program runs as it was given.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx._pytree as fx_pytree
import torch.utils._pytree as pytree
from torch import fx, nn

from driftwalk.errors import ProbeError, UsageError

from .frames import CONSTANT, Frame, Op, Plan, fixed_sizes, planned, resolved, unchecked
from .roundings import CHOOSES, bound, in_float

AS_IT_IS, DECLARED, UNROUNDED = "as it is", "declared", "unrounded"


class Part(nn.Module):
    """The operations of one module; each call of it in the program is a frame."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan
        self._running: Frame = plan.root
        self._held: dict[str, str] = {}
        """What the program calls a constant -> what it is called here."""
        self.weights: dict[str, str] = {}
        """A rounded weight, by the operation that reads it -> the same in float, here."""
        self.mode = AS_IT_IS
        self.like: torch.Tensor
        """In the dtype that the program computes in, once it is in float."""
        self.register_buffer("like", torch.ones(()), persistent=False)

    def hold(self, target: str, tensor: torch.Tensor | nn.Module, path: str) -> None:
        """Keep a constant of the program's: by its own name, where it is of this module."""
        if target in self._held:
            return
        own = target.removeprefix(f"{path}.") if path else target
        name = own.replace(".", "_")
        while hasattr(self, name):
            name += "_"
        if isinstance(tensor, nn.Module):
            self.add_module(name, tensor)
        elif isinstance(tensor, nn.Parameter):
            self.register_parameter(name, tensor)
        else:
            self.register_buffer(name, tensor)
        self._held[target] = name

    @property
    def plan(self) -> Plan:
        return self._plan

    def put(self, name: str, as_name: str, weight: Any) -> None:
        """Use a float weight in the place of a stored one, by the operation that reads it."""
        self.register_parameter(as_name, nn.Parameter(weight.detach(), requires_grad=False))
        self.weights[name] = as_name

    def constant(self, op: Op) -> torch.Tensor:
        """What an operation on constants alone gives."""
        made: torch.Tensor = self._late(op, lambda name: self.constant(self._plan.late[name]))
        return made

    def step_of(self, read: Op) -> torch.Tensor:
        """The step by which an operation reads constants."""
        given = bound(read.target, read.args, read.kwargs)
        step = resolved(
            given["scales"] if "scales" in given else given["scale"],
            lambda name: self.constant(self._plan.late[name]),
        )
        return torch.as_tensor(step, dtype=torch.float64)

    def forward(self, *given: Any) -> Any:
        frame = self._running
        values = self._ran(frame, dict(zip(frame.takes, given, strict=True)))
        made = tuple(values[name] for name in frame.gives)
        return made[0] if len(made) == 1 else made

    def _ran(self, frame: Frame, values: dict[str, Any]) -> dict[str, Any]:
        def at(name: str) -> Any:
            if name not in values:
                values[name] = self._late(self._plan.late[name], at)
            return values[name]

        for step in frame.steps:
            if isinstance(step, Op):
                values[step.name] = step.target(
                    *resolved(step.args, at), **resolved(step.kwargs, at)
                )
                continue
            inner = self.get_submodule(step.path.removeprefix(f"{frame.path}.").lstrip("."))
            inner._running = step  # type: ignore[assignment]
            made = inner(*(at(name) for name in step.takes))
            values |= zip(step.gives, made if len(step.gives) != 1 else (made,), strict=True)
        return values

    def _late(self, op: Op, at: Any) -> Any:
        """A constant, or what rounds."""
        if op.kind == CONSTANT:
            return getattr(self, self._held[op.target])
        if op.name in self.weights:
            return getattr(self, self.weights[op.name])
        args, kwargs = resolved(op.args, at), resolved(op.kwargs, at)
        if self.mode == AS_IT_IS or not op.kind:
            return op.target(*args, **kwargs)
        if self.mode == DECLARED or not args[0].is_floating_point():
            return in_float(op.target, args, kwargs, self.like.dtype)
        return (args[0], args[0]) if op.kind == CHOOSES else args[0]  # nothing is rounded


class Program(Part):
    """All of a program. Subclasses have the signature of what was exported."""

    def __init__(self, graph: fx.GraphModule, plan: Plan) -> None:
        super().__init__(plan)
        self._whole = _Uncopied(graph)
        self._sizes = fixed_sizes(graph.graph)
        self._inputs = tuple(n.name for n in graph.graph.nodes if n.op == "placeholder")
        self._ends = tuple(
            _Named(end.name) if isinstance(end, fx.Node) else end for end in _ends(graph)
        )

    def run(self, named: dict[str, Any]) -> Any:
        flat = self._flat(named)
        self._check(flat)
        if self.mode == AS_IT_IS and not any(_is_watched(part) for part in self.modules()):
            positions, others = self._as_exported(named)
            return self._whole.graph(*positions, **others)
        values = self._ran(self._plan.root, dict(flat))

        def at(name: str) -> Any:
            if name not in values:
                values[name] = self._late(self._plan.late[name], at)
            return values[name]

        ends = [at(one.name) if isinstance(one, _Named) else one for one in self._ends]
        return (
            ends[0]
            if self._whole.outputs is None
            else pytree.tree_unflatten(ends, self._whole.outputs)
        )

    def _as_exported(self, named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """By place and by name, as the program was exported with: it takes them no other way."""
        if self._whole.inputs is None:
            return [], named
        by_place, by_name = self._whole.inputs.children()
        positions = [named[name] for name in list(named)[: by_place.num_children]]
        return positions, {name: named[name] for name in (by_name.context or ())}

    def _flat(self, named: dict[str, Any]) -> dict[str, Any]:
        """By the name that the graph has for it."""
        if self._whole.inputs is None:
            return named
        leaves = fx_pytree.tree_flatten_spec(self._as_exported(named), self._whole.inputs)
        return dict(zip(self._inputs, leaves, strict=True))

    def _check(self, flat: Mapping[str, Any]) -> None:
        for name, sizes in self._sizes.items():
            shape = tuple(getattr(flat.get(name), "shape", ()))
            if len(shape) != len(sizes) or any(
                size is not None and size != n for size, n in zip(sizes, shape, strict=True)
            ):
                wanted = ", ".join("any" if size is None else str(size) for size in sizes)
                raise ProbeError(
                    f"The program was exported for {name} of size [{wanted}], and was given "
                    f"{list(shape)}: give a probe of that size, or export it with dynamic_shapes."
                )


class _Uncopied:
    """What was given, which copies do not copy."""

    __slots__ = ("graph", "inputs", "outputs")

    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph = graph
        self.inputs, self.outputs = _specs(graph)

    def __deepcopy__(self, memo: object) -> _Uncopied:
        return self


class _Named(str):
    """The name of a value among a program's outputs."""

    @property
    def name(self) -> str:
        return str(self)


def nested(graph: fx.GraphModule) -> Program:
    """The program's modules, by the paths that they had in the model."""
    plan = planned(graph.graph)
    made = _class_for(graph)(graph, plan)
    parts: dict[str, Part] = {"": made}
    for frame in plan.root.frames():
        _held(graph, plan, frame, _part(parts, frame.path, plan))
    paths = sorted((path for path in parts if path), key=lambda path: path.count("."))
    for path in paths:
        above, _, name = path.rpartition(".")
        _container(made, above, parts).add_module(name, parts[path])
    return made.eval()


def _part(parts: dict[str, Part], path: str, plan: Plan) -> Part:
    if path not in parts:
        name = plan.kinds.get(path) or Part.__name__  # by their names norms are known
        parts[path] = type(name, (Part,), {"__module__": Part.__module__})(plan)
    return parts[path]


def _container(root: nn.Module, path: str, parts: dict[str, Part]) -> nn.Module:
    """The module at a path; lists that hold modules are made up."""
    at = root
    for place, name in enumerate(names := path.split(".") if path else []):
        below = at._modules.get(name)
        if below is None:
            below = parts.get(".".join(names[: place + 1])) or nn.ModuleList()
            at.add_module(name, below)
        at = below
    return at


def _held(graph: fx.GraphModule, plan: Plan, frame: Frame, part: Part) -> None:
    needs = [name for op in frame.ops() for name in op.needs]
    if not frame.path:
        needs += [end.name for end in _ends(graph) if isinstance(end, fx.Node)]
    for op in plan.reached(needs):
        if op.kind == CONSTANT:
            part.hold(op.target, _attribute(graph, op.target), frame.path)


def _attribute(graph: fx.GraphModule, target: str) -> torch.Tensor | nn.Module:
    """A tensor; or what the program calls as a whole, without gradients, say."""
    found: Any = graph
    for name in target.split("."):
        found = getattr(found, name)
    if isinstance(found, fx.GraphModule):
        return unchecked(found)
    if not isinstance(found, torch.Tensor):
        raise UsageError(f"The program holds {target}, a {type(found).__name__}.")
    return found


def _ends(graph: fx.GraphModule) -> list[Any]:
    """The outputs, one after the other."""
    return _leaves(next(node for node in graph.graph.nodes if node.op == "output").args)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _specs(graph: fx.GraphModule) -> tuple[Any, Any]:
    """How inputs and outputs are taken apart; None where they are not."""
    found = getattr(graph.graph._codegen, "pytree_info", None)
    return (None, None) if found is None else (found.in_spec, found.out_spec)


def _is_watched(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks)


def _class_for(graph: fx.GraphModule) -> type[Program]:
    """A program with a forward that takes what the exported one does."""
    constants = {
        node.name: node.meta["val"]
        for node in graph.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), bool | int | float | str)
    }
    own = list(inspect.signature(graph.forward).parameters.values())
    parameters = [
        one.replace(default=constants[one.name]) if one.name in constants else one for one in own
    ]
    signature = inspect.Signature(parameters)

    def forward(self: Program, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return self.run(dict(given.arguments))

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    forward.__signature__ = inspect.Signature([itself, *parameters])  # type: ignore[attr-defined]
    return type("Program", (Program,), {"forward": forward, "__module__": Program.__module__})
