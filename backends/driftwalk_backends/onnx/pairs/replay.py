"""The reference's graph on the candidate's own tensors: what each node makes of what it was given.

Every tensor that both graphs have is a *cut*: whatever takes it takes the candidate's numbers, and
what the reference's nodes make of them stands beside what the candidate made. The same is run
again with noise of a few units of roundoff at every tensor in between (`noise`): that is how far
honest arithmetic may stray there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.graphs.replayed import NEAR, NEAR_SOFTMAX, Grid, Replayed
from driftwalk.states import Probe

from ..graph import OnnxGraph
from ..structure import COPIES
from .noise import MADE, shaken, steady, with_noise
from .runtime import GraphRuntime
from .sizes import MOST_BYTES, grouped, sizes

_WHOLE = ("QuantizeLinear", "QLinear", "Integer")
"""In the names of operations that give whole numbers which stand for floats."""
_ROUNDS_INSIDE = ("QLinear", "DynamicQuantizeLinear")
_DRAWS = (1, 2)
_SHARES = 6
"""Copies of a group of tensors that are held at once: both sides', replayed, shaken twice."""


@dataclass(frozen=True)
class _Segment:
    """The nodes between some cuts and those before them."""

    nodes: tuple[int, ...]
    given: tuple[str, ...]


class Replay:
    """One pair of graphs on one probe, cut at every tensor that both have."""

    def __init__(self, reference: GraphRuntime, candidate: GraphRuntime, probe: Probe) -> None:
        self._reference = reference
        self._candidate = candidate
        self._probe = probe
        self.graph: OnnxGraph = reference.graph
        self._feed = reference.feed(probe)
        self._protos = {n: node for node in self.graph.proto.graph.node for n in node.output if n}
        self._sizes = sizes(self.graph, self._feed)
        self._kept: dict[str, tuple[Array, Array]] = {}
        self.cuts = self._cuts()

    def __iter__(self) -> Iterator[Replayed]:
        """All cuts in topological order; what cannot be replayed is left out."""
        order = self.graph.producers
        for group in self._grouped(sorted(self.cuts, key=lambda name: order[name])):
            yield from self._replayed(group)

    def _cuts(self) -> dict[str, str]:
        """The tensors of the reference that the candidate has too, in the same shape."""
        found: dict[str, str] = {}
        ends = {value.name for value in self.graph.outputs}
        theirs = {value.name for value in self._candidate.graph.outputs}
        for name in self._reference.model_graph.producers:
            here, there = self._reference.find(name), self._candidate.find(name)
            if here is None or there is None or here[0] not in self.graph.producers:
                continue
            if there[0] in self._candidate.left or there[0] in theirs:
                found[here[0]] = there[0]
        floats = {*self.graph.floats, *ends}
        found = {n: c for n, c in found.items() if n in floats or self._is_rounded(n)}
        alike: dict[str, str] = {}
        groups = self._grouped(found)
        for group in groups:
            mine, others = self._fetched(group, found)
            both = [n for n in group if n in mine and n in others]
            both = [n for n in both if mine[n].shape == others[n].shape]
            alike |= {n: found[n] for n in both}
            if len(groups) == 1:
                self._kept = {n: (mine[n], others[n]) for n in both}
        return alike

    def _is_rounded(self, name: str) -> bool:
        return any(word in self.graph.op_of(name) for word in _WHOLE)

    def _grouped(self, names: Iterable[str]) -> list[list[str]]:
        return grouped(names, self._sizes, 2 * MOST_BYTES // _SHARES)

    def _fetched(
        self, names: Iterable[str], partners: Mapping[str, str]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Some tensors of both sides, under the reference's names."""
        wanted = list(names)
        mine, _ = self._reference.tensors(self._probe, wanted, whole=True)
        own = [partners[name] for name in wanted]
        given, _ = self._candidate.tensors(self._probe, own, whole=True)
        theirs = {n: given[partners[n]] for n in wanted if partners[n] in given}
        return mine, theirs

    def _values(self, names: Iterable[str]) -> dict[str, tuple[Array, Array]]:
        wanted = list(names)
        if self._kept:
            return {n: self._kept[n] for n in wanted if n in self._kept}
        mine, theirs = self._fetched(wanted, self.cuts)
        return {n: (mine[n], theirs[n]) for n in wanted if n in mine and n in theirs}

    def _replayed(self, targets: list[str]) -> Iterator[Replayed]:
        segment = self._segment(targets)
        values = self._values(dict.fromkeys([*segment.given, *targets]))
        given: dict[str, Array] = {}
        for name in segment.given:
            mine, theirs = values[name]
            given[name] = theirs.astype(mine.dtype, copy=False)
        targets = [name for name in targets if name in values]
        inner = self._before_rounding(targets, segment, given)
        outputs = [*(MADE + name for name in targets), *inner]
        model = self._model(segment, given, outputs)
        plain = self._run(model, outputs, given | self._feed)
        still = steady(self.graph)
        noisy = with_noise(model, still | {MADE + n for n in still})
        draws = []
        for seed in _DRAWS:
            moved = shaken(given | self._feed, still, seed)
            try:
                draws.append(self._run(noisy(seed), outputs, moved))
            except BackendError:  # noise after an operation that the runtime will not have there
                draws.append(self._run(model, outputs, moved))
        for name in targets:
            mine, theirs = values[name]
            yield Replayed(
                tensor=name,
                reference=mine,
                candidate=theirs,
                made=plain[MADE + name],
                shaken=tuple(d[MADE + name] for d in draws),
                grid=self._grid(name, given, plain, draws),
                rounds=any(word in self._protos[name].op_type for word in _ROUNDS_INSIDE),
            )

    def _segment(self, targets: Iterable[str]) -> _Segment:
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
        return _Segment(tuple(sorted(seen)), tuple(given))

    def _model(self, segment: _Segment, given: Mapping[str, Array], outputs: list[str]) -> Any:
        """The nodes of a segment as a graph of its own; weights beside the graph stay there."""
        import onnx

        whole, made = self.graph.proto, onnx.ModelProto()
        made.ir_version = whole.ir_version
        made.opset_import.extend(whole.opset_import)
        made.functions.extend(whole.functions)
        made.graph.name = "replay"
        used: set[str] = set()
        for number in segment.nodes:
            node = made.graph.node.add()
            first = next(name for name in self.graph.nodes[number].outputs if name)
            node.CopyFrom(self._protos[first])
            for place, name in enumerate(node.output):
                if name in self.cuts:
                    node.output[place] = MADE + name
            used.update(self.graph.nodes[number].inputs)
        stored = [t for t in whole.graph.initializer if t.name in used]
        made.graph.initializer.extend(stored)
        made.graph.sparse_initializer.extend(whole.graph.sparse_initializer)
        held = {tensor.name for tensor in stored}
        for value in whole.graph.input:
            if value.name in used and value.name not in held:
                made.graph.input.append(value)
        for name, array in given.items():
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            made.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
        made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        return made

    def _run(
        self,
        model: Any,
        outputs: list[str],
        feed: Mapping[str, Any],
    ) -> dict[str, Array]:
        taken = {value.name for value in model.graph.input}
        return self._reference.once(model, outputs, {n: a for n, a in feed.items() if n in taken})

    def _before_rounding(
        self, targets: Iterable[str], segment: _Segment, given: Mapping[str, Array]
    ) -> list[str]:
        """Tensors inside the segment that tell what a rounding node was given."""
        made = {n for i in segment.nodes for n in self.graph.nodes[i].outputs if n}
        rounding = [node for node in map(self._rounding, targets) if node is not None]
        wanted = (name for node in rounding for name in node.input)
        return list(dict.fromkeys(n for n in wanted if n in made and n not in self.cuts))

    def _rounding(self, name: str) -> Any:
        """The QuantizeLinear that makes a tensor, or that a DequantizeLinear hides; else None."""
        proto = self._protos[name]
        if proto.op_type == "DequantizeLinear" and proto.input[0] not in self.cuts:
            before = self._protos.get(proto.input[0])
            same = before is not None and list(before.input[1:]) == list(proto.input[1:])
            proto = before if same else proto
        return proto if proto.op_type == "QuantizeLinear" else None

    def _grid(
        self,
        name: str,
        given: Mapping[str, Array],
        plain: Mapping[str, Array],
        draws: list[dict[str, Array]],
    ) -> Grid | None:
        """The steps that a tensor is rounded to: by its own node, or by all that take it."""
        own = self._rounding(name)
        rounds = self._takers(name) if own is None else own
        if rounds is None:
            return None
        names = list(rounds.input)
        step = self._value(names[1], given, plain)
        zero = self._value(names[2], given, plain) if len(names) > 2 and names[2] else None
        if step is None or (zero is None and len(names) > 2 and names[2]):
            return None
        axis = next((a.i for a in rounds.attribute if a.name == "axis"), 1)
        kind = zero.dtype if zero is not None else np.dtype(np.uint8)
        if kind.kind not in "iu":
            return None
        values: list[Array] = []
        if own is not None:
            value = self._value(names[0], given, plain)
            if value is None:
                return None
            values = [value, *(d[names[0]] for d in draws if names[0] in d)]
        low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        before = self._protos.get(names[0])
        near = NEAR_SOFTMAX if before is not None and before.op_type == "Softmax" else NEAR
        return Grid(step, zero, axis, low, high, tuple(values), near)

    def _takers(self, name: str) -> Any:
        """The QuantizeLinear that every path from a tensor meets with nothing but moves before."""
        found: list[Any] = []
        waiting = [name]
        while waiting:
            tensor = waiting.pop()
            takers = self.graph.consumers.get(tensor, ())
            if not takers:
                return None
            for number in takers:
                node = self.graph.nodes[number]
                proto = self._protos[next(n for n in node.outputs if n)]
                if node.op == "QuantizeLinear" and proto.input[0] == tensor:
                    found.append(proto)
                elif node.op in COPIES and node.inputs[0] == tensor:
                    waiting += [n for n in node.outputs if n]
                else:
                    return None
        scalar = {tuple(proto.input[1:]) for proto in found}
        return found[0] if len(scalar) == 1 else None

    def _value(
        self, name: str, given: Mapping[str, Array], plain: Mapping[str, Array]
    ) -> Array | None:
        if name in given:
            return given[name]
        if name in plain:
            return plain[name]
        if name in self._feed:
            return np.asarray(self._feed[name])
        stored: Array | None = self.graph.stored(name)
        if stored is None and name in self._protos and self._protos[name].op_type == "Constant":
            from onnx import numpy_helper

            value = next((a.t for a in self._protos[name].attribute if a.name == "value"), None)
            return None if value is None else numpy_helper.to_array(value)
        return stored
