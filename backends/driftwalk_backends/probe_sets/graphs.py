"""Edges of whatever a graph declares that it takes: rows and lengths of open axes, the first and
the last id of the table that an input chooses from, padding where it takes a mask, and numbers.

A graph has no tokenizer and no config: types, shapes and names of its inputs are all there is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import DriftwalkError, ProbeError
from driftwalk.states import Probe

from ..calls import first_line
from ..onnx.pairs.defaults import rows_chosen
from ..onnx.pairs.feeding import Trial
from ..onnx.pairs.model import OnnxModel
from ..onnx.pairs.probe import fed, graph_probe
from .values import value_edges

Inputs = dict[str, Array]
Named = tuple[str, Inputs]
USUAL = 2, 16
SHAPES = {"one row": (1, 16), "length 1": (1, 1), "length 2": (2, 2), "length 33": (3, 33)}
"""Rows and lengths, where the graph leaves them open."""
_STANDS = ("mask", "past", "state", "hidden", "cell")
"""Floats of these names are no values of an input that a user has."""


class GraphEdges:
    """The edges of one graph, each run once: what it does not take is left out, with a note."""

    def __init__(self, model: OnnxModel, seed: int) -> None:
        self._model, self._seed = model, seed
        self._trial = Trial(model.graph)
        self.notes: list[str] = []

    def probes(self, origin: str) -> Iterator[tuple[str, Probe]]:
        """Names and probes, none of them twice."""
        seen: set[str] = set()
        for name, inputs in self._all():
            try:
                asked = Probe(inputs, f"{origin} ({name})")
                rows, length = USUAL
                probe = graph_probe(self._model, asked, batch=rows, length=length, seed=self._seed)
                if probe.sha256 in seen:
                    continue
                self._check(probe)
            except DriftwalkError as error:
                told = f"{origin} without {name!r}, which the graph does not take"
                self.notes.append(f"{told}: {first_line(error)}")
                continue
            seen.add(probe.sha256)
            yield name, probe

    def _check(self, probe: Probe) -> None:
        """An error where the graph does not run on a probe, or gives no numbers."""
        feed = fed(self._model.label, self._model.graph.inputs, dict(probe.inputs))
        failure = self._trial.failure(feed)
        if failure is not None:
            raise ProbeError(failure.text)
        if not self._trial.gives_numbers(feed):
            raise ProbeError("it gives NaN or infinity there")

    def _all(self) -> Iterator[Named]:
        base = self._sized(*USUAL)
        yield "usual", base
        for name, size in SHAPES.items():
            try:
                yield name, self._sized(*size)
            except DriftwalkError as error:
                self.notes.append(f"No probe of {name}: {first_line(error)}")
        yield from self._ids(base)
        yield from self._paddings(base)
        values = {n: a for n, a in base.items() if a.size and not any(w in n for w in _STANDS)}
        for name, inputs in value_edges(values, None):
            yield name, {**base, **inputs}

    def _sized(self, rows: int, length: int) -> Inputs:
        made = graph_probe(self._model, None, batch=rows, length=length, seed=self._seed)
        return dict(made.inputs)

    def _ids(self, base: Inputs) -> Iterator[Named]:
        """Inputs that choose rows of a stored table: its ends, and one row again and again."""
        for name, array in base.items():
            bound = rows_chosen(self._model.graph, name) if array.dtype.kind in "iu" else None
            if bound is None or bound < 2 or "position" in name:
                continue
            turns = np.arange(array.size).reshape(array.shape)
            if "type" in name:
                yield f"{name}: all {bound}", {**base, name: (turns % bound).astype(array.dtype)}
                continue
            ends = np.where(turns % 2, bound - 1, 0)
            yield f"{name}: the first and the last", {**base, name: ends.astype(array.dtype)}
            yield f"{name}: one repeated", {**base, name: np.full_like(array, bound // 2)}

    def _paddings(self, base: Inputs) -> Iterator[Named]:
        """A second row with padding: at its end, at its beginning, at both."""
        for name, array in base.items():
            is_mask = "mask" in name and array.dtype.kind in "iub" and array.ndim == 2
            if not is_mask or len(array) < 2 or array.shape[1] < 4 or not array.all():
                continue
            length = array.shape[1]
            half, third = length // 2, length // 3
            sides = {
                "padding on the right": [slice(half, None)],
                "padding on the left": [slice(0, half)],
                "padding on both sides": [slice(0, third), slice(length - third, None)],
            }
            for side, parts in sides.items():
                mask = array.copy()
                for part in parts:
                    mask[1, part] = 0
                yield f"{name}: {side}", {**base, name: mask}
