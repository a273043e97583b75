"""What a quantised candidate declares, and what its format costs. Numbers and names only.

    candidate - truth  =  (declared - truth)  +  (candidate - declared)
                           what the format costs     what the kernel adds: arithmetic, or a bug

*Declared* is the float64 run of the model with the weights and the rounding that the artefact
declares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from .jsonable import Size, Sparse
from .measure.decisions import Decisions
from .names import is_on_stream, is_output, stack_of

if TYPE_CHECKING:
    from .adapter import Backend


@dataclass(frozen=True)
class StoredAs:
    """Weights that are stored alike."""

    kind: str
    """The format of their numbers: int8, int4, fp8 (e4m3)."""
    block: str
    """What shares one step: a row, 32 numbers of a row, the whole matrix."""
    inputs: str
    """How the inputs of their products are rounded; empty where they are not."""
    weights: int
    elements: int
    bytes: int
    """What they take, their steps included."""

    @property
    def smaller(self) -> float:
        """How many times as much room they would take in float32."""
        return 4 * self.elements / self.bytes if self.bytes else math.inf


@dataclass(frozen=True)
class Misstored:
    """What an artefact has that is not the model's: a weight that is no rounding of its own, or
    another computation."""

    sentence: str
    beyond: Size
    """How many times what it may be off (half a step, for a rounding) the worst number is off."""


@dataclass(frozen=True)
class Declared:
    """What was read from a quantised artefact."""

    stored: tuple[StoredAs, ...]
    tips: bool
    """Whether numbers are rounded while it runs, so that one may tip over to the next by chance."""
    many_tip: bool = False
    """Whether many may: where the largest number of each row lies half-way between two, or where a
    runtime may round a number that is rounded anyway a little earlier, or sums in half precision
    come before."""
    half_way: bool = False
    """Whether it is the first of these alone: both ways to round it are known then."""
    wrong: Mapping[str, Misstored] = field(default_factory=dict)
    """By module: stored weights that are no rounding of the model's."""
    own_way: tuple[str, ...] = ()
    """Modules whose weights were not rounded to the nearest number, on purpose."""
    in_float: tuple[str, ...] = ()
    """Modules whose matrices are not rounded."""
    saved: Mapping[str, int] = field(default_factory=dict)
    """By module: the bytes that its rounded weight takes less than in float32."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """By module: what the artefact calls it, where that is another name."""


class Cut(Enum):
    """Where a quantised graph with nothing rounded cuts off what its numbers have no room for.

    Quantisers leave out activations (Relu, Clip) whose ends are those of the numbers behind them;
    what else is beyond the ends is the format's cost.
    """

    AT_ZERO = "at zero, where numbers end there"
    NOWHERE = "nowhere"
    BEHIND_ZERO = "at both ends, where one of them is zero"
    EVERYWHERE = "at both ends"


@dataclass(frozen=True, eq=False)
class HonestSides:
    """What a candidate that declares more than weights is judged by."""

    truth: Callable[[], Backend]
    """Itself in float64, rounded where it says so."""
    yardstick: Callable[[], Backend]
    """The same at its own precision, by plain arithmetic."""
    declared: Declared
    in_float: Callable[[Cut, bool], Backend]
    """The same in float64 with nothing rounded, and the model's own numbers for stored ones; those
    that are no rounding of the model's as they are, or moved by up to half a step."""
    may_be_folded: bool = False
    """Whether the model normalises what a layer gave, which may be folded into that layer: what is
    taken for the state before may be the one behind."""


@dataclass(frozen=True)
class FormatCost:
    """An error split in two (L2): what the format costs, and what the kernel adds."""

    WRITTEN: ClassVar[Mapping[str, str]] = {"total": "total", "snr_db": "snr_db"}
    format: Size
    kernel: Size
    cosine: Size
    """How far the two point the same way: total^2 = format^2 + kernel^2 + 2 cosine format kernel"""
    scale: Size
    """The size of the truth."""

    @property
    def total(self) -> float:
        """The candidate's distance from the truth."""
        both = 2 * self.cosine * self.format * self.kernel
        return float(max(0.0, self.format**2 + self.kernel**2 + both) ** 0.5)

    @property
    def snr_db(self) -> float:
        """The truth over what the format costs, in decibels."""
        return decibels(self.relative_format)

    @property
    def relative_format(self) -> float:
        return _over(self.format, self.scale)

    @property
    def relative_kernel(self) -> float:
        return _over(self.kernel, self.scale)


def _over(part: float, scale: float) -> float:
    """A part of the truth; nothing is no part, even of nothing."""
    return part / scale if scale > 0 else math.inf if part > 0 else part


def decibels(error: float) -> float:
    """The signal-to-noise ratio of a relative error."""
    return -20 * math.log10(error) if error > 0 else math.inf if error == 0 else math.nan


@dataclass(frozen=True)
class FormatFindings:
    """What a report says of the candidate's format."""

    stored: tuple[StoredAs, ...]
    """Which weights are stored how."""
    layers: Mapping[str, FormatCost]
    """By the name of the point."""
    decisions: Decisions | None = None
    """What the format alone does to the model's choices: the declared model against the truth."""
    wrong: Mapping[str, Misstored] = field(default_factory=dict)
    """By module, or by the name of the point: what is not the model's; their layers have drift."""
    own_way: tuple[str, ...] = ()
    """Modules whose weights were not rounded to the nearest number, on purpose."""
    in_float: tuple[str, ...] = ()
    """Modules whose matrices are not rounded."""
    exceeded: Sparse[tuple[str, ...]] = ()
    """Where it costs more than the user allows, in a few words each."""

    @property
    def output(self) -> tuple[str, FormatCost] | None:
        """The output with the lowest SNR; the last point where no output was met."""
        outputs = [(name, cost) for name, cost in self.layers.items() if is_output(name)]
        if outputs:
            return min(outputs, key=lambda one: _worst_first(one[1].snr_db))
        return next(reversed(list(self.layers.items())), None)

    @property
    def added(self) -> dict[str, float]:
        """What the format's cost, relative to the state, grows by at each point of the stream.

        Errors that have nothing to do with each other add in squares: added^2 = now^2 - before^2.
        A layer that enlarges what it was handed is not told from one whose own weights cost much.
        """
        return dict(self._added())

    @property
    def ranking(self) -> tuple[str, ...]:
        """Points at which the format's cost grows, the largest growth first."""
        added = self.added
        return tuple(sorted((name for name in added if added[name] > 0), key=lambda n: -added[n]))

    def _added(self) -> Iterator[tuple[str, float]]:
        latest = 0.0
        in_stack: dict[str, float] = {}
        for name, cost in self.layers.items():
            now, stack = cost.relative_format, stack_of(name)
            if not (is_output(name) or is_on_stream(name)):
                continue
            before = latest if stack is None else in_stack.get(stack, 0.0)
            yield name, math.sqrt(max(0.0, now**2 - before**2)) if math.isfinite(now) else now
            if stack is not None:
                latest = in_stack[stack] = now


def _worst_first(snr: float) -> float:
    """NaN is worse than any number."""
    return -math.inf if math.isnan(snr) else snr
