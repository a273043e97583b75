"""One layer of a torch model as plain Python: what it computes, op by op, without the model's code.

The model runs once under torch's tracer with given states in place of its own, just as in a replay.
Of all that was traced, only what the wanted point needs is kept. The result is text that calls
nothing but `torch.ops.aten`, and arrays: no pickle, and a reader sees every operation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.states import Point, Probe

from ..calls import call_as_it_is, first_line, own_copies, quietly
from ..hooks import capture
from ..randomness import begin_alike
from ..tensors import from_numpy
from ..torch_runtime import TorchRuntime

_HEAD = '''"""One layer, as PyTorch ran it: traced for these inputs, one line an operation."""

import torch


def layer(weights, inputs):
'''
_WORDS = (torch.dtype, torch.layout, torch.memory_format)


@dataclass(frozen=True, eq=False)
class LayerCode:
    """A module with one function, `layer(weights, inputs)`, and what to call it with."""

    source: str
    weights: Mapping[str, torch.Tensor]
    names: Mapping[str, str]
    """What a weight is called in the model, where it is a parameter or a buffer of it."""
    inputs: tuple[str, ...]
    """States by the name of their point, the rest by the name of the probe's input."""
    device: str


@dataclass(frozen=True, eq=False)
class TracedLayer:
    """A layer as torch's tracer saw it: operations, and the names of what it is given."""

    graph: GraphModule
    inputs: tuple[str, ...]
    """Of all placeholders, in order: inputs of the probe, then states by their points."""
    paths: Mapping[int, str]
    """The names of parameters and buffers, by the id of the tensor."""


def layer_code(
    backend: TorchRuntime, probe: Probe, given: Mapping[str, Array], point: str
) -> LayerCode:
    """What this backend's model makes at `point` of the given states."""
    traced = traced_layer(backend, probe, given, point)
    source, weights, used = _Writer(traced.graph, traced.inputs).write()
    names = {key: traced.paths[id(t)] for key, t in weights.items() if id(t) in traced.paths}
    return LayerCode(source, weights, names, used, str(backend._device))


def traced_layer(
    backend: TorchRuntime,
    probe: Probe,
    given: Mapping[str, Array],
    point: str,
    pure: bool = False,
) -> TracedLayer:
    """The operations behind `point`; `pure` ones write into no tensor."""
    module, device = backend._open(), backend._device
    with quietly(module):
        inputs = backend._inputs(module, probe)
        layout = backend._find_layout(module, inputs)
        taken = {name: from_numpy(array, device) for name, array in probe.inputs.items()}
        states = {name: from_numpy(array, device) for name, array in given.items()}
        clashing = inputs.keys() & states.keys()
        if clashing:
            raise BackendError(f"The model has an input and a point of one name: {min(clashing)}.")

        def run(*tensors: torch.Tensor) -> torch.Tensor:
            made: dict[str, torch.Tensor] = {}
            named = dict(zip((*taken, *states), tensors, strict=True))

            def exchange(seen: Point, tensor: torch.Tensor) -> torch.Tensor | None:
                if seen.name == point:
                    made[point] = tensor.clone()
                instead = named.get(seen.name) if seen.name in states else None
                fits = instead is not None and instead.shape == tensor.shape
                return instead.to(tensor.dtype) if fits and instead is not None else None

            cast = {n: named[n].to(inputs[n].dtype) for n in taken}
            others = own_copies({n: value for n, value in inputs.items() if n not in taken})
            begin_alike()
            with backend._arithmetic(), capture(module, layout, exchange) as finish:
                finish(call_as_it_is(module, others | cast))
            if point not in made:
                raise BackendError(f"{backend.spec} has no point {point!r}.")
            return made[point]

        made_of = (*taken.values(), *states.values())
        graph = _traced(run, made_of)
        if pure:  # of what was traced: code of a model reads values, which this does not let it
            graph = _traced(torch.func.functionalize(graph), made_of)
    paths = {id(t): name for name, t in (*module.named_buffers(), *module.named_parameters())}
    return TracedLayer(graph, (*taken, *states), paths)


