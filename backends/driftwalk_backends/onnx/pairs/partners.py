"""Which tensor of one graph is which of another: by name, then by its place in the graph.

A name that says nothing (a number, or one that some other operation bears) leads nowhere. Two nodes
do the same if they are the same operation on partners of each other's inputs; that holds through
renamed tensors, and past a fault.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..graph import Node, OnnxGraph

NAME, PLACE, SAME = "tensor name", "place in the graph", ""

_SAYS_NOTHING = re.compile(r"\d+\Z")
_NUMBERED_OP = re.compile(r"(?:.*[:/_.])?(?P<op>[A-Z]\w*?)_(?:output_)?\d+\Z")


class Stored:
    """The tensors that a graph stores; a word for what is stored is made when asked for."""

    def __init__(self, graph: OnnxGraph) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.proto.graph.initializer}
        for node in graph.proto.graph.node:
            if node.op_type == "Constant" and node.output:
                self._tensors[node.output[0]] = node
        self._nodes = {name: n for n in graph.proto.graph.node for name in n.output if name}
        self._known: dict[str, str] = {}

    def of(self, node: Node) -> tuple[str, ...]:
        """All that is stored in or for a node: attributes, and the tensors it takes."""
        own = self._nodes.get(next((name for name in node.outputs if name), ""))
        attributes = sorted(a.SerializeToString() for a in own.attribute) if own else []
        return (repr(attributes), *map(self.content, node.inputs))

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def content(self, name: str) -> str:
        if name not in self._tensors:
            return ""
        if name not in self._known:
            self._known[name] = _content(self._tensors[name])
        return self._known[name]


def _content(stored: Any) -> str:
    """A hash of it, or where in its file it lies: two weights never lie in one place."""
    if hasattr(stored, "attribute"):  # a Constant
        text = b"".join(a.SerializeToString() for a in stored.attribute)
        return hashlib.sha256(text).hexdigest()
    if stored.external_data:
        where = sorted((e.key, e.value) for e in stored.external_data if e.key != "location")
        return f"{list(stored.dims)} {where}"
    digest = hashlib.sha256(f"{list(stored.dims)} {stored.data_type}".encode())
    if stored.raw_data:
        digest.update(stored.raw_data)
    else:
        bare = type(stored).FromString(stored.SerializeToString())
        bare.name = bare.doc_string = ""
        digest.update(bare.SerializeToString())
    return digest.hexdigest()


@dataclass
class _Search:
    a: OnnxGraph
    b: OnnxGraph
    found: dict[str, tuple[str, str]]
    used: set[str] = field(default_factory=set)

    def take(self, mine: str, other: str, way: str) -> None:
        self.found[mine] = other, way
        self.used.add(other)


def partners(a: OnnxGraph, b: OnnxGraph) -> dict[str, tuple[str, str]]:
    """For tensors of one graph their partners in the other, each with how it was found."""
    if a is b:
        return {name: (name, SAME) for name in a.producers}
    search = _Search(a, b, {})
    _match_inputs(search)
    mine, theirs = Stored(a), Stored(b)
    rivals, takers = _alike(a, mine), _alike(b, theirs)
    for number, node in enumerate(a.nodes):
        named = [name for name in node.outputs if name and _named_alike(search, node, name)]
        for name in named:
            search.take(name, name, NAME)
        if not named:
            _by_place(search, number, rivals, takers, mine, theirs)
    for one, other in _outputs(a, b):
        if one in a.producers and other in b.producers and one not in search.found:
            search.take(one, other, NAME)
    return {k: v for k, v in search.found.items() if k in a.producers}


def output_partners(a: OnnxGraph, b: OnnxGraph) -> dict[str, str]:
    """The outputs of one graph among those of the other."""
    return dict(_outputs(a, b))


def _outputs(a: OnnxGraph, b: OnnxGraph) -> list[tuple[str, str]]:
    """By name; by their order where no name is shared and there are as many."""
    mine, theirs = [v.name for v in a.outputs], [v.name for v in b.outputs]
    shared = set(mine) & set(theirs)
    if not shared and len(mine) == len(theirs):
        return list(zip(mine, theirs, strict=True))
    return [(name, name) for name in mine if name in shared]


def _match_inputs(search: _Search) -> None:
    mine, theirs = [v.name for v in search.a.inputs], [v.name for v in search.b.inputs]
    for name in set(mine) & set(theirs):
        search.take(name, name, NAME)
    rest = [n for n in mine if n not in theirs], [n for n in theirs if n not in mine]
    if len(rest[0]) == len(rest[1]):
        for one, other in zip(*rest, strict=True):
            search.take(one, other, PLACE)


Key = tuple[str, tuple[str, ...]]
"""An operation, and what it takes beside stored numbers."""


def _key(node: Node, stored: Stored, search: _Search | None = None) -> Key | None:
    """In the graph's own names, or in those of the partners; None where one has no partner."""
    taken = []
    for name in node.inputs:
        if name in stored:
            taken.append("")
        elif search is None:
            taken.append(name)
        elif name in search.found:
            taken.append(search.found[name][0])
        else:
            return None
    return node.op, tuple(taken)


def _alike(graph: OnnxGraph, stored: Stored) -> dict[Key | None, list[int]]:
    """Nodes that do the same on the same inputs: queries, keys and values are such."""
    found: dict[Key | None, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        found.setdefault(_key(node, stored), []).append(number)
    return found


def _by_place(
    search: _Search,
    number: int,
    rivals: Mapping[Key | None, list[int]],
    takers: Mapping[Key | None, list[int]],
    mine: Stored,
    theirs: Stored,
) -> None:
    node = search.a.nodes[number]
    key = _key(node, mine, search)
    if key is None or not node.inputs:
        return
    others, rival = takers.get(key, []), rivals[_key(node, mine)]
    if len(others) != len(rival):
        return
    chosen = others[0] if len(others) == 1 else None
    if chosen is None:
        chosen = _of_several(search, number, rival, others, mine, theirs)
    if chosen is None or len(search.b.nodes[chosen].outputs) != len(node.outputs):
        return
    for one, other in zip(node.outputs, search.b.nodes[chosen].outputs, strict=True):
        # A tensor that bears the name of another one here is that one's partner.
        if one and other and (_SAYS_NOTHING.match(other) or other not in search.a.producers):
            search.take(one, other, PLACE)


def _of_several(
    search: _Search,
    number: int,
    rival: list[int],
    others: list[int],
    mine: Stored,
    theirs: Stored,
) -> int | None:
    """The one with the same stored numbers and attributes; a changed one is what is left over.

    Nodes that are alike in that too compute the same: they are paired in their order.
    """
    a = {i: mine.of(search.a.nodes[i]) for i in rival}
    b = {i: theirs.of(search.b.nodes[i]) for i in others}
    here = [i for i in rival if a[i] == a[number]]
    there = [i for i in others if b[i] == a[number]]
    if there:
        return there[here.index(number)] if len(here) == len(there) else None
    left = [i for i in others if b[i] not in a.values()]
    lost = [i for i in rival if a[i] not in b.values()]
    return left[0] if len(left) == len(lost) == 1 else None


def _named_alike(search: _Search, node: Node, name: str) -> bool:
    """Whether a tensor of the same name may be trusted to be the same tensor."""
    if name not in search.b.producers or name in search.used or _SAYS_NOTHING.match(name):
        return False
    other = search.b.nodes[search.b.producers[name]]
    numbered = _NUMBERED_OP.match(name)
    return other.op == node.op or numbered is None or numbered["op"] not in (node.op, other.op)
