"""The truth and the yardstick of a pair of graphs: the model's graph in float64, and as written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ..dtypes import Array
from ..errors import BackendError
from ..registry import create
from ..states import Probe
from .by_truth import Witnesses

if TYPE_CHECKING:
    from driftwalk_backends.onnx.pairs.model import OnnxModel
    from driftwalk_backends.onnx.pairs.runtime import GraphRuntime

AS_WRITTEN = "onnxruntime,opt=off"
"""The default reference, and the yardstick: the graph itself, nothing optimised."""


_ROUNDING = ("Quantize", "Dequantize", "QLinear", "Integer", "NBits")


class GraphWitness:
    """Gives tensors of the model's graph in float64 and as written, on one probe."""

    def __init__(self, model: OnnxModel, first: GraphRuntime, probe: Probe) -> None:
        from driftwalk_backends.onnx.wide.truth import GraphTruth

        self._probe = probe
        self._own = None if first.is_as_written else create(AS_WRITTEN, model)
        self.written = first if self._own is None else cast("GraphRuntime", self._own)
        self._truth = GraphTruth(model.graph, self.written.feed(probe))
        ends = tuple(value.name for value in model.graph.outputs)
        self._wide = {ends: self._truth.tensors(ends)}

    def of(self, names: Sequence[str], known: Mapping[str, Array]) -> dict[str, Witnesses]:
        """Both for some tensors; `known` are those that the reference gave, under these names."""
        given = known
        if self._own is not None:
            inner, ends = self.written.tensors(self._probe, names)
            given = {**inner, **ends}
        wide = self._wide_of(tuple(names)) if names else {}
        return {name: Witnesses(wide[name], given[name]) for name in wide if name in given}

    def _wide_of(self, names: tuple[str, ...]) -> dict[str, Array]:
        """Tensors in float64; the outputs and those asked for last are kept."""
        if names not in self._wide:
            for other in list(self._wide)[1:]:
                del self._wide[other]
            try:
                self._wide[names] = self._truth.tensors(names)
            except BackendError:  # a run that keeps all tensors may be too large
                self._wide[names] = {}
        return self._wide[names]

    @property
    def note(self) -> str:
        """What the truth is, and what limits it."""
        words = (
            "The truth is the graph in float64, the yardstick the graph as written (opt=off): each "
            "side may be as far from the truth as a few times the yardstick is."
        )
        islands = self._truth.islands
        rounding = [op for op in islands if any(word in op for word in _ROUNDING)]
        narrow = [f"{count} {op}" for op, count in islands.items() if op not in rounding]
        if rounding:
            words += (
                " What the graph rounds to whole numbers is rounded in the truth too "
                f"({', '.join(rounding)})."
            )
        if narrow:
            words += f" Not in float64, and so no better than as written: {', '.join(narrow)}."
        return words

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
