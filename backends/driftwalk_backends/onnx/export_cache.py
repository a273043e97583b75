"""Graphs that are made once: of one model by the shapes of a probe, and on the disk by a key.

Beside a stored graph stand the inputs it was made with and the evidence: the hash of what the model
itself gave on them. The graph is used only where the model gives the same on them now.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from driftwalk.cache import FolderCache, key_of
from driftwalk.errors import DriftwalkError
from driftwalk.files import release
from driftwalk.spec import Spec
from driftwalk.states import Probe

from ..calls import call, explaining, inputs_for, quietly
from ..depth import Look
from ..fingerprint import versions
from ..loaded import LoadedModel
from ..points import Layout
from .export import Exported, export, read_export

CACHE_VERSION = "3"
"""Of what lies in a stored folder."""

MADE_WITH, EVIDENCE = "made_with.safetensors", "evidence.txt"
"""The inputs that a stored graph was made with, and what the model itself gave on them."""


class Removable(Protocol):
    def cleanup(self) -> None: ...


Scratch = list[Removable]
"""Folders that a backend removes when it is closed."""


@dataclass(frozen=True)
class _Borrowed:
    """What the cache gave this process alone."""

    folder: Path

    def cleanup(self) -> None:
        release(self.folder)


def _always(_: Path) -> bool:
    return True


def kept(
    what: str,
    key: str,
    make: Callable[[Path], None],
    scratch: Scratch,
    believed: Callable[[Path], bool] = _always,
) -> Path:
    """A folder as `make` fills it: stored under the key; without a key it is scratch."""
    if key:
        borrowed = _Borrowed(FolderCache(what).get(key, make, believed))
        scratch.append(borrowed)
        return borrowed.folder
    made = tempfile.TemporaryDirectory(prefix=f"driftwalk-{what}-")
    scratch.append(made)
    folder = Path(made.name)
    make(folder)
    return folder


class Exports:
    """The exports of one model in one dtype, by the shapes of a probe and by how closely to look.

    Every runtime that reads ONNX has one. What an export costs is booked under `export` in
    `seconds`, the account of its backend.
    """

    def __init__(
        self,
        model: LoadedModel,
        spec: Spec,
        dtype: str,
        cached: bool,
        seconds: MutableMapping[str, float],
    ) -> None:
        self._model = model
        self._spec = spec
        self._dtype = dtype
        self._cached = cached
        self._seconds = seconds
        self._known: dict[str, Exported] = {}
        self._scratch: Scratch = []

    def get(self, probe: Probe, look: Look) -> Exported:
        """The export for a probe: known already, stored by an earlier run, or made now."""
        shapes = probe.forms()
        seen = (look.depth, look.layer, "shared" if look.shared else "")
        shape_key = "|".join([*seen, *shapes])
        if shape_key in self._known:
            return self._known[shape_key]
        start = time.perf_counter()

        def make(folder: Path) -> None:
            self._make(probe, look, folder)
            if key:
                probe.save(folder / MADE_WITH)
                (folder / EVIDENCE).write_text(evidence)

        # Code of unknown version can change under an unchanged name: never trust a stored graph.
        evidence = key = ""
        if self._cached and self._model.has_known_code:
            evidence = self._model.evidence.of(probe, self._dtype)
        if evidence:
            packages = versions("torch", "transformers", "onnx", "onnxscript", "driftwalk")
            # Which points a model has depends on what a user says of it, too (--blocks).
            known = (CACHE_VERSION, self._model.fingerprint, self._model.arithmetic, self._dtype)
            key = key_of(*known, self._layout(probe).key, *seen, *shapes, str(packages))
        folder = kept("onnx", key, make, self._scratch, self._believed)
        self._known[shape_key] = read_export(folder)
        self._seconds["export"] = time.perf_counter() - start
        return self._known[shape_key]

    def _believed(self, folder: Path) -> bool:
        """Whether the model gives, on the inputs that a stored graph was made with, what it did."""
        try:
            stored = (folder / EVIDENCE).read_text()
            made_with = Probe.load(folder / MADE_WITH)
            return stored == self._model.evidence.of(made_with, self._dtype)
        except (OSError, ValueError, DriftwalkError):
            return False

    def _layout(self, probe: Probe) -> Layout:
        """The model's points: known from an earlier run, or found in one of the model as it is."""
        module = self._model.module
        device = next((p.device for p in module.parameters()), torch.device("cpu"))

        def run(**extra: Any) -> Any:
            with quietly(module), explaining(self._model.label, self._spec):
                return call(module, inputs_for(module, probe, device), **extra)

        return self._model.layout(module, probe.inputs, run)

    def _make(self, probe: Probe, look: Look, folder: Path) -> None:
        module = self._model.at(self._dtype, "cpu", for_export=True)
        with quietly(module), explaining(self._model.label, self._spec):
            inputs = inputs_for(module, probe, torch.device("cpu"))

            def run(**extra: Any) -> Any:
                return call(module, inputs, **extra)

            layout = replace(self._model.layout(module, inputs, run), look=look)
            export(module, layout, inputs, folder)

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        """What of the model's output is no point."""
        return tuple(dict.fromkeys(n for one in self._known.values() for n in one.skipped))

    def close(self) -> None:
        """Forget all of them, and remove what was not stored."""
        self._known.clear()
        while self._scratch:
            self._scratch.pop().cleanup()
