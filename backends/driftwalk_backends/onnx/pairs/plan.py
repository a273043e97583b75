"""What two graphs are compared at: pairs of tensors in topological order, some at a time.

A tensor that one of the two no longer has (an optimiser fused it away) is no fault: the next one
that both have is the nearest shared boundary. The plan says which are gone, and into what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from driftwalk.states import Point, Probe

from ...matching import Candidate, Pool, clear
from ..graph import OnnxGraph
from .blocks import NODES, STRUCTURE, Place, places_of
from .runtime import GraphRuntime
from .sizes import grouped, sizes
from .survivors import swallowed

_AGREES = 1e-3
"""How far apart two tensors may be, relative to their size, and be taken for the same by value."""
_SUMS = {"Add", "Sub", "Sum", "Mean", "ReduceMean", "ReduceSum", "GlobalAveragePool", "CumSum"}
"""Operations whose result can be far smaller than what they are given, and no more exact."""


@dataclass(frozen=True)
class Pair:
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
    groups: tuple[tuple[Pair, ...], ...]
    notes: tuple[str, ...] = ()


def plan(reference: GraphRuntime, candidate: GraphRuntime, probe: Probe, depth: str) -> Plan:
    """Which tensors of the two are compared, at which point, and how many at a time."""
    model = reference.model_graph
    places = places_of(model, depth)
    if places.way == NODES:
        pairs, notes = _by_node(model, places.all, reference, candidate)
    else:
        pairs, notes = _by_block(model, places.all, reference, candidate, probe)
        notes = (f"Blocks were found by {places.way}.", *notes)
    known = sizes(reference.graph, reference.feed(probe))
    together = {pair.reference: pair for pair in pairs}
    groups = grouped(together, known)
    return Plan(places.way, tuple(tuple(together[n] for n in g) for g in groups), notes)


def _by_node(
    model: OnnxGraph,
    places: Sequence[Place],
    reference: GraphRuntime,
    candidate: GraphRuntime,
) -> tuple[list[Pair], tuple[str, ...]]:
    ends = {value.name for value in model.outputs}
    pairs: list[Pair] = []
    gone: dict[str, str] = {}
    for place in places:
        if place.tensor in ends:
            continue  # outputs are compared in any case
        here, there = reference.find(place.tensor), candidate.find(place.tensor)
        if here is None or there is None:
            gone[place.tensor] = "" if there is None else "of the reference"
        elif here[0] not in reference.left or there[0] not in candidate.left:
            gone[place.tensor] = ""
        else:
            point = replace(place.point, found=there[1])
            node = model.nodes[model.producers[place.tensor]]
            pairs.append(
                Pair(
                    point,
                    place.tensor,
                    here[0],
                    there[0],
                    inputs=node.inputs,
                    is_sum=node.op in _SUMS,
                )
            )
    return pairs, _told(model, gone, candidate)


def _told(model: OnnxGraph, gone: Mapping[str, str], candidate: GraphRuntime) -> tuple[str, ...]:
    """The sentence about tensors that only one of the two graphs has."""
    if not gone:
        return ()
    back = {own: name for name in model.producers if (own := (candidate.find(name) or ("",))[0])}
    left = {back[own]: op for own, op in candidate.left.items() if own in back}
    into = swallowed(model, left)
    counted = Counter(into.get(name, "") for name in gone)
    words = [f"{n} into {op}" for op, n in counted.most_common() if op]
    rest = counted.get("", 0)
    words += [f"{rest} are not there" if words else f"{rest} in all"] if rest else []
    first = next(iter(gone))
    return (
        f"{len(gone)} tensors of the graph are not in the candidate as it runs (fused, folded or "
        f"rewritten: {', '.join(words[:8])}; the first is {first!r}); what they lead to is "
        "compared at the nearest tensor that both have.",
    )


def _by_block(
    model: OnnxGraph,
    places: Sequence[Place],
    reference: GraphRuntime,
    candidate: GraphRuntime,
    probe: Probe,
) -> tuple[list[Pair], tuple[str, ...]]:
    scoped = _same_scopes(model, places, candidate)
    pairs: list[Pair] = []
    lost: list[Place] = []
    for place in places:
        here = reference.find(place.tensor)
        there = candidate.find(place.tensor) or scoped.get(place.point.name)
        if here is not None and there is not None:
            point = replace(place.point, found=there[1])
            pairs.append(Pair(point, place.tensor, here[0], there[0]))
        elif here is not None:
            lost.append(place)
    found = _by_value(lost, reference, candidate, probe, {pair.candidate for pair in pairs})
    notes: list[str] = []
    for place in lost:
        pair = found.get(place.point.name) or _before(model, place, places, reference, candidate)
        if pair is None:
            notes.append(
                f"{place.point.name} ({place.tensor!r}) is not in {candidate.path.name}, nor is "
                "any tensor of that block: it is compared at the next point."
            )
        else:
            pairs.append(pair)
            notes += [f"{place.point.name}: {pair.remark}."] if pair.remark else []
    order = {place.point.name: i for i, place in enumerate(places)}
    return sorted(pairs, key=lambda pair: order[pair.point.name]), tuple(notes)


def _same_scopes(
    model: OnnxGraph, places: Sequence[Place], candidate: GraphRuntime
) -> dict[str, tuple[str, str]]:
    """The blocks of the other graph, where its scopes name the very same ones."""
    others = places_of(candidate.graph, "block")
    if others.way in (NODES, STRUCTURE):
        return {}
    if [p.point for p in others.all] != [p.point for p in places]:
        return {}
    found: dict[str, tuple[str, str]] = {}
    for mine, other in zip(places, others.all, strict=True):
        known = candidate.find(mine.tensor)
        if known is not None and known[0] != other.tensor:
            return {}  # an optimiser moved nodes, and left their scopes behind
        if model.op_of(mine.tensor) == candidate.graph.op_of(other.tensor):
            found[mine.point.name] = other.tensor, others.way
    return found


def _by_value(
    lost: Sequence[Place],
    reference: GraphRuntime,
    candidate: GraphRuntime,
    probe: Probe,
    used: set[str],
) -> dict[str, Pair]:
    """Points whose tensor bears another name there: the one that holds the same numbers."""
    if not lost:
        return {}
    keys = {place.tensor: (reference.find(place.tensor) or ("",))[0] for place in lost}
    expected, _ = reference.tensors(probe, keys.values())
    wanted = {array.size for array in expected.values()}
    known = sizes(candidate.graph, candidate.feed(probe))
    names = [n for n in candidate.graph.floats if n not in used]
    pool: list[Candidate] = []
    for group in grouped(names, known):
        given, _ = candidate.tensors(probe, group)
        order = {name: i for i, name in enumerate(candidate.graph.floats)}
        pool += [Candidate(n, a, order[n], n) for n, a in given.items() if a.size in wanted]
    found: dict[str, Pair] = {}
    for place in lost:
        state = expected.get(keys[place.tensor])
        hit = None if state is None else clear(Pool(pool).hits(state), _AGREES)
        if hit is not None and hit.arrangement.rank == 0:
            point = replace(place.point, found="value")
            found[place.point.name] = Pair(
                point, place.tensor, keys[place.tensor], hit.candidate.name
            )
    return found


def _before(
    model: OnnxGraph,
    place: Place,
    places: Sequence[Place],
    reference: GraphRuntime,
    candidate: GraphRuntime,
) -> Pair | None:
    """The last tensor before a boundary, and after the one before it, that both graphs have."""
    at = model.producers[place.tensor]
    earlier = [model.producers[p.tensor] for p in places if model.producers[p.tensor] < at]
    for name in reversed(model.floats):
        if max(earlier, default=-1) < model.producers[name] < at and model.depends(
            place.tensor, name
        ):
            here, there = reference.find(name), candidate.find(name)
            if here is not None and there is not None:
                remark = f"compared at {name!r}, the nearest tensor before it that both graphs have"
                point = replace(place.point, found=there[1])
                return Pair(point, name, here[0], there[0], remark)
    return None


def described(graph: OnnxGraph, tensor: str) -> str:
    """A node in words: operation, inputs, attributes."""
    from onnx import helper

    for node in graph.proto.graph.node:
        if tensor in node.output:
            words = [
                f"{a.name}={_short(helper.get_attribute_value(a))}"
                for a in node.attribute
                if not a.HasField("g") and not a.graphs
            ]
            with_words = f" with {', '.join(words)}" if words else ""
            inputs = ", ".join(name[:80] for name in node.input[:8])
            return f"{node.op_type}({inputs}){with_words}"
    return ""


def _short(value: object) -> str:
    if hasattr(value, "dims"):
        return f"a tensor {list(value.dims)}"
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
