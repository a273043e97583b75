"""Tensors that are right: every result of the torch model's float64 run, operation by operation.

A tensor of the graph that has the numbers of one of them is right so far. What lies between the
last of those and a wrong tensor is what went wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from driftwalk.adapter import Backend
from driftwalk.dtypes import Array
from driftwalk.states import Probe

from ..op_mode import OpMode
from ..tensors import call_tensors
from .constants import (
    CONSTANT_STEPS,
    PARTNER_FARTHEST,
    PARTNER_MARGIN,
    PARTNER_RIVAL,
    PARTNER_STEPS,
    PARTNER_SUMS,
    PARTNERS_COMPARED,
    PARTNERS_PROPOSED,
)
from .showing import error_of, norm

_SMALL, _LARGEST, _MOST = 1 << 20, 1 << 26, 3 << 30
"""Bytes of a parameter that is not copied, as nobody writes into it; of one tensor that is kept
otherwise; and of all of those. What comes last is what the end is made of."""
_VIEWS = {"view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "clone"}
_VIEWS |= {"unsqueeze", "squeeze", "slice", "select", "split", "_to_copy", "alias", "detach"}
_SAME = {"clone", "_to_copy", "alias", "detach"}
"""What hands on the same numbers, as a truth does with weights that it widens."""
_WITH_BIAS = (torch.ops.aten.addmm, torch.ops.aten.baddbmm)
PRODUCT = "product"
"""In place of an operation: what one that adds a bias made of its product, before that."""
GIVEN = "given"
"""In place of an operation: a tensor that none of them made, a parameter or a constant."""


@dataclass(frozen=True, eq=False)
class Made:
    """What one operation gave, and of which others it was made, by their numbers."""

    op: str
    numbers: Array
    of: tuple[int, ...]
    constants: tuple[float, ...] = ()
    """Numbers that it was told, an epsilon for example."""

    @property
    def array(self) -> Array:
        """In one row."""
        return self.numbers.ravel()

    @property
    def is_view(self) -> bool:
        return self.op.partition(".")[0] in _VIEWS


class _Recorder(OpMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: list[Made] = []
        self._left = _MOST
        self._given: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []  # or another tensor could have its id

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        taken = [tensor for _, tensor in call_tensors(tuple(args), kwargs or {})]
        for tensor in taken:
            if id(tensor) not in self._numbers:
                self._keep(tensor, GIVEN, ())
        of = tuple(self._numbers[id(one)] for one in taken if id(one) in self._numbers)
        of += self._product(func, args, kwargs or {}, given)
        constants = tuple(one for one in (*args, *(kwargs or {}).values()) if type(one) is float)
        for part in given if isinstance(given, tuple | list) else [given]:
            if isinstance(part, torch.Tensor):
                self._keep(part, str(func).removeprefix("aten."), of, constants)
        return given

    def _product(self, func: Any, args: Sequence[Any], kwargs: Any, given: Any) -> tuple[int, ...]:
        """Keep a product that gets its bias in the same operation; graphs have two nodes there."""
        if getattr(func, "overloadpacket", None) not in _WITH_BIAS or kwargs:
            return ()
        product = given - args[0]
        factors = (self._numbers[id(one)] for one in args[1:] if id(one) in self._numbers)
        self._keep(product, PRODUCT, tuple(factors))
        return (self._numbers[id(product)],) if id(product) in self._numbers else ()

    def _keep(
        self, tensor: torch.Tensor, op: str, of: tuple[int, ...], constants: tuple[float, ...] = ()
    ) -> None:
        if not tensor.is_floating_point() or tensor.numel() < 2 or tensor.device.type != "cpu":
            return
        if (same := self._same_as(tensor, op, of)) is not None:
            self._numbers[id(tensor)] = same
            self._alive.append(tensor)
            return
        size = tensor.numel() * 8
        made = Made(op, _shared(tensor), of, constants)
        given = op == GIVEN or (made.is_view and bool(of) and self._given.issuperset(of))
        stays = given and size > _SMALL
        size = 0 if stays else size
        if size > min(_LARGEST, self._left):
            return
        self._left -= size
        number = self._numbers[id(tensor)] = len(self.kept)
        self._alive.append(tensor)
        if given:
            self._given.add(number)
        self.kept.append(made if stays else replace(made, numbers=made.numbers.astype(np.float64)))

    def _same_as(self, tensor: torch.Tensor, op: str, of: tuple[int, ...]) -> int | None:
        """The number of a parameter that a tensor is a copy of, no coarser: it is kept already."""
        if op.partition(".")[0] not in _SAME or len(of) != 1 or of[0] not in self._given:
            return None
        source = self.kept[of[0]].numbers
        fine = tensor.element_size() >= source.itemsize
        return of[0] if fine and tuple(tensor.shape) == source.shape else None


def _shared(tensor: torch.Tensor) -> Array:
    """Its numbers where they are, in its own format where numpy knows that."""
    own = tensor.detach()
    kept = own if own.dtype in (torch.float32, torch.float64) else own.to(torch.float64)
    numbers: Array = kept.numpy()
    return numbers


def torch_tensors(truth: Backend, probe: Probe) -> list[Made]:
    """What each operation of the truth gives, in order."""
    recorder = _Recorder()
    with recorder:
        truth.run(probe)
    return recorder.kept


@dataclass(frozen=True, eq=False)
class Partner:
    """The right numbers of a tensor of the graph, and how far the graph's are off."""

    array: Array
    off: float
    """Relative, by the L2 norm."""
    number: int = -1
    """Among the right tensors."""


