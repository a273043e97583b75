"""The reference's graph on the candidate's own tensors: what each node makes of what it was given.

Every tensor that both graphs have is a *cut*: whatever takes it takes the candidate's numbers, and
what the reference's nodes make of them stands beside what the candidate made. The same is run
again with noise at every float tensor in between: that is how far honest arithmetic may stray.

Kernels differ in the order of their sums, in what they fuse, and in the series that they take a
function from. So every tensor that a node makes is moved by a few units of roundoff of its own
size; functions that are computed as `0.5 + ...` or `1 - ...` by a few units of 1, however near zero
they end; and activations of the kind `x * gate(x)` by a few units of x. What numbers are rounded
to, counted or compared by is left alone: a step there is no noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from driftwalk.dtypes import FORMATS, Array, format_of
from driftwalk.errors import BackendError
from driftwalk.graphs.own_doing import Grid, Replayed, near_softmax, noise_of
from driftwalk.judge.constants import HALF_WAY
from driftwalk.states import Probe

from ...constants import NOISE_SEEDS
from ..graph import COPIES, FLOATS, Arrays, Node, OnnxGraph, inferred, uses
from .plan import MOST_BYTES, grouped, sizes
from .runtime import GraphRuntime

_WHOLE = ("QuantizeLinear", "QLinear", "Integer")
"""In the names of operations that give whole numbers which stand for floats."""
_ROUNDS_INSIDE = ("QLinear", "DynamicQuantizeLinear")
_SHARES = 6
"""Copies of a group of tensors that are held at once: both sides', replayed, shaken twice."""
MADE = "driftwalk made: "
"""Before the name of a cut, for what the reference makes of it; the bare name is what is given."""
_OF_ONE = {"Sigmoid", "HardSigmoid", "Tanh", "Erf", "Softmax", "LogSoftmax", "Softplus", "Elu"}
_OF_ONE |= {"Celu", "Selu", "Softsign", "Sin", "Cos", "LSTM", "GRU", "RNN", "Log"}
_OF_ONE |= {"If", "Loop", "Scan"}
"""Computed from terms of size 1, so that a result near zero is no more exact than 1 is."""
_OF_INPUT = {"Gelu", "HardSwish", "Swish", "Mish", "QuickGelu", "FastGelu", "BiasGelu"}
"""Computed as a product or sum with the input, so that a result near zero is as exact as that."""
_DISCRETE = {"QuantizeLinear", "DynamicQuantizeLinear", "Floor", "Ceil", "Round", "Resize", "Mod"}
_DISCRETE |= {"ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "Equal", "Less", "Greater", "Sign"}
_DISCRETE |= {"LessOrEqual", "GreaterOrEqual", "Range", "Upsample", "Unique", "Hardmax", "OneHot"}
_DISCRETE |= {"GridSample", "ThresholdedRelu", "Shrink"}
"""Where a little more or less may be something else altogether."""
_NOISE = {number: noise_of(FORMATS[name]) for number, name in FLOATS.items()}
_FLOAT, _WIDE = 1, (1, 11)


class Replay:
    """One pair of graphs on one probe, cut at every tensor that both have."""

    def __init__(self, reference: GraphRuntime, candidate: GraphRuntime, probe: Probe) -> None:
        self._reference = reference
        self._candidate = candidate
        self._probe = probe
        self.graph: OnnxGraph = reference.graph
        self._feed = reference.feed(probe)
        self._sizes = sizes(reference, probe)
        self._kept: dict[str, tuple[Array, Array]] = {}
        self.cuts = self._cuts()

    def __iter__(self) -> Iterator[Replayed]:
        """All cuts in topological order; what cannot be replayed is left out."""
        order = self.graph.producers
        for group in self._grouped(sorted(self.cuts, key=lambda name: order[name])):
            yield from self._replayed(group)

    def _cuts(self) -> dict[str, str]:
        """The tensors of the reference that the candidate has too, in the same shape."""
        partners: dict[str, str] = {}
        floats = {*self.graph.floats, *(value.name for value in self.graph.outputs)}
        theirs = {*self._candidate.left, *(v.name for v in self._candidate.graph.outputs)}
        for name, (here, _) in self._reference.partners.items():
            there, _ = self._candidate.partners.get(name, ("", ""))
            whole = any(word in self.graph.op_of(here) for word in _WHOLE)
            if here in self.graph.producers and there in theirs and (here in floats or whole):
                partners[here] = there
        alike: dict[str, str] = {}
        groups = self._grouped(partners)
        for group in groups:
            fetched = self._fetched(group, partners)
            both = {n: pair for n, pair in fetched.items() if pair[0].shape == pair[1].shape}
            alike |= {n: partners[n] for n in both}
            if len(groups) == 1:
                self._kept = both
        return alike

    def _grouped(self, names: Iterable[str]) -> list[list[str]]:
        return grouped(names, self._sizes, 2 * MOST_BYTES // _SHARES)

    def _fetched(
        self, names: Sequence[str], partners: Mapping[str, str]
    ) -> dict[str, tuple[Array, Array]]:
        """Some tensors as both sides have them, under the reference's names."""
        mine, _ = self._reference.tensors(self._probe, names, whole=True)
        asked = [partners[name] for name in names]
        theirs, _ = self._candidate.tensors(self._probe, asked, whole=True)
        both = [n for n in names if n in mine and partners[n] in theirs]
        return {n: (mine[n], theirs[partners[n]]) for n in both}

    def _replayed(self, targets: list[str]) -> Iterator[Replayed]:
        nodes, taken = self._segment(targets)
        wanted = list(dict.fromkeys([*taken, *targets]))
        values = self._kept or self._fetched(wanted, self.cuts)
        targets = [name for name in targets if name in values]
        given = {name: values[name][1].astype(values[name][0].dtype, copy=False) for name in taken}
        feed = given | self._feed
        outputs = [*(MADE + name for name in targets), *self._before_rounding(targets, nodes)]
        model = self._model(nodes, given, outputs)
        plain = self._reference.once(model, outputs, feed)
        still = _steady(self.graph)
        noisy = _with_noise(model, still | {MADE + n for n in still})
        draws = []
        for seed in NOISE_SEEDS:
            moved = _shaken(feed, still, seed)
            try:
                draws.append(self._reference.once(noisy(seed), outputs, moved))
            except BackendError:  # noise after an operation that the runtime will not have there
                draws.append(self._reference.once(model, outputs, moved))
        known = self._feed | plain | given
        for name in targets:
            mine, theirs = values[name]
            yield Replayed(
                tensor=name,
                reference=mine,
                candidate=theirs,
                made=plain[MADE + name],
                shaken=tuple(d[MADE + name] for d in draws),
                grid=self._grid(name, known, draws),
                rounds=any(word in self.graph.op_of(name) for word in _ROUNDS_INSIDE),
            )

    def _segment(self, targets: Iterable[str]) -> tuple[list[Node], list[str]]:
        """The nodes between some cuts and those before them, and which cuts they take."""
        producers, nodes = self.graph.producers, self.graph.nodes
        waiting, seen = [producers[name] for name in targets], set[int]()
        given: dict[str, None] = {}
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            for name in nodes[number].inputs:
                if name in self.cuts:
                    given[name] = None
                elif name in producers:
                    waiting.append(producers[name])
        return [nodes[number] for number in sorted(seen)], list(given)

    def _model(self, nodes: Sequence[Node], given: Arrays, outputs: list[str]) -> Any:
        """The nodes of a segment as a graph of its own; weights beside the graph stay there."""
        from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

        whole, made = self.graph.proto.graph, self.graph.emptied("replay", outputs)
        for item in nodes:
            node = made.graph.node.add()
            node.CopyFrom(item.proto)
            for place, name in enumerate(node.output):
                if name in self.cuts:
                    node.output[place] = MADE + name
        used = {name for item in nodes for name in item.inputs}
        weights = self.graph.weights
        made.graph.initializer.extend(t for name, t in weights.items() if name in used)
        made.graph.sparse_initializer.extend(whole.sparse_initializer)
        made.graph.input.extend(v for v in whole.input if v.name in used and v.name not in weights)
        for name, array in given.items():
            kind = np_dtype_to_tensor_dtype(array.dtype)
            made.graph.input.append(make_tensor_value_info(name, kind, array.shape))
        return made

    def _before_rounding(self, targets: Iterable[str], nodes: Sequence[Node]) -> list[str]:
        """Tensors made by these nodes that tell what a rounding node was given."""
        made = {name for node in nodes for name in node.outputs if name}
        rounding = [node for node in map(self._rounding, targets) if node is not None]
        wanted = (name for node in rounding for name in node.input)
        return list(dict.fromkeys(n for n in wanted if n in made and n not in self.cuts))

    def _rounding(self, name: str) -> Any:
        """The QuantizeLinear that makes a tensor, or that a DequantizeLinear hides; else None."""
        node = self.graph.maker(name)
        if node is not None and node.op == "DequantizeLinear":
            hidden = self.graph.maker(node.proto.input[0])
            if hidden is not None and node.proto.input[0] not in self.cuts:
                same = list(hidden.proto.input[1:]) == list(node.proto.input[1:])
                node = hidden if same else node
        return node.proto if node is not None and node.op == "QuantizeLinear" else None

    def _grid(self, name: str, values: Arrays, draws: list[dict[str, Array]]) -> Grid | None:
        """The steps that a tensor is rounded to: by its own node, or by all that take it."""

        def value(tensor: str) -> Array | None:
            known = values[tensor] if tensor in values else self.graph.stored(tensor)
            return None if known is None else np.asarray(known)

        own = self._rounding(name)
        rounds = self._rounded_later(name) if own is None else own
        if rounds is None:
            return None
        rounded, step_name, zero_name = [*rounds.input, ""][:3]
        step, zero = value(step_name), value(zero_name) if zero_name else None
        if step is None or (zero is None and zero_name):
            return None
        kind = zero.dtype if zero is not None else np.dtype(np.uint8)
        if kind.kind not in "iu":
            return None
        before: list[Array] = []
        if own is not None:
            first = value(rounded)
            if first is None:
                return None
            before = [first, *(draw[rounded] for draw in draws if rounded in draw)]
        axis = next((a.i for a in rounds.attribute if a.name == "axis"), 1)
        is_softmax = self.graph.op_of(rounded) == "Softmax" and step.size == 1
        near = near_softmax(float(step.reshape(-1)[0])) if is_softmax else HALF_WAY
        limits = np.iinfo(kind)
        return Grid(step, zero, axis, int(limits.min), int(limits.max), tuple(before), near)

    def _rounded_later(self, name: str) -> Any:
        """The QuantizeLinear that every path from a tensor meets with nothing but moves before."""
        found: list[Any] = []
        waiting = [name]
        while waiting:
            tensor = waiting.pop()
            takers = self.graph.takers(tensor)
            if not takers:
                return None
            for node in takers:
                if node.op == "QuantizeLinear" and node.proto.input[0] == tensor:
                    found.append(node.proto)
                elif node.op in COPIES and node.inputs[0] == tensor:
                    waiting += [n for n in node.outputs if n]
                else:
                    return None
        steps = {tuple(proto.input[1:]) for proto in found}
        return found[0] if len(steps) == 1 else None


def _steady(graph: OnnxGraph) -> set[str]:
    """Tensors that are rounded, counted or compared, or moved about and then are."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        moves = node.op in COPIES and (_to_whole(node) or not found.isdisjoint(node.outputs))
        if node.op in _DISCRETE or moves:
            found.update(node.inputs)
    return found


def _to_whole(node: Node) -> bool:
    """Whether a node casts to whole numbers."""
    return node.op == "Cast" and any(
        a.name == "to" and a.i not in FLOATS for a in node.proto.attribute
    )


def _shaken(feed: Mapping[str, Any], still: Collection[str], seed: int) -> dict[str, Any]:
    """Arrays, each element moved by a few units of its roundoff."""
    rng = np.random.default_rng(seed)
    moved: dict[str, Any] = {}
    for name, array in feed.items():
        known = format_of(array) if isinstance(array, np.ndarray) else None
        if known is None or name in still:
            moved[name] = array
            continue
        by = 1 + noise_of(known) * rng.uniform(-1, 1, array.shape)
        with np.errstate(all="ignore"):
            moved[name] = np.asarray(array * by).astype(array.dtype)
    return moved


def _with_noise(model: Any, still: Collection[str]) -> Callable[[int], Any]:
    """The graph with noise after every node that makes a float, for a seed."""
    typed = inferred(model)  # where nothing can be inferred, less noise is no harm
    values = [*typed.value_info, *typed.output, *typed.input]
    kinds = {value.name: value.type.tensor_type.elem_type for value in values}
    single = {t.name: t for t in model.graph.initializer if math.prod(t.dims) == 1}
    makers = {name: item.op_type for item in model.graph.node for name in item.output}
    # Weights are rounded once and for all: nobody's arithmetic tips those.
    varies = {value.name for value in model.graph.input}
    for item in model.graph.node:
        if varies.intersection(uses(item)):
            varies.update(item.output)

    def made(seed: int) -> Any:
        import onnx

        noisy = onnx.ModelProto()
        noisy.CopyFrom(model)
        del noisy.graph.node[:]
        for number, item in enumerate(model.graph.node):
            node = onnx.NodeProto()
            node.CopyFrom(item)
            rounds = item.op_type == "QuantizeLinear" and item.input[1] in single
            hidden = rounds and not item.output[0].startswith(MADE)
            if hidden and item.input[0] in varies:
                step = _number(single[item.input[1]])
                near = near_softmax(step) if makers.get(item.input[0]) == "Softmax" else HALF_WAY
                noisy.graph.node.extend(_tipping(node, near, seed * 100_003 + number * 7))
            noisy.graph.node.append(node)
            moving: list[Any] = []
            for place, name in enumerate(item.output):
                by = _NOISE.get(kinds.get(name, 0))
                if not name or by is None or name in still or item.op_type == "Constant":
                    continue
                raw = f"driftwalk raw: {name}"
                noisy.graph.node[-1].output[place] = raw
                own = seed * 100_003 + number * 7 + place
                moving += _moving(item, name, raw, by, kinds[name], own)
            noisy.graph.node.extend(moving)
        return noisy

    return made


def _number(tensor: Any) -> float:
    """The one number that a stored tensor has; 1 where it lies in another file."""
    from onnx import numpy_helper

    return 1.0 if tensor.external_data else float(numpy_helper.to_array(tensor).reshape(-1)[0])


def _tipping(node: Any, by: float, seed: int) -> list[Any]:
    """The nodes before a rounding inside that tip what lies at a boundary."""
    from onnx import helper

    x, step, name = node.input[0], node.input[1], node.output[0]
    like, term, moved = (f"driftwalk {word}: {name}" for word in ("tip", "tips", "tipped"))
    node.input[0] = moved
    return [
        helper.make_node("RandomUniformLike", [x], [like], low=-by, high=by, seed=float(seed)),
        helper.make_node("Mul", [like, step], [term]),
        helper.make_node("Add", [x, term], [moved]),
    ]


def _moving(item: Any, name: str, raw: str, by: float, kind: int, seed: int) -> list[Any]:
    """The nodes that move one tensor; half precision is moved in float32, and rounded again."""
    from onnx import helper

    wide = kind if kind in _WIDE else _FLOAT
    nodes: list[Any] = []

    def step(op: str, taken: list[str], word: str, **attributes: float) -> str:
        nodes.append(helper.make_node(op, taken, [f"driftwalk {word}: {name}"], **attributes))
        return f"driftwalk {word}: {name}"

    def random(like: str, word: str, middle: float, number: int) -> str:
        low, high = middle - by, middle + by
        return step(
            "RandomUniformLike", [like], word, dtype=wide, low=low, high=high, seed=float(number)
        )

    def widened(tensor: str, word: str) -> str:
        return tensor if kind == wide else step("Cast", [tensor], word, to=wide)

    moved = step("Mul", [widened(raw, "wide"), random(raw, "factor", 1.0, seed)], "moved")
    if item.op_type in _OF_ONE:
        moved = step("Add", [moved, random(raw, "term", 0.0, seed + 1)], "sum")
    elif item.op_type in _OF_INPUT:
        x = item.input[0]
        size = step("Mul", [widened(x, "input"), random(x, "share", 0.0, seed + 1)], "term")
        moved = step("Add", [moved, size], "sum")
    if kind != wide:
        step("Cast", [moved], "narrow", to=kind)
    nodes[-1].output[0] = name
    return nodes
