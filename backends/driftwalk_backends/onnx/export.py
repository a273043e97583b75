"""Torch model to ONNX, with every point as an output of the graph; made once, and kept.

The hooks that capture states run inside torch.export, so the graph's extra outputs are exactly the
tensors the `torch` backend captures. One export, two graphs over the same weight file: `traced` has
all states as outputs, `plain` only the model's own, which is what a deployment would run.

Beside a stored graph stand the inputs it was made with and the evidence: the hash of what the model
itself gave on them. The graph is used only where the model gives the same on them now.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim

from driftwalk.adapter import Sink
from driftwalk.cache import FolderCache, key_of
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, DriftwalkError
from driftwalk.files import release
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe, State

from ..calls import (
    Inputs,
    call,
    call_as_it_is,
    explaining,
    inputs_for,
    own_copies,
    quietly,
    tensors_only,
)
from ..depth import Look
from ..fingerprint import versions
from ..hooks import capture
from ..layout import Layout
from ..loaded import LoadedModel
from ..model_outputs import named_outputs
from ..randomness import who
from .graph import Arrays
from .reading import parsed

TRACED, PLAIN, NAMES = "traced.onnx", "plain.onnx", "names.json"
STATE_PREFIX = "state:"
OUTPUT_PREFIX = "output:"
"""Begins the name of an output that is called like an input of the model."""
CACHE_VERSION = "3"
"""Of what lies in a stored folder."""
MADE_WITH, EVIDENCE = "made_with.safetensors", "evidence.txt"
"""The inputs that a stored graph was made with, and what the model itself gave on them."""


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


@dataclass(frozen=True, eq=False)
class GraphCall:
    """How a model is called to make a graph of it."""

    tensors: Mapping[str, torch.Tensor]
    """The graph's inputs."""
    run: Callable[[dict[str, torch.Tensor]], tuple[Any, dict[str, torch.Tensor]]]
    """What the model gives for them, and what the graph gives beside."""
    open_axes: Mapping[str, int] = field(default_factory=dict)
    """The axis of an input that may be of any length."""


def whole_call(module: nn.Module, inputs: Inputs) -> GraphCall:
    """A model called with all its inputs; those that are not one tensor are part of the graph."""
    tensors = tensors_only(inputs)
    others = {name: value for name, value in inputs.items() if name not in tensors}
    return GraphCall(
        tensors, lambda given: (call_as_it_is(module, {**given, **own_copies(others)}), {})
    )