class Right:
    """Right tensors by their number of elements, each with a few sums by which it is found."""

    def __init__(self, tensors: Sequence[Made]) -> None:
        self._tensors = tensors
        self._by_size: dict[int, list[int]] = {}
        self._given: dict[int, list[int]] = {}
        self._takers: dict[int, list[int]] = {}
        for number, one in enumerate(tensors):
            kind = self._given if one.op == GIVEN else self._by_size
            kind.setdefault(one.numbers.size, []).append(number)
            for before in one.of:
                self._takers.setdefault(before, []).append(number)
        self._sums: dict[int, Array] = {}

    def _near(self, own: Array) -> list[int]:
        """The few that are nearest by sums with random signs: their distance, on average."""
        others = self._by_size.get(own.size, [])
        if len(others) <= PARTNERS_COMPARED:
            return others
        signs = np.random.default_rng(own.size).choice([-1.0, 1.0], (PARTNER_SUMS, own.size))
        if own.size not in self._sums:
            finite = [_finite(self._tensors[i].array) for i in others]
            self._sums[own.size] = np.array([signs @ array for array in finite])
        off = np.linalg.norm(self._sums[own.size] - signs @ _finite(own), axis=1)
        return [others[i] for i in np.argsort(off, kind="stable")[:PARTNERS_COMPARED]]

    def partner(self, array: Array) -> Partner | None:
        """The nearest of them in the same order; None where another one is about as near.

        What the model is given, an input, is one where it is the same.
        """
        own, scale = array.astype(np.float64).ravel(), norm(array)
        if array.dtype.kind != "f" or array.size < 2 or not 0 < scale < np.inf:
            return None
        for number in self._given.get(own.size, []):
            if np.array_equal(self._tensors[number].array, own):
                return Partner(own.reshape(array.shape), 0.0, number)
        near = self._near(own)
        found = sorted((_apart(own, self._tensors[i].array) / scale, i) for i in near)
        if not found or not found[0][0] < PARTNER_FARTHEST:
            return None
        off, first = found[0]
        one = self._tensors[first].array
        rivals = (
            f
            for f, i in found[1:]
            if _apart(self._tensors[i].array, one) > PARTNER_RIVAL * f * scale
        )
        if off * PARTNER_MARGIN > next(rivals, np.inf):
            return None
        return Partner(one.reshape(array.shape), off, first)

    def behind(self, begins: Collection[Partner], like: Array) -> list[Partner]:
        """What is made of some right tensors and has the size of another one, the nearest first.

        However far off its numbers are: by what the torch model does with the same tensors.
        """
        reached = [self._reached(one) for one in begins]
        if not reached:
            return []
        steps: dict[int, int] = {}
        for number in set(reached[0]).intersection(*reached[1:]):
            if self._tensors[number].numbers.size == like.size:
                steps[number] = max(one[number] for one in reached)
        scale = norm(_finite(like)) or 1.0
        own, made = like.astype(np.float64).ravel(), []
        for number in sorted(steps, key=lambda n: (steps[n], n))[:PARTNERS_PROPOSED]:
            array = self._tensors[number].array
            made.append(Partner(array.reshape(like.shape), _apart(own, array) / scale, number))
        return made

    def parameters(self, made: Partner, begins: Collection[Partner]) -> list[Array]:
        """What a right tensor is made of beside some others: parameters, then what a few
        operations make of those alone, as the angles of rotated positions are."""
        behind = self._behind(made, begins)
        fits = [self._tensors[number] for number, only in behind.items() if only]
        kept: list[Array] = []
        for one in sorted(fits, key=lambda one: not self._stands(one)):
            if not any(np.array_equal(one.array, other) for other in kept):
                kept.append(one.array)
        return kept

    def constants(self, made: Partner, begins: Collection[Partner]) -> list[float]:
        """Numbers that the operations were told that make a right tensor of some others."""
        behind = self._behind(made, begins)
        numbers = [c for n, only in behind.items() if not only for c in self._tensors[n].constants]
        return list(dict.fromkeys(numbers))

    def _behind(self, made: Partner, begins: Collection[Partner]) -> dict[int, bool]:
        """What a right tensor is made of, and whether that depends on none of some others."""
        ends = {number for one in begins for number in self.same(one.array)}
        found: dict[int, bool] = {}

        def fixed(number: int, steps: int) -> bool:
            """Whether it depends on none of the others."""
            if number in ends or steps > CONSTANT_STEPS:
                return False
            if number not in found:
                one = self._tensors[number]
                more = steps + (not one.is_view)
                parts = [fixed(before, more) for before in one.of]  # each of them is noted
                found[number] = all(parts)
            return found[number]

        if made.number >= 0:
            fixed(made.number, 0)
        return found

    def _stands(self, one: Made) -> bool:
        """Whether it is a parameter or a constant, or a view of one."""
        while one.is_view and one.of:
            one = self._tensors[one.of[0]]
        return one.op == GIVEN

    def with_bias(self, partner: Partner, own: Array) -> Partner | None:
        """Of a product without its bias, the sum in its place; None where it is no such product."""
        if partner.number < 0 or self._tensors[partner.number].op != PRODUCT:
            return None
        number = next(iter(self._takers[partner.number]))
        array = self._tensors[number].array.reshape(own.shape)
        return Partner(array, _apart(own, array) / (norm(own) or 1.0), number)

    def same(self, array: Array) -> list[int]:
        """Those of the very same numbers, what operations made before what is given."""
        own = array.ravel()
        same = (*self._by_size.get(own.size, ()), *self._given.get(own.size, ()))
        return [i for i in same if np.array_equal(self._tensors[i].array, own)]

    def _reached(self, begin: Partner) -> dict[int, int]:
        """What is made of a right tensor in a few operations; views cost none."""
        waiting = [(i, 0) for i in self.same(begin.array)]
        steps: dict[int, int] = {}
        while waiting:
            number, cost = waiting.pop()
            if steps.get(number, PARTNER_STEPS + 1) <= cost:
                continue
            steps[number] = cost
            for taker in self._takers.get(number, ()):
                more = cost + (not self._tensors[taker].is_view)
                if more <= PARTNER_STEPS:
                    waiting.append((taker, more))
        return {number: cost for number, cost in steps.items() if cost}


def _finite(array: Array) -> Array:
    return np.nan_to_num(array, nan=0.0, posinf=0.0, neginf=0.0)


def _apart(a: Array, b: Array) -> float:
    """The L2 distance; infinite where one is not finite and the other is another."""
    return norm(error_of(a, b))


def partners(right: Right, wide: Mapping[str, Array]) -> dict[str, Partner]:
    """Of a graph's tensors, in float64, those whose right numbers are known."""
    found = {name: right.partner(array) for name, array in wide.items()}
    return {name: partner for name, partner in found.items() if partner is not None}
