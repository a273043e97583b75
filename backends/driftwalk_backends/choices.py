"""Choices that a model makes by its own numbers, and runs in which close ones tip over.

A router's top-k, a detector's best queries, a sort, a threshold, a duration that is rounded: where
two numbers are closer than honest arithmetic can tell apart, one run takes the one and another run
the other. A run with roundoffs is recorded (`Recorded`): how far it moves the numbers that are
compared is their noise. In a second run (`Tipped`) numbers that are closer than that exchange their
values before they are compared: a change no larger than the noise itself, and every choice that it
could tip over does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .constants import DISPLACED_SCORES
from .op_mode import OpMode
from .op_values import leaves_of, tensors_of, written
from .widening import Args, Kwargs

RANKINGS = {"topk", "sort", "argsort", "argmax", "argmin", "max", "min", "kthvalue", "median"}
"""Ops that say which of the numbers along an axis is the largest, the next ..."""

COMPARISONS = {"gt", "ge", "lt", "le", "greater", "greater_equal", "less", "less_equal"}
"""Ops that say which of two numbers is the larger; equality is asked of exact numbers."""

ROUNDINGS = {"round": 0.5, "floor": 0.0, "ceil": 0.0, "trunc": 0.0, "_to_copy": 0.0}
"""Ops that make whole numbers of others, and where between two whole numbers they jump."""


_WHOLE_NUMBERS = {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}

Key = tuple[str, torch.Size, int]


@dataclass(frozen=True)
class Ranking:
    """What a ranking asks for."""

    axis: int | None
    """None: of all numbers."""
    best: int
    """How many of the first are told from the rest; 0: all from one another."""
    descending: bool

    @classmethod
    def of(cls, func: Any, args: Args, kwargs: dict[str, Any]) -> Ranking | None:
        """None for an op that gives no place, only a number."""
        schema = func._schema
        name = func._overloadpacket.__name__
        takes = {argument.name: argument.default_value for argument in schema.arguments}
        takes |= dict(zip(takes, args, strict=False)) | kwargs
        if "dim" not in takes or (takes["dim"] is None and not name.startswith("arg")):
            return None
        if not takes["self"].ndim or schema.is_mutable:
            return None
        descending = bool(takes.get("largest", takes.get("descending", "max" in name)))
        best = {"topk": takes.get("k"), "kthvalue": takes.get("k")}.get(name, 1)
        if "sort" in name or name == "median":
            best = 0
        return cls(takes["dim"], int(best or 0), descending)


class Recorded(OpMode):
    """Sees every choice that is made of computed numbers, in order, and keeps those numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.scores: dict[Key, torch.Tensor] = {}
        self._seen: Counter[tuple[str, torch.Size]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_of(args, kwargs)
        computed = any(t.is_floating_point() and not _is_constant(t) for t in tensors)
        if computed:
            given = self._computed(func, args, kwargs)
            for leaf in leaves_of(given):
                if isinstance(leaf, torch.Tensor) and not leaf.ndim and _alive(leaf) is None:
                    _mark(leaf, [False])
            for target in written(func, args, kwargs):
                if (alive := _alive(target)) is not None:
                    alive[0] = False
            return given
        given = func(*args, **kwargs)
        shared = next((alive for t in tensors if (alive := _alive(t)) is not None), None)
        for leaf in leaves_of(given):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                alive = shared if func.is_view and shared is not None else [True]
                _mark(leaf, alive)
        return given

    def _computed(self, func: Any, args: Args, kwargs: dict[str, Any]) -> Any:
        """An op on numbers that are not made of integers and constants alone."""
        name = func._overloadpacket.__name__
        if name in RANKINGS and (ranking := Ranking.of(func, args, kwargs)) is not None:
            with torch._C._DisableTorchDispatch():
                scores = self.ranked(self._key(name, args[0].shape), args[0], ranking)
            return func(scores, *args[1:], **kwargs)
        if name in ROUNDINGS and _rounds(func, args, kwargs):
            with torch._C._DisableTorchDispatch():
                number = self.rounded(self._key(name, args[0].shape), args[0], ROUNDINGS[name])
            return func(number, *args[1:], **kwargs)
        given = func(*args, **kwargs)
        if name in COMPARISONS and len(args) == 2:
            with torch._C._DisableTorchDispatch():
                margin = args[0] - args[1]
                return self.compared(self._key(name, margin.shape), margin, given)
        return given

    def _key(self, name: str, shape: torch.Size) -> Key:
        self._seen[name, shape] += 1
        return name, shape, self._seen[name, shape]

    def ranked(self, key: Key, scores: torch.Tensor, ranking: Ranking) -> torch.Tensor:
        """The numbers to rank, instead of these."""
        self.scores[key] = scores.clone()
        return scores

    def compared(self, key: Key, margin: torch.Tensor, larger: torch.Tensor) -> torch.Tensor:
        """What a comparison says, instead of this; `margin` is the difference that decides."""
        self.scores[key] = margin
        return larger

    def rounded(self, key: Key, number: torch.Tensor, jump: float) -> torch.Tensor:
        """The numbers to round, instead of these; `jump` is where results jump between two."""
        self.scores[key] = number.clone()
        return number


class Tipped(Recorded):
    """Takes the other branch wherever the noise of the numbers could."""

    def __init__(self, noisy: Mapping[Key, torch.Tensor], reach: float) -> None:
        super().__init__()
        self._noisy = noisy
        self._reach = reach
        self.count = 0
        """How many close numbers changed places."""

    def ranked(self, key: Key, scores: torch.Tensor, ranking: Ranking) -> torch.Tensor:
        if (noisy := self._noisy.get(key)) is None:
            return scores
        axis = 0 if ranking.axis is None else ranking.axis
        shape = scores.shape
        if ranking.axis is None:
            scores, noisy = scores.flatten(), noisy.flatten()
        last = scores.movedim(axis, -1)
        moved = (noisy.movedim(axis, -1) - last).abs().nan_to_num(0.0, 0.0)
        values, order = last.sort(dim=-1, descending=ranking.descending, stable=True)
        room, moved = self._room(values, moved.gather(-1, order)), moved.gather(-1, order)
        places = exchanged(values, room, moved > 0, ranking.best)
        changed = places != torch.arange(places.shape[-1], device=places.device)
        if changed.any():
            self.count += int(changed.sum())
            values = torch.empty_like(values).scatter_(-1, places, values)
            last = torch.empty_like(last).scatter_(-1, order, values)
        if key[0] == "topk":
            last, parted = without_ties(last, ranking.best, ranking.descending)
            self.count += parted
        return last.movedim(-1, axis).reshape(shape)

    def compared(self, key: Key, margin: torch.Tensor, larger: torch.Tensor) -> torch.Tensor:
        if key not in self._noisy:
            return larger
        moved = (self._noisy[key] - margin).abs().nan_to_num(0.0, 0.0)
        close = (margin.abs() <= self._room(margin, moved)) & (moved > 0)
        self.count += int(close.sum())
        return larger ^ close if close.any() else larger

    def rounded(self, key: Key, number: torch.Tensor, jump: float) -> torch.Tensor:
        """Numbers next to a jump are mirrored at it."""
        if (noisy := self._noisy.get(key)) is None:
            return number
        moved = (noisy - number).abs().nan_to_num(0.0, 0.0)
        nearest = (number - jump).round() + jump
        margin = (number - nearest).abs()
        # What is whole already was rounded before, or cut off: there is nothing to tip.
        close = (margin <= self._room(number, moved)) & (moved > 0) & (number != number.round())
        self.count += int(close.sum())
        return torch.where(close, 2 * nearest - number, number)

    def _room(self, scores: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
        """How close to another number each of these is decided by chance."""
        counted = (moved > 0) & scores.isfinite()
        if not counted.any():
            return torch.zeros_like(scores)
        shares = moved[counted] / scores[counted].abs()
        typical = torch.maximum(moved[counted].median(), shares.median() * scores.abs())
        typical = torch.where(scores.isfinite(), typical, 0.0)
        rows = moved.square().mean(-1, keepdim=True).sqrt() if moved.ndim else moved
        return torch.maximum(self._reach * typical, DISPLACED_SCORES * rows)


def without_ties(scores: torch.Tensor, best: int, descending: bool) -> tuple[torch.Tensor, int]:
    """Scores of which other ones are the best, where equal ones compete for the last places.

    Which of them top-k takes is nowhere laid down: PyTorch takes any, ONNX the first. Those taken
    here become worse by one unit in the last place. Also, how many these are.
    """
    if not 0 < best < scores.shape[-1]:
        return scores, 0
    values = scores.topk(best + 1, dim=-1, largest=descending).values
    last, next_one = values[..., best - 1 : best], values[..., best:]
    # Infinite scores are masked out, and as bad as can be.
    tied = (last == next_one) & last.isfinite()
    if not tied.any():
        return scores, 0
    taken = scores.topk(best, dim=-1, largest=descending).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, taken, True)
    chosen &= tied & (scores == last)
    worse = torch.full_like(scores, -torch.inf if descending else torch.inf)
    return torch.where(chosen, scores.nextafter(worse), scores), int(chosen.sum())


def _rounds(func: Any, args: Args, kwargs: dict[str, Any]) -> bool:
    """Whether an op makes whole numbers of floats, and of nothing else."""
    number, wanted = args[0], kwargs.get("dtype")
    if func._schema.is_mutable or not number.is_floating_point() or kwargs.get("decimals"):
        return False
    if func is not torch.ops.aten._to_copy.default:
        return True
    return wanted in _WHOLE_NUMBERS


def exchanged(
    values: torch.Tensor, room: torch.Tensor, noisy: torch.Tensor, best: int
) -> torch.Tensor:
    """At which place each of the ranked numbers stands once close ones have changed places.

    Pairs change places, as far from one another as is close: in a row of numbers that are all next
    to equal honest arithmetic does not exchange neighbours, it deals the row anew. Pairs are
    counted from the place that parts the first `best` from the rest. One that is left over between
    pairs changes places with its neighbour.
    """
    count = values.shape[-1]
    order = torch.arange(count, device=values.device)
    place = order.expand(values.shape)
    alone = torch.ones_like(noisy)

    def close(apart: int) -> torch.Tensor:
        """Which numbers are close to the one so many places on."""
        starts = torch.zeros_like(noisy)
        one, other = slice(None, count - apart), slice(apart, None)
        gaps = (values[..., one] - values[..., other]).abs()
        wide = torch.maximum(room[..., one], room[..., other])
        # Numbers without noise (masked out, all zero) are the same to everybody.
        starts[..., one] = (gaps <= wide) & (noisy[..., one] | noisy[..., other])
        return starts

    def swapped(starts: torch.Tensor, apart: int) -> torch.Tensor:
        ends = starts.roll(apart, -1)
        onwards, back = place.roll(-apart, -1), place.roll(apart, -1)
        return torch.where(starts, onwards, torch.where(ends, back, place))

    for apart in reversed([2**power for power in range(count.bit_length()) if 2**power < count]):
        near = close(apart)
        for first in (best - apart, best):
            starts = near & alone & alone.roll(-apart, -1)
            starts &= (order - first) % (2 * apart) < apart
            place = swapped(starts, apart)
            alone = alone & ~(starts | starts.roll(apart, -1))
    neighbours = close(1)
    onwards = neighbours & alone
    place, alone = swapped(onwards, 1), alone & ~onwards
    place = swapped(neighbours & alone.roll(-1, -1), 1)
    return place


def _alive(tensor: torch.Tensor) -> list[bool] | None:
    """What tells whether a tensor is still made of integers and constants; views share it."""
    alive: list[bool] | None = getattr(tensor, "_driftwalk_constant", None)
    return alive


def _mark(tensor: torch.Tensor, alive: list[bool]) -> None:
    setattr(tensor, "_driftwalk_constant", alive)  # noqa: B010


def _is_constant(tensor: torch.Tensor) -> bool:
    alive = _alive(tensor)
    if alive is None:  # a number that is written into a tensor: PyTorch makes it unseen
        return not tensor.ndim and not isinstance(tensor, torch.nn.Parameter)
    return alive[0]
