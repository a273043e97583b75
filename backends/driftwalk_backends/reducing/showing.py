"""Whether a cut shows a drift, how large, and whether it is the same one as before.

error    c - x: the runtime with the candidate's options, less the cut in float64
honest   how far off the runtime is with nothing optimised; where it is as far off then, ONNX's
         reference in the graph's own types is, or, of what is large for that, the float64 run
         with every result rounded; at least one roundoff of what comes out
ratio    |error| / |honest|
marked   where a graph is wrong in few of a tensor's numbers, the roundoffs of all others may hide
         it: these are the numbers that are wrong in float64, and the drift is looked for in them
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import DriftwalkError

from .constants import (
    DRIFT_LIMIT,
    MARKED_SHARE,
    SAME_DRIFT_COSINE,
    SAME_DRIFT_RELATIVE,
    SAME_DRIFT_SIZES,
    SIGNED_SHARE,
    SIGNS_APART,
)
from .cuts import Cut


@dataclass(frozen=True, eq=False)
class Shown:
    """What a cut gave, what it should have given, and how far off an honest run is."""

    found: Array
    truth: Array
    honest: float
    as_written: float
    """The ratio with nothing optimised."""
    marked: Array | None = None
    """Of the numbers that are wrong which these are, where the whole hides them."""
    clear: float = 0.0
    """The ratio of those that are marked."""

    @property
    def error(self) -> Array:
        """Where one of both is not finite, the error is: infinite, or none where both agree."""
        return error_of(self.found, self.truth)

    @property
    def seen(self) -> Array:
        """The error where it is marked."""
        return self.error if self.marked is None else np.where(self.marked, self.error, 0.0)

    @property
    def size(self) -> float:
        return norm(self.error)

    @property
    def ratio(self) -> float:
        return self.size / self.honest

    @property
    def relative(self) -> float:
        finite = self.truth[np.isfinite(self.truth)]
        return norm(self.seen) / (norm(finite) or 1.0)

    @property
    def positive(self) -> float:
        """The share of positive errors among those that stand out."""
        error = np.where(np.isfinite(self.seen), self.seen, 1.0)
        if not error.size:
            return 0.5
        large = error[np.abs(error) >= SIGNED_SHARE * np.abs(error).max()]
        return float(np.mean(large > 0))

    @property
    def clearest(self) -> float:
        """The ratio of the whole, or of what is marked."""
        return max(self.ratio, self.clear)

    @property
    def shows_whole(self) -> bool:
        """Whether the whole tensor drifts, as a script shows it that knows no marks."""
        return self.ratio > DRIFT_LIMIT

    @property
    def drifts(self) -> bool:
        return self.clearest > DRIFT_LIMIT


def error_of(found: Array, truth: Array) -> Array:
    with np.errstate(invalid="ignore"):  # of infinities, and of NaNs that signal
        found, truth = found.astype(np.float64), truth.astype(np.float64)
        error = found - truth
    same = (found == truth) | (np.isnan(found) & np.isnan(truth))
    made: Array = np.where(same, 0.0, np.where(np.isfinite(error), error, np.inf))
    return made


def norm(array: Array) -> float:
    return float(np.linalg.norm(array.astype(np.float64).ravel())) if array.size else 0.0


def cosine(a: Array, b: Array) -> float:
    """Of two errors; of infinite ones, by where they are infinite."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        a, b = (~np.isfinite(a)).astype(float), (~np.isfinite(b)).astype(float)
    scale = norm(a) * norm(b)
    return float(np.dot(a.ravel(), b.ravel()) / scale) if scale else 0.0


def within(a: float, b: float, factor: float) -> bool:
    if math.isinf(a) or math.isinf(b):
        return a == b
    return b / factor <= a <= b * factor


def same_place(new: Array, old: Array) -> bool:
    """Whether two errors at one tensor are one drift: direction and size."""
    return (
        new.shape == old.shape
        and cosine(new, old) >= SAME_DRIFT_COSINE
        and within(norm(new), norm(old), SAME_DRIFT_SIZES)
    )


