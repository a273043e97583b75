"""Whether a cut shows a drift, how large, and whether it is the same one as before.

error    c - x: the runtime with the candidate's options, less the cut in float64
honest   how far off the runtime is with nothing optimised; where it is as far off then, ONNX's
         reference in the graph's own types is, or, of what is large for that, the float64 run
         with every result rounded; at least one roundoff of what comes out
ratio    |error| / |honest|
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, DriftwalkError

from ..onnx.backend import Sessions
from ..onnx.graph import OnnxGraph
from ..onnx.sessions import quick_session
from ..onnx.wide.truth import GraphTruth
from ..onnx.wide.widen import Widening
from .cuts import Cut

LIMIT = 4.0
"""Times what is honest: less than that is no drift (DESIGN.md, section 3)."""
ALIKE, FACTOR, FREE = 0.9, 2.0, 4.0
"""Of two errors at one place: the least cosine, the largest quotient of their sizes; and that of
their relative sizes where the values themselves differ."""
SIGNS = 0.3
"""How far the shares of positive errors may be apart where values differ."""
_MOST_VALUES = 50_000
"""Numbers of a cut that ONNX's reference, which is slow, is still asked of."""
_DOUBLE, _NARROWER = 11, (1, 10)
"""onnx.TensorProto.DataType of float64, and of float32 and float16."""
_OF_SUMS = 3.0
"""Times its roundoffs alone, what an operation that adds up many numbers is off by."""
_ROUNDS = ("Quantize", "Dequantize", "QLinear", "Integer", "NBits")


@dataclass(frozen=True, eq=False)
class Shown:
    """What a cut gave, what it should have given, and how far off an honest run is."""

    found: Array
    truth: Array
    honest: float
    as_written: float
    """The ratio with nothing optimised."""

    @property
    def error(self) -> Array:
        """Where one of both is not finite, the error is: infinite, or none where both agree."""
        return error_of(self.found, self.truth)

    @property
    def size(self) -> float:
        return norm(self.error)

    @property
    def ratio(self) -> float:
        return self.size / self.honest

    @property
    def relative(self) -> float:
        finite = self.truth[np.isfinite(self.truth)]
        return self.size / (norm(finite) or 1.0)

    @property
    def positive(self) -> float:
        """The share of positive errors among those that stand out."""
        error = np.where(np.isfinite(self.error), self.error, 1.0)
        if not error.size:
            return 0.5
        large = error[np.abs(error) >= 0.1 * np.abs(error).max()]
        return float(np.mean(large > 0))

    @property
    def drifts(self) -> bool:
        return self.ratio > LIMIT


def error_of(found: Array, truth: Array) -> Array:
    found, truth = found.astype(np.float64), truth.astype(np.float64)
    with np.errstate(invalid="ignore"):
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
        and cosine(new, old) >= ALIKE
        and within(norm(new), norm(old), FACTOR)
    )


def same_kind(new: Shown, old: Shown) -> bool:
    """Whether a drift on other values is the same one: size, signs, and what it takes to show."""
    return (
        within(new.relative, old.relative, FREE)
        and abs(new.positive - old.positive) <= SIGNS
        and (new.as_written > LIMIT) == (old.as_written > LIMIT)
    )


