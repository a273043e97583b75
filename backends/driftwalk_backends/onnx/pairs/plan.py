"""What two graphs are compared at: pairs of tensors in topological order, some at a time.

A tensor that one of the two no longer has (an optimiser fused it away) is no fault: the next one
that both have is the nearest shared boundary. The plan says which are gone, and into what.
How large tensors will be is asked before anything runs: that bounds the memory of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from driftwalk.states import Point, Probe

from ...constants import PAIRED_BY_VALUE
from ...matching import Candidate, Pool, clear
from ..graph import OnnxGraph
from ..shapes import tensor_bytes
from ..structure import NODES, STRUCTURE, points_of
from .runtime import GraphRuntime

_SUMS = {"Add", "Sub", "Sum", "Mean", "ReduceMean", "ReduceSum", "GlobalAveragePool", "CumSum"}
"""Operations whose result can be far smaller than what they are given, and no more exact."""
MOST_BYTES = 1 << 30
"""States that two sessions may hold at once."""


@dataclass(frozen=True)
class TensorPair:
    """One point: the tensor of each side, and a remark on how they were found."""

    point: Point
    tensor: str
    """In the model's graph."""
    reference: str
    candidate: str
    remark: str = ""
    inputs: tuple[str, ...] = ()
    """What it is computed from, in the model's graph."""
    is_sum: bool = False


@dataclass(frozen=True)
class Plan:
    """Groups of pairs, each compared with one session a side; and what was left out."""

    way: str
    groups: tuple[tuple[TensorPair, ...], ...]
    notes: tuple[str, ...] = ()


def plan(reference: GraphRuntime, candidate: GraphRuntime, probe: Probe, depth: str) -> Plan:
    """Which tensors of the two are compared, at which point, and how many at a time."""
    points = points_of(reference.model_graph, depth)
    planner = _Planner(reference, candidate, probe, points.tensors)
    if points.way == NODES:
        pairs, notes = planner.by_node()
    else:
        pairs, notes = planner.by_block()
        notes = [f"Blocks were found by {points.way}.", *notes]
    together = {pair.reference: pair for pair in pairs}
    groups = grouped(together, sizes(reference, probe))
    return Plan(points.way, tuple(tuple(together[n] for n in g) for g in groups), tuple(notes))


