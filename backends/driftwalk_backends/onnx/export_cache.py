"""Graphs that are made once: of one model by the shapes of a probe, and on the disk by a key."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from driftwalk.cache import FolderCache, key_of
from driftwalk.spec import Spec
from driftwalk.states import Probe

from ..calls import call, explaining, inputs_for, quietly
from ..fingerprint import versions
from ..looks import Look
from ..points import Layout
from ..sources import LoadedModel
from .export import Exported, export, read_export

CACHE_VERSION = "2"
"""Of what lies in a stored folder."""

Scratch = list[tempfile.TemporaryDirectory[str]]
"""Folders that a backend removes when it is closed."""


def kept(what: str, key: str, make: Callable[[Path], None], scratch: Scratch) -> Path:
    """A folder as `make` fills it: stored under the key; without a key it is scratch."""
    if key:
        return FolderCache(what).get(key, make)
    scratch.append(tempfile.TemporaryDirectory(prefix=f"driftwalk-{what}-"))
    folder = Path(scratch[-1].name)
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

        # Code of unknown version can change under an unchanged name: never trust a stored graph.
        key = ""
        if self._cached and self._model.has_known_code:
            packages = versions("torch", "transformers", "onnx", "onnxscript", "driftwalk")
            # Which points a model has depends on what a user says of it, too (--blocks).
            known = (CACHE_VERSION, self._model.fingerprint, self._dtype, self._layout(probe).key)
            key = key_of(*known, *seen, *shapes, str(packages))
        self._known[shape_key] = read_export(kept("onnx", key, make, self._scratch))
        self._seconds["export"] = time.perf_counter() - start
        return self._known[shape_key]

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