class _Exposed(nn.Module):
    """The model as a function of positional tensors, giving its outputs and then its states."""

    def __init__(self, module: nn.Module, layout: Layout, called: GraphCall) -> None:
        super().__init__()
        self.module = module
        self._layout = layout
        self._called = called
        self.outputs: tuple[str, ...] = ()
        self.beside: tuple[str, ...] = ()
        self.points: tuple[Point, ...] = ()

    def forward(self, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        captured: list[tuple[Point, torch.Tensor]] = []
        layout = self._layout
        with capture(self.module, layout, lambda p, t: captured.append((p, t.clone()))) as finish:
            inputs = dict(zip(self._called.tensors, arrays, strict=True))
            output, beside = self._called.run(inputs)
            finish(())  # the outputs are there already
        named = named_outputs(output)
        if not self.outputs:
            self.outputs, self.beside = tuple(named), tuple(beside)
            self.points = tuple(point for point, _ in captured)
        # Traced, an op that does nothing gives a new tensor, which looks like a state of its own.
        states = dict(captured)
        same = (tuple(named), tuple(beside)) == (self.outputs, self.beside)
        if not same or not states.keys() >= set(self.points):
            raise BackendError("the model went another way when it was traced than when it ran.")
        return (*named.values(), *beside.values(), *(states[point] for point in self.points))


def export(module: nn.Module, layout: Layout, called: GraphCall, folder: Path) -> None:
    """Write both graphs, their weights and the names of their outputs into `folder`."""
    import onnx

    tensors = called.tensors
    exposed = _Exposed(module, layout, called)
    exposed(*own_copies(tensors).values())  # names the outputs
    states = [STATE_PREFIX + point.name for point in exposed.points]

    def tensor(output: str) -> str:
        """An output's name in the graph, in which no input is called so, too."""
        return OUTPUT_PREFIX + output if output in tensors else output

    axes = tuple(
        {called.open_axes[name]: Dim.DYNAMIC} if name in called.open_axes else None
        for name in tensors
    )

    try:
        with silence():
            program = torch.onnx.export(
                exposed,
                tuple(tensors.values()),
                dynamo=True,
                input_names=list(tensors),
                output_names=[*map(tensor, exposed.outputs), *exposed.beside, *states],
                dynamic_shapes=(axes,) if called.open_axes else None,
                verbose=False,
            )
            assert program is not None
            program.save(str(folder / TRACED), external_data=True)
    except Exception as error:  # the exporter raises whatever any of its passes raises
        raise BackendError(
            f"{type(module).__name__} could not be exported to ONNX: {_cause(error)}"
        ) from error
    model = parsed(folder / TRACED)
    own = [value for value in model.graph.output if not value.name.startswith(STATE_PREFIX)]
    del model.graph.output[:]
    model.graph.output.extend(own)
    onnx.save(model, str(folder / PLAIN))
    outputs = layout.outputs

    def pair(name: str) -> tuple[str, str]:
        return outputs.point(name).name, outputs.point(name).module

    names = {
        "outputs": [*map(tensor, exposed.outputs)],
        "points": [[point.name, point.module] for point in exposed.points],
        "given": [[*pair(n), tensor(n)] for n in outputs.names.values() if n in exposed.outputs],
        "same": [[*pair(n), tensor(n), state] for n, state in outputs.same],
        "skipped": outputs.skipped,
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


def kept(
    what: str,
    key: str,
    make: Callable[[Path], None],
    scratch: ExitStack,
    believed: Callable[[Path], bool] = lambda _: True,
) -> Path:
    """A folder as `make` fills it: stored under the key; without a key it is scratch."""
    if key:
        folder = FolderCache(what).get(key, make, believed)
        scratch.callback(release, folder)
        return folder
    prefix = f"driftwalk-{what}-"
    folder = Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
    make(folder)
    return folder


def layout_of(
    model: LoadedModel, module: nn.Module, probe: Probe, spec: Spec, **asked_for: Any
) -> Layout:
    """A model's points: known from an earlier run, or found in one of this module."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    inputs = inputs_for(module, probe, device)

    def run(**extra: Any) -> Any:
        return call(module, inputs, **asked_for, **extra)

    with quietly(module), explaining(model.label, spec):
        return model.layout(module, inputs, run)


Write = Callable[[nn.Module, Layout, Path], None]
"""Makes a graph of a module that has these points, in a folder."""


@dataclass(eq=False)
class Exports:
    """The exports of one model in one dtype, by the shapes of a probe and by how closely to look.

    Every runtime that reads ONNX has one. What an export costs is booked under `export` in
    `seconds`, the account of its backend.
    """

    model: LoadedModel
    spec: Spec
    dtype: str
    cached: bool
    seconds: MutableMapping[str, float]
    _made: dict[str, Exported] = field(default_factory=dict)
    _scratch: ExitStack = field(default_factory=ExitStack)

    def get(self, probe: Probe, look: Look) -> Exported:
        """The export for a probe: made in this run already, stored by an earlier one, or new."""
        asked = [look.depth, look.layer, "shared" if look.shared else "", *probe.forms()]

        def make(module: nn.Module, layout: Layout, folder: Path) -> None:
            inputs = inputs_for(module, probe, torch.device("cpu"))
            export(module, replace(layout, look=look), whole_call(module, inputs), folder)

        return self.made(asked, probe, make)

    def made(self, asked: Sequence[str], probe: Probe, write: Write, **extra: Any) -> Exported:
        """What `write` makes of the model; the same whenever the same is asked.

        With `extra` inputs the model's points are looked for.
        """
        shape_key = "|".join(asked)
        if shape_key in self._made:
            return self._made[shape_key]
        probe.plain_others()  # an object cannot be part of a graph, and is refused
        start = time.perf_counter()

        def make(folder: Path) -> None:
            module = self.model.at(self.dtype, "cpu", for_export=True)
            layout = self.layout(module, probe, **extra)
            self._refuse_randomness()
            with quietly(module), explaining(self.model.label, self.spec):
                write(module, layout, folder)
            if key:
                probe.save(folder / MADE_WITH)
                (folder / EVIDENCE).write_text(evidence)

        # Code of unknown version can change under an unchanged name: never trust a stored graph.
        evidence = key = ""
        if self.cached and self.model.has_known_code:
            evidence = self.model.evidence.of(probe, self.dtype)
        if evidence:
            packages = versions("torch", "transformers", "onnx", "onnxscript", "driftwalk")
            known = (self.model.fingerprint, self.model.arithmetic, self.dtype)
            # Which points a model has depends on what a user says of it, too (--blocks).
            layout = self.layout(self.model.module, probe, **extra)
            key = key_of(CACHE_VERSION, *known, layout.key, *asked, str(packages))
        folder = kept("onnx", key, make, self._scratch, self._believed)
        self._made[shape_key] = read_export(folder)
        taken = time.perf_counter() - start
        self.seconds["export"] = self.seconds.get("export", 0.0) + taken
        return self._made[shape_key]

    def _refuse_randomness(self) -> None:
        if self.model.drawing:
            raise BackendError(
                f"{self.model.label} draws random numbers in its forward "
                f"({who(self.model.drawing)}), and the runtime of an exported graph would draw "
                "others: the two could not be compared. Hand the numbers in as an input, or make "
                "the model choose without them."
            )

    def _believed(self, folder: Path) -> bool:
        """Whether the model gives, on the inputs that a stored graph was made with, what it did."""
        try:
            stored = (folder / EVIDENCE).read_text()
            made_with = Probe.load(folder / MADE_WITH)
            return stored == self.model.evidence.of(made_with, self.dtype)
        except (OSError, ValueError, DriftwalkError):
            return False

    def layout(self, module: nn.Module, probe: Probe, **asked_for: Any) -> Layout:
        return layout_of(self.model, module, probe, self.spec, **asked_for)

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        """What of the model's output is no point."""
        return tuple(dict.fromkeys(n for one in self._made.values() for n in one.skipped))

    def close(self) -> None:
        """Forget all of them, and remove what was not stored."""
        self._made.clear()
        self._scratch.close()