class Judge:
    """Runs cuts as the candidate runs its graph, and in float64."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.runs = 0

    def show(self, cut: Cut, expected: Array | None = None, beside: float = 0.0) -> Shown | None:
        """None where the cut does not run; `expected` is right, where its own float64 is not.

        `beside` is honest noise that is known already.
        """
        self.runs += 1
        model = cut.model()
        try:
            found = self._found(model, cut)
            truth = wide(cut) if expected is None else expected
        except DriftwalkError:
            return None
        if found.shape != truth.shape or found.dtype.kind != "f" or not found.size:
            return None
        own = wide_or_none(cut) if expected is not None else truth
        plain = self._found(model, cut, "off")
        if own is None or plain.shape != own.shape:
            return None
        size, draws = norm(error_of(found, truth)), [norm(error_of(plain, own))]
        unclear = size <= LIMIT * max(draws)  # the runtime may be as wrong with nothing optimised
        if unclear and (plainly := self._plainly(model, cut)) is not None:
            draws.append(norm(error_of(plainly[0], own)) * plainly[1])
        scale = max(norm(array[np.isfinite(array)]) for array in (truth, found))
        floor = float(np.finfo(found.dtype).eps) / 2 * scale
        honest = max(min(draws), floor, beside, float(np.finfo(np.float32).tiny))
        return Shown(found, truth, honest, norm(error_of(plain, truth)) / honest)

    @staticmethod
    def _plainly(model: Any, cut: Cut) -> tuple[Array, float] | None:
        """An honest run of another make, and how much more than its own error is honest."""
        if cut.values <= _MOST_VALUES and (made := by_definition(model, cut.given)) is not None:
            return made, 1.0
        made = with_roundoffs(cut)
        return None if made is None else (made, _OF_SUMS)

    def _found(self, model: Any, cut: Cut, level: str = "") -> Array:
        session = self._sessions.of_bytes(model.SerializeToString(), Path(), level)
        given = self._sessions.ask(session, [cut.output], dict(cut.given), "the reduced graph")
        return np.asarray(given[cut.output])


def wide(cut: Cut, instead: Mapping[str, Array] | None = None, names: tuple[str, ...] = ()) -> Any:
    """What a cut gives in float64; `instead` are other values of what it is given.

    With `names`, a dict of these tensors.
    """
    asked = names or (cut.output,)
    feed = {**cut.given, **(instead or {})}
    graph = OnnxGraph(Path("reduced.onnx"), cut.model())
    truth = GraphTruth(graph, feed)
    made = truth.tensors(asked)
    rounded = [op for op in truth.islands if not any(word in op for word in _ROUNDS)]
    if rounded and cut.values <= _MOST_VALUES:
        exact = _by_definition_wide(truth, feed, asked)
        made = exact if exact is not None else made
    if names:
        return made
    if cut.output not in made:
        raise BackendError("what comes out is no float")
    return made[cut.output]


def wide_or_none(cut: Cut) -> Array | None:
    try:
        found: Array = wide(cut)
    except DriftwalkError:
        return None
    return found


def _by_definition_wide(
    truth: GraphTruth, feed: Mapping[str, Any], names: tuple[str, ...]
) -> dict[str, Array] | None:
    """By ONNX's reference in float64, where the runtime has no operation of that type."""
    widening = Widening(truth._model, truth._known, truth._load, ())
    made = widening.made(names)
    wide_feed = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in feed.items()}
    found = _reference(made, wide_feed)
    return None if found is None else dict(zip(names, found, strict=True))


def with_roundoffs(cut: Cut) -> Array | None:
    """A cut in float64, every result rounded to the type that it has in the graph."""
    from onnx import helper

    try:
        truth = GraphTruth(OnnxGraph(Path("reduced.onnx"), cut.model()), cut.given)
        truth.tensors([cut.output])  # finds out what stays narrow
        model = Widening(truth._model, truth._known, truth._load, truth._narrow).made([cut.output])
        nodes = []
        for node in model.graph.node:
            nodes.append(node)
            for place, name in enumerate(node.output):
                kind = truth._known.number(name)
                if kind in _NARROWER:
                    node.output[place] = f"{name}/exact"
                    narrow = [f"{name}/rounded"]
                    nodes.append(helper.make_node("Cast", [node.output[place]], narrow, to=kind))
                    nodes.append(helper.make_node("Cast", narrow, [name], to=_DOUBLE))
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(copies)
        session = quick_session(model.SerializeToString(), Path())
        feed = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in cut.given.items()}
        taken = {value.name: feed[value.name] for value in session.get_inputs()}
        return np.asarray(session.run([cut.output], taken)[0])
    except Exception:  # the runtime raises what it likes; there is another yardstick
        return None


def by_definition(model: Any, feed: Mapping[str, Array]) -> Array | None:
    """What ONNX's reference implementation gives; None where it has no such operation."""
    found = _reference(model, feed)
    return None if found is None else found[0]


def _reference(model: Any, feed: Mapping[str, Any]) -> list[Array] | None:
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, dict(feed))]
    except Exception:  # it raises whatever numpy makes it raise; there is another yardstick
        return None
