"""An export in its folder: both graphs, and which of their outputs is what."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.adapter import Sink
from driftwalk.dtypes import Array
from driftwalk.states import Point, Probe, State

from ..layout import Layout
from .exposed import OUTPUT_PREFIX, Exposed
from .graph import Arrays

TRACED, PLAIN, NAMES = "traced.onnx", "plain.onnx", "names.json"
STATE_PREFIX = "state:"


@dataclass(frozen=True)
class Exported:
    """A folder with both graphs, and which graph output is what."""

    folder: Path
    outputs: tuple[str, ...]
    points: tuple[Point, ...]
    """The states inside the model."""
    given: tuple[tuple[Point, str], ...] = ()
    """The outputs that are points, each with its name among all outputs."""
    same: tuple[tuple[Point, str, str], ...] = ()
    """Outputs that are a state already: the point they would be, their name, that state's point."""
    skipped: tuple[str, ...] = ()
    """What of the model's output is not compared."""
    added: tuple[str, ...] = ()
    """Inputs that the exporter added to those of the model."""
    axes: tuple[tuple[str, tuple[int | str, ...]], ...] = ()
    """Of each input, the length of each axis; a name stands for any, the same for all so called."""

    def takes(self, probe: Probe) -> bool:
        """Whether the shapes of a probe are among those that the graph is for."""
        known: dict[str, int] = {}
        for name, sizes in self.axes:
            shape = probe.inputs[name].shape if name in probe.inputs else ()
            if name in probe.inputs and len(shape) != len(sizes):
                return False
            for found, size in zip(shape, sizes, strict=False):
                wanted = known.setdefault(size, found) if isinstance(size, str) else size
                if found != wanted:
                    return False
        return True

    @property
    def traced(self) -> Path:
        return self.folder / TRACED

    @property
    def plain(self) -> Path:
        return self.folder / PLAIN

    @property
    def tensors(self) -> dict[str, str]:
        """The graph's output that is a point's state, by the point's name."""
        inner = {point.name: STATE_PREFIX + point.name for point in self.points}
        return inner | {point.name: name for point, name in self.given}

    def hand_on(self, named: Arrays, sink: Sink | None) -> dict[str, Array]:
        """Of what a run gave: the states to the sink, the model's own outputs back."""
        if sink is not None:
            tensors = self.tensors
            for point in (*self.points, *(point for point, _ in self.given)):
                sink(State(point, named[tensors[point.name]]))
            for point, name, state in self.same:
                own, twin = named[name], named.get(STATE_PREFIX + state)
                alike = twin is None or (
                    own.dtype == twin.dtype
                    and np.array_equal(own, twin, equal_nan=own.dtype.kind == "f")
                )
                if not alike:
                    sink(State(point, own))
        return {name.removeprefix(OUTPUT_PREFIX): named[name] for name in self.outputs}


def write_names(exposed: Exposed, layout: Layout, folder: Path, inputs: Iterable[Any] = ()) -> None:
    """Which output of a graph is what, and what inputs it has, for `read_export`."""
    outputs, tensor = layout.outputs, exposed.tensor

    def pair(name: str) -> tuple[str, str]:
        return outputs.point(name).name, outputs.point(name).module

    taken = {value.name: _sizes(value) for value in inputs}
    names = {
        "outputs": [*map(tensor, exposed.outputs)],
        "points": [[point.name, point.module] for point in exposed.points],
        "given": [[*pair(n), tensor(n)] for n in outputs.names.values() if n in exposed.outputs],
        "same": [[*pair(n), tensor(n), state] for n, state in outputs.same],
        "skipped": outputs.skipped,
        "added": [name for name in taken if name not in exposed.called.tensors],
        "axes": [*taken.items()],
    }
    (folder / NAMES).write_text(json.dumps(names))


def _sizes(value: Any) -> list[int | str]:
    """The lengths of an input's axes, or their names."""
    return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]


def read_export(folder: Path) -> Exported:
    """What `export` wrote."""
    names = json.loads((folder / NAMES).read_text())
    return Exported(
        folder,
        tuple(names["outputs"]),
        tuple(Point(*pair) for pair in names["points"]),
        tuple((Point(point, module), name) for point, module, name in names["given"]),
        tuple((Point(point, module), *rest) for point, module, *rest in names["same"]),
        tuple(names["skipped"]),
        tuple(names["added"]),
        tuple((name, tuple(sizes)) for name, sizes in names["axes"]),
    )