def _traced(run: Callable[..., torch.Tensor], tensors: tuple[torch.Tensor, ...]) -> GraphModule:
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    # Without a mode that is there already the tracer makes one for every node, which takes longer
    # than all the rest.
    shapes = TracingContext(FakeTensorMode(allow_fallback_kernels=True))
    try:
        # Values read on the way (which experts, how long) are in the code: it is for these inputs.
        with tracing(shapes):
            return make_fx(run, _error_on_data_dependent_ops=False)(*tensors)
    except BackendError:
        raise
    except Exception as error:  # the tracer raises whatever any of its parts raises
        raise BackendError(
            f"The layer cannot be written down: {type(error).__name__}: {first_line(error)}"
        ) from error


class _Writer:
    """Writes the part of a graph that its output needs."""

    def __init__(self, module: GraphModule, inputs: tuple[str, ...]) -> None:
        self._module = module
        self._needed = needed(module.graph)
        self._inputs = inputs
        self._names: dict[Node, str] = {}
        self._weights: dict[int, tuple[str, torch.Tensor]] = {}

    def write(self) -> tuple[str, dict[str, torch.Tensor], tuple[str, ...]]:
        """The code, its weights, and which of the inputs it takes."""
        lines: list[str] = []
        used: list[str] = []
        placeholders = [node for node in self._module.graph.nodes if node.op == "placeholder"]
        for node, name in zip(placeholders, self._inputs, strict=True):
            if node in self._needed:
                self._names[node] = f"inputs[{len(used)}]"
                used.append(name)
        for node in self._module.graph.nodes:
            if node in self._needed and node.op != "placeholder":
                lines += self._line(node)
        source = _HEAD + "".join(f"    {line}\n" for line in lines)
        return source, dict(self._weights.values()), tuple(used)

    def _line(self, node: Node) -> list[str]:
        if node.op == "output":
            return [f"return {self._text(node.args[0])}"]
        if node.op == "get_attr":
            tensor = getattr(self._module, str(node.target))
            key, _ = self._weights.setdefault(id(tensor), (f"w{len(self._weights)}", tensor))
            self._names[node] = f'weights["{key}"]'
            return []
        if node.target is operator.getitem:
            value = f"{self._text(node.args[0])}[{self._text(node.args[1])}]"
        else:
            named = [f"{key}={self._text(given)}" for key, given in node.kwargs.items()]
            arguments = ", ".join([*map(self._text, node.args), *named])
            value = f"{_function(node)}({arguments})"
        self._names[node] = name = f"v{len(self._names)}"
        return [f"{name} = {value}"]

    def _text(self, value: Any) -> str:
        """A constant of a kind that is known to be harmless; nothing else becomes code."""
        if isinstance(value, Node):
            return self._names[value]
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(self._text, value)) + "]"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if value is None or type(value) in (bool, int, float, str):
            return repr(value)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, _WORDS):
            return str(value)
        raise BackendError(f"The layer cannot be written down: it uses a {type(value).__name__}.")


def _function(node: Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims"):
        return f"torch.ops.{target}"
    raise BackendError(f"The layer cannot be written down: it calls {target}.")


def needed(graph: Graph) -> set[Node]:
    """The nodes that the output depends on, writes in place to any of their tensors included."""
    writers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if _writes(node):
            writers.setdefault(_owner(node), []).append(node)
    reached: set[Node] = set()
    waiting = [node for node in graph.nodes if node.op == "output"]
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += [*node.all_input_nodes, *writers.get(_owner(node), ())]
    return reached


def _owner(node: Node) -> Node:
    """The node that made the memory a node looks at: views and writes look at their first input."""
    while node.all_input_nodes and (_views(node) or _writes(node)):
        node = node.all_input_nodes[0]
    return node


def _views(node: Node) -> bool:
    is_op = isinstance(node.target, torch._ops.OpOverload)
    return node.target is operator.getitem or (is_op and node.target.is_view)  # type: ignore[union-attr]


def _writes(node: Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable
