"""Torch model to ONNX, with every point as an output of the graph; made once, and kept.

The hooks that capture states run inside torch.export, so the graph's extra outputs are exactly the
tensors the `torch` backend captures. One export, two graphs over the same weight file: `traced` has
all states as outputs, `plain` only the model's own, which is what a deployment would run.

Beside a stored graph stand the inputs it was made with and the evidence: the hash of what the model
itself gave on them. The graph is used only where the model gives the same on them now.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from driftwalk.cache import FolderCache, key_of
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, BackendUnavailable, DriftwalkError
from driftwalk.files import release
from driftwalk.spec import Spec
from driftwalk.states import Probe

from ..calls import call, explaining, inputs_for, own_copies, quietly
from ..depth import Look
from ..fingerprint import versions
from ..layout import Layout
from ..loaded import LoadedModel
from ..randomness import who
from .export_options import ONNX, why_not_transformers
from .exported import PLAIN, STATE_PREFIX, TRACED, Exported, read_export, write_names
from .exporters import Exporter, ExportFailedError, TorchExporter
from .exposed import Exposed, GraphCall, cause, silence, whole_call
from .left_behind import LeftBehind, sentence_on
from .reading import parsed
from .time_limit import TimeIsUpError, time_limit

CACHE_VERSION = "5"
"""Of what lies in a stored folder."""
MADE_WITH, EVIDENCE = "made_with.safetensors", "evidence.txt"
"""The inputs that a stored graph was made with, and what the model itself gave on them."""


def export(
    module: nn.Module, layout: Layout, called: GraphCall, folder: Path, exporter: Exporter
) -> None:
    """Write both graphs, their weights and the names of their outputs into `folder`."""
    import onnx

    tensors = called.tensors
    exposed = Exposed(module, layout, called)
    exposed(*own_copies(tensors).values())  # names the outputs
    states = [STATE_PREFIX + point.name for point in exposed.points]
    named = [*map(exposed.tensor, exposed.outputs), *exposed.beside, *states]
    try:
        with silence():
            program = exporter.program(exposed, named)
            program.save(str(folder / TRACED), external_data=True)
    except BackendUnavailable:
        raise
    except Exception as error:  # the exporter raises whatever any of its passes raises
        by = "" if isinstance(exporter, TorchExporter) else f" by {exporter.label}"
        raise ExportFailedError(
            f"{type(module).__name__} could not be exported to ONNX{by}: {cause(error)}"
        ) from error
    model = parsed(folder / TRACED)
    if lost := set(named) - {value.name for value in model.graph.output}:
        raise ExportFailedError(
            f"{exporter.label} left outputs of {type(module).__name__} out of its graph: "
            f"{', '.join(sorted(lost))}."
        )
    own = [value for value in model.graph.output if not value.name.startswith(STATE_PREFIX)]
    del model.graph.output[:]
    model.graph.output.extend(own)
    onnx.save(model, str(folder / PLAIN))
    write_names(exposed, layout, folder, model.graph.input)


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


def _with_two_rows(probe: Probe) -> Probe:
    """The same with its row twice, where it has one: an axis of length 1 would be fixed."""
    arrays = {name: array for name, array in probe.inputs.items() if array.ndim}
    if not arrays or any(len(array) != 1 for array in arrays.values()):
        return probe
    twice = {name: np.repeat(array, 2, 0) for name, array in arrays.items()}
    return Probe({**probe.inputs, **twice}, probe.origin, others=probe.others)


Write = Callable[[nn.Module, Layout, Path, Exporter], None]
"""Has an exporter make a graph of a module that has these points, in a folder."""


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
    exporters: tuple[Exporter, ...] = (TorchExporter(),)
    """Those to try, in their order."""
    kind: ClassVar[str] = "onnx"
    """Under what exports are stored, and (below) whose versions they depend on."""
    packages: ClassVar[Sequence[str]] = ("torch", "transformers", "onnx", "onnxscript", "driftwalk")
    needs: ClassVar[Sequence[str]] = ONNX
    """Packages that transformers' own exporter needs for it."""
    _made: dict[str, Exported] = field(default_factory=dict)
    _used: dict[str, Exporter] = field(default_factory=dict)
    _remarks: dict[str, None] = field(default_factory=dict)
    _scratch: ExitStack = field(default_factory=ExitStack)

    def get(self, probe: Probe, look: Look) -> Exported:
        """The export for a probe: made in this run already, stored by an earlier one, or new."""
        looking = [look.depth, look.layer, "shared" if look.shared else ""]

        def of(example: Probe) -> Exported:
            def write(module: nn.Module, layout: Layout, folder: Path, exporter: Exporter) -> None:
                called = whole_call(module, inputs_for(module, example, torch.device("cpu")))
                export(module, replace(layout, look=look), called, folder, exporter)

            return self.made([*looking, *example.forms()], example, write)

        if not self.exporters[0].one_for_all:
            return of(probe)
        same = "|".join(["any shape", *looking, *sorted(probe.names)])
        if same not in self._made:
            self._made[same] = of(_with_two_rows(probe))
        if self._made[same].takes(probe):
            return self._made[same]
        self._remarks["Some axes are fixed in the graph, and other shapes have another one."] = None
        return of(probe)

    def made(self, asked: Sequence[str], probe: Probe, write: Write, **extra: Any) -> Exported:
        """What `write` makes of the model; the same whenever the same is asked.

        With `extra` inputs the model's points are looked for.
        """
        shape_key = "|".join(asked)
        if shape_key in self._made:
            return self._made[shape_key]
        probe.plain_others()  # an object cannot be part of a graph, and is refused
        start = time.perf_counter()
        failed = ""
        for exporter in self.exporters:
            try:
                folder = self._folder(exporter, asked, probe, write, **extra)
                break
            except ExportFailedError as error:
                failed = str(error)
                if exporter is self.exporters[-1]:
                    raise ExportFailedError(f"{error}{self._offer()}") from error
        if failed:
            self._remarks[f"{failed} So {exporter.label} made the graph."] = None
        self._remarks |= dict.fromkeys(exporter.notes)
        self._used[str(folder)] = exporter
        self._made[shape_key] = read_export(folder)
        taken = time.perf_counter() - start
        self.seconds["export"] = self.seconds.get("export", 0.0) + taken
        return self._made[shape_key]

    def _folder(
        self, exporter: Exporter, asked: Sequence[str], probe: Probe, write: Write, **extra: Any
    ) -> Path:
        """One exporter's graphs: stored, or made now."""

        def make(folder: Path) -> None:
            module = self.model.at(self.dtype, "cpu", for_export=exporter.for_export)
            layout = self.layout(module, probe, **extra)
            self._refuse_randomness()
            with quietly(module), explaining(self.model.label, self.spec):
                self._guarded(exporter, module, lambda: write(module, layout, folder, exporter))
            if key:
                probe.save(folder / MADE_WITH)
                (folder / EVIDENCE).write_text(evidence)

        # Code of unknown version can change under an unchanged name: never trust a stored graph.
        evidence = key = ""
        if self.cached and self.model.has_known_code:
            evidence = self.model.evidence.of(probe, self.dtype)
        if evidence:
            packages = versions(*self.packages)
            known = (self.model.fingerprint, self.model.arithmetic, self.dtype, *exporter.key)
            # Which points a model has depends on what a user says of it, too (--blocks).
            layout = self.layout(self.model.module, probe, **extra)
            key = key_of(CACHE_VERSION, *known, layout.key, *asked, str(packages))
        return kept(self.kind, key, make, self._scratch, self._believed)

    def _guarded(self, exporter: Exporter, module: nn.Module, make: Callable[[], None]) -> None:
        """An export that is given up when its time is over, and leaves the model as it was."""
        limit = self.spec.count("export_limit")
        before = LeftBehind(module)
        try:
            with time_limit(limit):
                make()
        except TimeIsUpError:
            raise ExportFailedError(
                f"{exporter.label} had made no graph of {type(module).__name__} after {limit} s, "
                "and was stopped (export_limit)."
            ) from None
        finally:
            if changed := before.put_back():
                self._remarks[sentence_on(changed, exporter.label)] = None

    def _offer(self) -> str:
        """Who else may make a graph of this model."""
        tried = any(not isinstance(exporter, TorchExporter) for exporter in self.exporters)
        if tried or why_not_transformers(self.model.module, self.needs) is not None:
            return ""
        return " (transformers' own exporter may manage it: exporter=transformers)"

    @property
    def flags(self) -> dict[str, str]:
        """Who made the graphs, and what a report must say of that."""
        used = dict.fromkeys(exporter.label for exporter in self._used.values())
        by = ", ".join(used) or " or ".join(exporter.label for exporter in self.exporters)
        said = " ".join(self._remarks)
        return {"exporter": by} | ({"export": said} if said else {})

    def added(self, exported: Exported, probe: Probe) -> dict[str, Array]:
        """For a probe: the inputs of the graph that the exporter added to those of the model."""
        if not exported.added:
            return {}
        exporter = self._used[str(exported.folder)]
        module = self.model.at(self.dtype, "cpu", for_export=exporter.for_export)
        return exporter.added(module, inputs_for(module, probe, "cpu"), exported.added)

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

    def lent(self) -> Self:
        """The same exports for another backend, which leaves them when it closes its own."""
        own = dict(self._made), dict(self._used)
        return replace(self, _made=own[0], _used=own[1], _scratch=ExitStack())

    def close(self) -> None:
        """Forget all of them, and remove what was not stored."""
        self._made.clear()
        self._scratch.close()
