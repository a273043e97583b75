"""Cuts of a graph as ONNX Runtime runs them, in float64, and by ONNX's reference."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from ..onnx.backend import Sessions
from ..onnx.graph import OnnxGraph
from ..onnx.sessions import quick_session
from ..onnx.wide.truth import GraphTruth
from ..onnx.wide.widen import Widening
from .constants import GRAPH_SUMS
from .cuts import Cut
from .showing import Judge

_MOST_VALUES = 50_000
"""Numbers of a cut that ONNX's reference, which is slow, is still asked of."""
_DOUBLE, _NARROWER = 11, (1, 10)
"""onnx.TensorProto.DataType of float64, and of float32 and float16."""
_ROUNDS = ("Quantize", "Dequantize", "QLinear", "Integer", "NBits")


class GraphJudge(Judge):
    """Runs cuts as a candidate on ONNX Runtime runs its graph."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def wide(
        self, cut: Cut, instead: Mapping[str, Array] | None = None, names: tuple[str, ...] = ()
    ) -> Any:
        return wide(cut, instead, names)

    def _as_candidate(self, cut: Cut, level: str = "") -> Array:
        session = self._sessions.of_bytes(cut.model().SerializeToString(), Path(), level)
        given = self._sessions.ask(session, [cut.output], dict(cut.given), "the reduced graph")
        return np.asarray(given[cut.output])

    def _as_written(self, cut: Cut) -> Array:
        return self._as_candidate(cut, "off")

    def _by_another(self, cut: Cut) -> tuple[Array, float] | None:
        if cut.values <= _MOST_VALUES:
            made = by_definition(cut.model(), cut.given)
            if made is not None:
                return made, 1.0
        made = with_roundoffs(cut)
        return None if made is None else (made, GRAPH_SUMS)


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