def same_kind(new: Shown, old: Shown) -> bool:
    """Whether a drift on other values is the same one: size, signs, and what it takes to show."""
    return (
        within(new.relative, old.relative, SAME_DRIFT_RELATIVE)
        and abs(new.positive - old.positive) <= SIGNS_APART
        and (new.as_written > DRIFT_LIMIT) == (old.as_written > DRIFT_LIMIT)
    )


def _honest(draws: Sequence[Array], truth: Array, found: Array) -> float:
    """How far off an honest run is, at least by a roundoff of what comes out."""
    scale = max(norm(array[np.isfinite(array)]) for array in (truth, found))
    floor = float(np.finfo(found.dtype).eps) / 2 * scale
    return max(min(map(norm, draws), default=0.0), floor, float(np.finfo(np.float32).tiny))


def _with_marks(shown: Shown, own: Array, plain: Array, draws: Sequence[Array]) -> Shown:
    """Judged by the numbers that are wrong in float64, `own`, alone."""
    wrong = np.abs(error_of(own, shown.truth))
    marked = wrong >= MARKED_SHARE * wrong.max(initial=0.0)
    if not wrong.any() or not np.isfinite(wrong).all() or marked.all():
        return shown
    draws = [draw[marked] for draw in draws]
    honest = _honest(draws, shown.truth[marked], shown.found[marked])
    as_written = norm(error_of(plain, shown.truth)[marked]) / honest
    clear = norm(shown.error[marked]) / honest
    return replace(shown, as_written=as_written, marked=marked, clear=clear)


class Judge(ABC):
    """Runs cuts as the candidate runs what they were taken out of, and in float64."""

    def show(self, cut: Cut, expected: Array | None = None) -> Shown | None:
        """None where the cut does not run; `expected` is right, where its own float64 is not."""
        try:
            found = self._as_candidate(cut)
            truth = self.wide(cut) if expected is None else expected
        except DriftwalkError:
            return None
        if found.shape != truth.shape or found.dtype.kind != "f" or not found.size:
            return None
        own = self.wide_or_none(cut) if expected is not None else truth
        plain = self._as_written(cut)
        if own is None or plain.shape != own.shape:
            return None
        size, draws = norm(error_of(found, truth)), [error_of(plain, own)]
        unclear = size <= DRIFT_LIMIT * norm(draws[0])  # it may be as wrong with nothing optimised
        if unclear and (another := self._by_another(cut)) is not None:
            draws.append(error_of(another[0], own) * another[1])
        if expected is not None:  # a wrong graph may overflow, whoever runs it
            draws = [draw for draw in draws if np.isfinite(draw).all()]
        honest = _honest(draws, truth, found)
        shown = Shown(found, truth, honest, norm(error_of(plain, truth)) / honest)
        return shown if expected is None or shown.drifts else _with_marks(shown, own, plain, draws)

    def wide_or_none(self, cut: Cut, instead: Mapping[str, Array] | None = None) -> Array | None:
        try:
            found: Array = self.wide(cut, instead)
        except (DriftwalkError, KeyError):
            return None
        return found

    @abstractmethod
    def wide(
        self, cut: Cut, instead: Mapping[str, Array] | None = None, names: tuple[str, ...] = ()
    ) -> Any:
        """What a cut gives in float64; `instead` are other values of what it is given.

        With `names`, a dict of these tensors.
        """

    @abstractmethod
    def _as_candidate(self, cut: Cut) -> Array:
        """With all that the candidate does."""

    @abstractmethod
    def _as_written(self, cut: Cut) -> Array:
        """With nothing optimised."""

    @abstractmethod
    def _by_another(self, cut: Cut) -> tuple[Array, float] | None:
        """An honest run of another make, and how much more than its own error is honest."""
