"""What is right in a region of a graph, and how much of the error right numbers take away.

Everything here is in float64, and begins with the unrounded states of the truth: what is given to a
cut is rounded to the type that the graph takes, and a fault of some roundoffs would drown in that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

import numpy as np

from driftwalk.dtypes import Array

from ..onnx.graph import COPIES
from .changes import Table
from .constants import LEAST_EFFECT, MOST_WRONG_NODES, RIGHT_TIMES
from .cuts import Cut, Cutting
from .right import Partner, Right, partners
from .showing import Judge, error_of, norm
from .states import ModelNumbers, with_right_numbers

_SUMS, _WITH_BIAS = {"Add", "add"}, {"Gemm", "addmm", "baddbmm"}


class Mending:
    """The tensors of a region, and those that are right in their place."""

    def __init__(
        self,
        whole: Cut,
        cutting: Cutting,
        judge: Judge,
        right: Right | None,
        exact: Mapping[str, Array],
        tables: Mapping[str, Table],
    ) -> None:
        """`exact` are unrounded numbers of what the whole is given; `tables`: what is left."""
        self._tables = tables
        self._whole, self._cutting, self._judge = whole, cutting, judge
        self._right, self._exact = right, exact
        self.end = Partner(np.zeros(0), 0.0)
        """The guilty tensor's."""

    @cached_property
    def wide(self) -> dict[str, Array]:
        """All tensors of the region in float64."""
        names = tuple(self._cutting.graph.producers)
        fed = {n: a for n, a in self._whole.given.items() if a.dtype.kind == "f"}
        return {**fed, **self._exact, **self._judge.wide(self._whole, self._exact, names)}

    @cached_property
    def partners(self) -> dict[str, Partner]:
        """Right tensors by the names of those that they are to be."""
        if self._right is None:
            return {}
        found = partners(self._right, self.wide)
        for name in found.keys() - self._before_bias(found):
            found[name] = self._right.with_bias(found[name], self.wide[name]) or found[name]
        return found

    def _before_bias(self, found: Mapping[str, Partner]) -> set[str]:
        """Tensors that something is added to; not a sum that has the numbers of what it is of.

        A bias that is zero, or is left out, leaves a product that is right as far as it goes.
        """
        nodes, makers = self._cutting.graph.nodes, self._cutting.graph.producers
        before: set[str] = set()
        for node in reversed(nodes):
            is_copy = node.op in COPIES and before & set(node.outputs)
            if node.op in _SUMS or is_copy:
                before |= set(node.inputs)
        for name in [name for name in before if name in found and name in makers]:
            node = nodes[makers[name]]
            numbers = [found[taken].number for taken in node.inputs if taken in found]
            adds = node.op in _WITH_BIAS and len(node.inputs) > 2
            if adds or (node.op in _SUMS and found[name].number in numbers):
                before.discard(name)
        return before

    def begin(self, expected: Array) -> bool:
        """Take note of what is right at the end; whether anything is wrong in float64."""
        own = self.wide[self._whole.output]
        right = expected.reshape(own.shape)
        off = norm(error_of(own, right)) / (norm(right) or 1.0)
        same = [] if self._right is None else self._right.same(right)
        self.end = Partner(right, off, same[0] if same else -1)
        return self.end.off > 0

    @property
    def error(self) -> float:
        """How far the guilty tensor is off in float64."""
        return norm(error_of(self.wide[self._whole.output], self.end.array))

    def is_right(self, name: str) -> bool:
        partner = self.partners.get(name)
        return partner is not None and partner.off * RIGHT_TIMES <= min(self.end.off, 1.0)

    def proposed(self, end: str) -> list[Partner]:
        """What may be right at a tensor: the near one, or what is made of the same tensors."""
        if (known := self.partners.get(end)) is not None:
            return [known]
        begins = self.right_behind(end)
        if not begins or self._right is None:
            return []
        return self._right.behind(list(begins.values()), self.wide[end])

    def right_behind(self, name: str) -> dict[str, Partner]:
        """The right tensors that one is made of; none where there are many of them, or others."""
        found: dict[str, Partner] = {}
        waiting, nodes = [name], 0
        while waiting:
            number = self._cutting.graph.producers.get(waiting.pop())
            if number is None:
                continue
            nodes += 1
            for taken in self._cutting.graph.nodes[number].inputs:
                if self.is_right(taken):
                    found[taken] = self.partners[taken]
                elif taken in self.wide:
                    waiting.append(taken)
            if nodes > MOST_WRONG_NODES:
                return {}
        return found

    def with_right_numbers(self, cut: Cut, partner: Partner) -> Cut | None:
        """The nodes with parameters of the torch model in place of what the graph has stored."""
        fed = [name for name, array in cut.given.items() if array.dtype.kind == "f"]
        if self._right is None or not all(self.is_right(name) for name in fed):
            return None
        begins = [self.partners[name] for name in fed]
        numbers = ModelNumbers(
            self._right.parameters(partner, begins),
            self._right.constants(partner, begins),
            self._tables,
        )
        off = norm(error_of(self.wide[cut.output], partner.array))
        return with_right_numbers(cut, numbers, partner.array, off / RIGHT_TIMES, self._unrounded)

    def mended(self, end: str, right: Array) -> float:
        """Of the error at the guilty tensor, what is gone with the right numbers at this one."""
        return self._gone(self._handed(end, right))

    def matters(self, end: str, right: Array) -> bool:
        """Whether right numbers at a tensor move the guilty one at all, by some of its error.

        What a mask takes away may be the lowest number there is, or minus infinity.
        """
        handed = self._handed(end, right)
        if handed is None:
            return False
        return norm(error_of(handed, self.wide[self._whole.output])) >= LEAST_EFFECT * self.error

    def _handed(self, end: str, array: Array) -> Array | None:
        """The guilty tensor, made of another value of an earlier one."""
        try:
            cut = self.given_at(self._whole, end)
        except KeyError:
            return None
        return self._judge.wide_or_none(cut, {**self._exact, end: array})

    def mended_by(self, cut: Cut, right: Cut) -> float:
        """The same with the right numbers in the place of those stored ones that are wrong."""
        stored = {n: a for n, a in right.stored.items() if not np.array_equal(a, cut.stored[n])}
        return self._gone(self._judge.wide_or_none(self._whole.with_values(stored), self._exact))

    def _gone(self, handed: Array | None) -> float:
        if handed is None or handed.shape != self.end.array.shape:
            return 0.0
        left, before = self._off(handed), self._off(self.wide[self._whole.output])
        return max(0.0, 1 - (left / before) ** 2) if left < before else 0.0

    def _off(self, array: Array) -> float:
        """How far the guilty tensor would be off; a number that is off by more than the largest of
        the right ones is wrong, and no righter for being off by less than before."""
        error, right = error_of(array, self.end.array), np.abs(self.end.array)
        most = right[np.isfinite(right)].max(initial=0.0) or np.inf
        return norm(np.clip(error, -most, most))

    def given_at(self, cut: Cut, name: str) -> Cut:
        """A cut that is given one of its tensors."""
        left = set(self._cutting.numbers(cut)) - {self._cutting.graph.producers[name]}
        return self._cutting.cut(left, cut.output)

    def _unrounded(self, cut: Cut) -> Array | None:
        fed: Collection[str] = [n for n, a in cut.given.items() if a.dtype.kind == "f"]
        return self._judge.wide_or_none(cut, {n: self.wide[n] for n in fed if n in self.wide})
