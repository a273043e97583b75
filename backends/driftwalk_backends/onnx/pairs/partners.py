"""Which tensor of one graph is which of another: by name, then by its place in the graph.

A name that says nothing (a number, or one that some other operation bears) leads nowhere. Two nodes
do the same if they are the same operation on partners of each other's inputs; that holds through
renamed tensors, and past a fault.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from ..graph import Node, OnnxGraph

NAME, PLACE, SAME = "tensor name", "place in the graph", ""

_SAYS_NOTHING = re.compile(r"\d+\Z")
_NUMBERED_OP = re.compile(r"(?:.*[:/_.])?(?P<op>[A-Z]\w*?)_(?:output_)?\d+\Z")

Key = tuple[str, tuple[str, ...]]
"""An operation, and what it takes beside stored numbers."""


class _Side:
    """A graph, with a word for what each of its nodes stores, made when it is asked for."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        self._words: dict[str, str] = {}
        constants = [node for node in graph.nodes if node.op == "Constant" and node.outputs]
        self.stored = graph.weights | {node.outputs[0]: node.proto for node in constants}
        self.alike: dict[Key | None, list[int]] = {}
        """Nodes that do the same on the same inputs: queries, keys and values are such."""
        for number, node in enumerate(graph.nodes):
            self.alike.setdefault(self.key(node), []).append(number)

    def key(self, node: Node, names: dict[str, tuple[str, str]] | None = None) -> Key | None:
        """In the graph's own names, or in those of partners; None where one has no partner."""
        taken = []
        for name in node.inputs:
            if name in self.stored:
                taken.append("")
            elif names is None:
                taken.append(name)
            elif name in names:
                taken.append(names[name][0])
            else:
                return None
        return node.op, tuple(taken)

    def content(self, number: int) -> tuple[str, ...]:
        """All that is stored in or for a node: attributes, and the tensors it takes."""
        node = self.graph.nodes[number]
        attributes = sorted(a.SerializeToString() for a in node.proto.attribute)
        return (repr(attributes), *map(self._word, node.inputs))

    def _word(self, name: str) -> str:
        if name not in self._words:
            self._words[name] = _content(self.stored[name]) if name in self.stored else ""
        return self._words[name]


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


def partners(a: OnnxGraph, b: OnnxGraph) -> dict[str, tuple[str, str]]:
    """For tensors of one graph their partners in the other, each with how it was found."""
    if a is b:
        return {name: (name, SAME) for name in a.producers}
    return _Search(a, b).partners()


def output_partners(a: OnnxGraph, b: OnnxGraph) -> dict[str, str]:
    """Outputs by name; by their order where no name is shared and there are as many."""
    mine, theirs = [v.name for v in a.outputs], [v.name for v in b.outputs]
    shared = set(mine) & set(theirs)
    if not shared and len(mine) == len(theirs):
        return dict(zip(mine, theirs, strict=True))
    return {name: name for name in mine if name in shared}


class _Search:
    def __init__(self, a: OnnxGraph, b: OnnxGraph) -> None:
        self.a = _Side(a)
        self.b = _Side(b)
        self.found: dict[str, tuple[str, str]] = {}
        self.used: set[str] = set()

    def partners(self) -> dict[str, tuple[str, str]]:
        a, b = self.a.graph, self.b.graph
        self._match_inputs()
        for number, node in enumerate(a.nodes):
            named = [name for name in node.outputs if name and self._named_alike(node, name)]
            for name in named:
                self._take(name, name, NAME)
            if not named:
                self._by_place(number)
        for one, other in output_partners(a, b).items():
            if one in a.producers and other in b.producers and one not in self.found:
                self._take(one, other, NAME)
        return {k: v for k, v in self.found.items() if k in a.producers}

    def _take(self, mine: str, other: str, way: str) -> None:
        self.found[mine] = other, way
        self.used.add(other)

    def _match_inputs(self) -> None:
        mine, theirs = ([v.name for v in side.graph.inputs] for side in (self.a, self.b))
        for name in set(mine) & set(theirs):
            self._take(name, name, NAME)
        rest = [n for n in mine if n not in theirs], [n for n in theirs if n not in mine]
        if len(rest[0]) == len(rest[1]):
            for one, other in zip(*rest, strict=True):
                self._take(one, other, PLACE)

    def _named_alike(self, node: Node, name: str) -> bool:
        """Whether a tensor of the same name may be trusted to be the same tensor."""
        other = self.b.graph.maker(name)
        if other is None or name in self.used or _SAYS_NOTHING.match(name):
            return False
        numbered = _NUMBERED_OP.match(name)
        return other.op == node.op or numbered is None or numbered["op"] not in (node.op, other.op)

    def _by_place(self, number: int) -> None:
        node = self.a.graph.nodes[number]
        key = self.a.key(node, self.found)
        if key is None or not node.inputs:
            return
        others, rivals = self.b.alike.get(key, []), self.a.alike[self.a.key(node)]
        if not others or len(others) != len(rivals):
            return
        chosen = others[0] if len(others) == 1 else self._of_several(number, rivals, others)
        outputs = self.b.graph.nodes[chosen].outputs if chosen is not None else ()
        if len(outputs) != len(node.outputs):
            return
        for one, other in zip(node.outputs, outputs, strict=True):
            # A tensor that bears the name of another one here is that one's partner.
            known = other in self.a.graph.producers and not _SAYS_NOTHING.match(other)
            if one and other and not known:
                self._take(one, other, PLACE)

    def _of_several(self, number: int, rivals: list[int], others: list[int]) -> int | None:
        """The one with the same stored numbers and attributes; a changed one is what is left over.

        Nodes that are alike in that too compute the same: they are paired in their order.
        """
        a = {i: self.a.content(i) for i in rivals}
        b = {i: self.b.content(i) for i in others}
        here = [i for i in rivals if a[i] == a[number]]
        there = [i for i in others if b[i] == a[number]]
        if there:
            return there[here.index(number)] if len(here) == len(there) else None
        left = [i for i in others if b[i] not in a.values()]
        lost = [i for i in rivals if a[i] not in b.values()]
        return left[0] if len(left) == len(lost) == 1 else None
