"""Torch model to ONNX, with every point as an output of the graph.

The hooks that capture states run inside torch.export, so the graph's extra outputs are exactly the
tensors the `torch` backend captures. One export, two graphs over the same weight file: `traced` has
all states as outputs, `plain` only the model's own, which is what a deployment would run.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.adapter import Sink
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.states import Point, State

from ..calls import call
from ..hooks import capture
from ..model_outputs import named_outputs
from ..points import Layout

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

    @property
    def traced(self) -> Path:
        return self.folder / TRACED

    @property
    def plain(self) -> Path:
        return self.folder / PLAIN

    @property
    def tensors(self) -> dict[str, str]:
        """The graph's output that is a point's state, by the point's name."""
        found = {point.name: STATE_PREFIX + point.name for point in self.points}
        return found | {point.name: name for point, name in self.given}

    def hand_on(self, named: Mapping[str, Array], sink: Sink | None) -> dict[str, Array]:
        """Of what a run gave: the states to the sink, the model's own outputs back."""
        if sink is not None:
            tensors = self.tensors
            for point in (*self.points, *(point for point, _ in self.given)):
                sink(State(point, named[tensors[point.name]]))
            for point, name, state in self.same:
                twin = named.get(STATE_PREFIX + state)
                if twin is not None and not _same(named[name], twin):
                    sink(State(point, named[name]))
        return {name: named[name] for name in self.outputs}


class _Exposed(nn.Module):
    """The model as a function of positional tensors, giving its outputs and then its states."""

    def __init__(self, module: nn.Module, layout: Layout, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module = module
        self._layout = layout
        self._names = names
        self.outputs: tuple[str, ...] = ()
        self.points: tuple[Point, ...] = ()

    def forward(self, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        states: list[tuple[Point, torch.Tensor]] = []
        layout = self._layout
        with capture(self.module, layout, lambda p, t: states.append((p, t.clone()))) as finish:
            output = call(self.module, dict(zip(self._names, arrays, strict=True)))
            finish(())  # the outputs are there already
        named = named_outputs(output)
        if not self.outputs:
            self.outputs, self.points = tuple(named), tuple(point for point, _ in states)
        # Traced, an op that does nothing gives a new tensor, which looks like a state of its own.
        found = dict(states)
        if tuple(named) != self.outputs or not found.keys() >= set(self.points):
            raise BackendError("the model went another way when it was traced than when it ran.")
        return (*named.values(), *(found[point] for point in self.points))


def export(
    module: nn.Module, layout: Layout, inputs: Mapping[str, torch.Tensor], folder: Path
) -> None:
    """Write both graphs, their weights and the names of their outputs into `folder`."""
    import onnx

    exposed = _Exposed(module, layout, tuple(inputs))
    exposed(*inputs.values())  # names the outputs
    states = [STATE_PREFIX + point.name for point in exposed.points]
    try:
        with silence():
            program = torch.onnx.export(
                exposed,
                tuple(inputs.values()),
                dynamo=True,
                input_names=list(inputs),
                output_names=[*exposed.outputs, *states],
                verbose=False,
            )
            assert program is not None
            program.save(str(folder / TRACED), external_data=True)
    except Exception as error:  # the exporter raises whatever any of its passes raises
        raise BackendError(
            f"{type(module).__name__} could not be exported to ONNX: {_cause(error)}"
        ) from error
    graph = onnx.load(str(folder / TRACED), load_external_data=False)
    kept = [value for value in graph.graph.output if not value.name.startswith(STATE_PREFIX)]
    del graph.graph.output[:]
    graph.graph.output.extend(kept)
    onnx.save(graph, str(folder / PLAIN))
    points = [[point.name, point.module] for point in exposed.points]
    known = layout.outputs
    names: dict[str, Any] = {
        "outputs": exposed.outputs,
        "points": points,
        "given": [
            [*_pair(known.point(n)), n] for n in known.names.values() if n in exposed.outputs
        ],
        "same": [[*_pair(known.point(n)), n, state] for n, state in known.same],
        "skipped": known.skipped,
    }
    (folder / NAMES).write_text(json.dumps(names))


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
    )


def _pair(point: Point) -> list[str]:
    return [point.name, point.module]


def _same(a: Array, b: Array) -> bool:
    """Equal, NaN where NaN is."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """The exporter prints progress, and on failure whole graphs; none of it is for our users."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _cause(error: BaseException) -> str:
    """The innermost error in one line; the exporter's own text is several pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return f"{type(error).__name__}: {text[:300]}".replace(os.linesep, " ")