@dataclass(frozen=True, eq=False)
class _Planner:
    """Pairs the points of the model's graph up in the graphs of both sides."""

    reference: GraphRuntime
    candidate: GraphRuntime
    probe: Probe
    tensors: Mapping[Point, str]

    @property
    def model(self) -> OnnxGraph:
        return self.reference.model_graph

    def _pair(
        self, point: Point, tensor: str, there: tuple[str, str] | None = None, remark: str = ""
    ) -> TensorPair | None:
        """The pair at a tensor of the model's graph; None where a side does not have it."""
        here = self.reference.partners.get(tensor)
        there = there or self.candidate.partners.get(tensor)
        if here is None or there is None:
            return None
        found = replace(point, found=there[1])
        return TensorPair(found, tensor, here[0], there[0], remark)

    def by_node(self) -> tuple[list[TensorPair], list[str]]:
        """A pair for every node that both sides still have when they run."""
        ends = {value.name for value in self.model.outputs}
        pairs: list[TensorPair] = []
        gone: list[str] = []
        for point, tensor in self.tensors.items():
            if tensor in ends:
                continue  # outputs are compared in any case
            pair, node = self._pair(point, tensor), self.model.maker(tensor)
            if pair is None or node is None or not self._is_left(pair):
                gone.append(tensor)
            else:
                pairs.append(replace(pair, inputs=node.inputs, is_sum=node.op in _SUMS))
        return pairs, self._lost_note(gone)

    def _is_left(self, pair: TensorPair) -> bool:
        return pair.reference in self.reference.left and pair.candidate in self.candidate.left

    def _lost_note(self, gone: Sequence[str]) -> list[str]:
        """The sentence about tensors that only one of the two graphs has."""
        if not gone:
            return []
        into = _swallowed(self.model, self.candidate)
        counted = Counter(into.get(name, "") for name in gone)
        words = [f"{n} into {op}" for op, n in counted.most_common() if op]
        rest = counted.get("", 0)
        words += [f"{rest} are not there" if words else f"{rest} in all"] if rest else []
        return [
            f"{len(gone)} tensors of the graph are not in the candidate as it runs (fused, folded "
            f"or rewritten: {', '.join(words[:8])}; the first is {gone[0]!r}); what they lead to "
            "is compared at the nearest tensor that both have."
        ]

    def by_block(self) -> tuple[list[TensorPair], list[str]]:
        """A pair for every block; where the other graph has lost its end, the nearest there is."""
        scoped = self._same_scopes()
        pairs: list[TensorPair] = []
        lost: dict[Point, str] = {}
        for point, tensor in self.tensors.items():
            there = self.candidate.partners.get(tensor) or scoped.get(point.name)
            pair = self._pair(point, tensor, there)
            if pair is not None:
                pairs.append(pair)
            elif tensor in self.reference.partners:
                lost[point] = tensor
        found = self._by_value(lost, {pair.candidate for pair in pairs})
        notes: list[str] = []
        for point, tensor in lost.items():
            name = point.name
            pair = found.get(name) or self._before(point, tensor)
            if pair is None:
                notes.append(
                    f"{name} ({tensor!r}) is not in {self.candidate.path.name}, nor is any "
                    "tensor of that block: it is compared at the next point."
                )
            else:
                pairs.append(pair)
                notes += [f"{name}: {pair.remark}."] if pair.remark else []
        order = [point.name for point in self.tensors]
        return sorted(pairs, key=lambda pair: order.index(pair.point.name)), notes

    def _same_scopes(self) -> dict[str, tuple[str, str]]:
        """The blocks of the other graph, where its scopes name the very same ones."""
        graph = self.candidate.graph
        others = points_of(graph, "block")
        if others.way in (NODES, STRUCTURE):
            return {}
        if list(others.tensors) != list(self.tensors):
            return {}
        found: dict[str, tuple[str, str]] = {}
        for point, other in others.tensors.items():
            mine = self.tensors[point]
            known = self.candidate.partners.get(mine)
            if known is not None and known[0] != other:
                return {}  # an optimiser moved nodes, and left their scopes behind
            if self.model.op_of(mine) == graph.op_of(other):
                found[point.name] = other, others.way
        return found

    def _by_value(self, lost: Mapping[Point, str], used: set[str]) -> dict[str, TensorPair]:
        """Points whose tensor bears another name there: the one that holds the same numbers."""
        if not lost:
            return {}
        mine = {point: self.reference.partners[tensor][0] for point, tensor in lost.items()}
        expected, _ = self.reference.tensors(self.probe, mine.values())
        wanted = {array.size for array in expected.values()}
        order = {name: i for i, name in enumerate(self.candidate.graph.floats)}
        pool: list[Candidate] = []
        unused = [name for name in order if name not in used]
        for group in grouped(unused, sizes(self.candidate, self.probe)):
            given, _ = self.candidate.tensors(self.probe, group)
            pool += [Candidate(n, a, order[n], n) for n, a in given.items() if a.size in wanted]
        found: dict[str, TensorPair] = {}
        for point, own in mine.items():
            hit = (
                clear(Pool(pool).hits(expected[own]), PAIRED_BY_VALUE) if own in expected else None
            )
            if hit is not None and hit.arrangement.rank == 0:
                pair = self._pair(point, lost[point], (hit.candidate.name, "value"))
                found |= {point.name: pair} if pair is not None else {}
        return found

    def _before(self, point: Point, lost: str) -> TensorPair | None:
        """The last tensor before a boundary, and after the one before it, that both graphs have."""
        model, at = self.model, self.model.producers
        ends = [at[tensor] for tensor in self.tensors.values() if at[tensor] < at[lost]]
        for name in reversed(model.floats):
            inside = max(ends, default=-1) < at[name] < at[lost]
            if inside and model.depends(lost, name):
                remark = f"compared at {name!r}, the nearest tensor before it that both graphs have"
                pair = self._pair(point, name, remark=remark)
                if pair is not None:
                    return pair
        return None


def _swallowed(model: OnnxGraph, candidate: GraphRuntime) -> dict[str, str]:
    """For each tensor that is gone, the operation it went into: what makes the next one left."""
    partners, ops = candidate.partners, candidate.left
    left = {name: ops[own] for name, (own, _) in partners.items() if own in ops}
    gone: dict[str, str] = {}
    for node in reversed(model.nodes):
        for name in node.outputs:
            after = [tensor for taker in model.takers(name) for tensor in taker.outputs]
            into = (left.get(tensor) or gone.get(tensor) for tensor in after)
            if name and name not in left and (op := next(filter(None, into), None)):
                gone[name] = op
    return gone


def sizes(side: GraphRuntime, probe: Probe) -> dict[str, int]:
    """Bytes of each tensor of a side's graph, as far as they are known before it runs."""
    return tensor_bytes(side.graph, side.feed(probe))


def grouped(
    names: Iterable[str], known: Mapping[str, int], most: int | None = None
) -> list[list[str]]:
    """Tensors in order, in as few groups as keep two sessions within the bound.

    One of unknown size counts as the largest that is known; a tensor larger than the bound is a
    group of its own.
    """
    bound = MOST_BYTES if most is None else most
    unknown = max(known.values(), default=0)
    groups: list[list[str]] = []
    held = 0
    for name in names:
        size = 2 * known.get(name, unknown)
        if not groups or held + size > bound:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return groups


def described(graph: OnnxGraph, tensor: str) -> str:
    """The node that makes a tensor, in words: operation, inputs, attributes."""
    from onnx import helper

    node = graph.maker(tensor)
    if node is None:
        return ""
    words = [
        f"{a.name}={_short(helper.get_attribute_value(a))}"
        for a in node.proto.attribute
        if not a.HasField("g") and not a.graphs
    ]
    with_words = f" with {', '.join(words)}" if words else ""
    inputs = ", ".join(name[:80] for name in node.proto.input[:8])
    return f"{node.op}({inputs}){with_words}"


def _short(value: object) -> str:
    if hasattr(value, "dims"):
        return f"a tensor {list(value.dims)}"
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
