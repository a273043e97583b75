"""The `executorch` backend: the model exported, lowered to ExecuTorch, and run by its runtime."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from driftwalk.adapter import Backend, BackendInfo, Lap, Offer, Sink
from driftwalk.dtypes import FORMATS, Array
from driftwalk.errors import BackendUnavailable, UsageError
from driftwalk.mixture import FROM_BIAS
from driftwalk.spec import THREADS_HELP, Spec
from driftwalk.states import Probe

from ..depth import Looks
from ..fingerprint import versions
from ..onnx.exported import Exported
from ..onnx.graph import Arrays
from ..sources import torch_model
from .lowering import DELEGATES, NONE, PROGRAM, XNNPACK, Partition, Programs, Summary
from .program import INSTALL, Program, load, not_installed, require, runtime, set_threads

PACKAGES = ("executorch", "torchao", "torch", "transformers")
DTYPES = ("fp32", "fp16", "bf16")


class ExecuTorch(Looks, Backend):
    """Exports once for the shapes of a probe, then runs every probe of those shapes."""

    name: ClassVar[str] = "executorch"
    options: ClassVar[Mapping[str, str]] = {
        "delegate": "none (ExecuTorch's own kernels) or xnnpack (default none)",
        "exporter": "torch (default) or transformers, whose own exporter lowers to XNNPACK",
        "export_limit": "seconds after which an export is given up (default: none)",
        "quantize": "dynamic-int8: linear layers in eight bits, by XNNPACK's quantiser",
        "file": "a .pte that others made: its outputs are compared",
        "cache": "on or off: reuse a program of the same model and shapes (default on)",
        "threads": THREADS_HELP,
    }

    _make: ClassVar[type[Programs]] = Programs
    _usual_delegate: ClassVar[str] = NONE

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec)
        check_spec(spec)
        self._model = torch_model(model)
        self._dtype = spec.dtype or "fp32"
        self._delegate = spec.choice("delegate", DELEGATES, self._usual_delegate)
        self._threads = spec.count("threads")
        spec.count("export_limit")  # one that is none is refused now
        cached = spec.choice("cache", ("on", "off"), "on") == "on"
        require(self.name)
        if self._delegate == XNNPACK and not runtime()._is_available("XnnpackBackend"):
            raise BackendUnavailable(f"{spec}: this build of ExecuTorch has no XNNPACK.")
        self._programs = self._make(
            self._model, spec, self._dtype, cached, self._seconds, delegate=self._delegate
        )
        self._loaded: dict[Path, Program] = {}
        self._divided: dict[str, Partition] = {}
        self._pool = 0
        """Threads that the runtime has, once it runs."""

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        if why := not_installed():
            return [Offer("executorch:cpu", False, f"{why} {INSTALL}")]
        here = f"executorch {versions('executorch').get('executorch', 'of unknown version')}"
        plain = Offer("executorch:cpu", True, f"{here}, its own kernels, {platform.machine()}")
        usable = bool(runtime()._is_available("XnnpackBackend"))
        note = f"{here}, XNNPACK" if usable else f"{here} was built without XNNPACK"
        return [plain, Offer("executorch:cpu,delegate=xnnpack", usable, note)]

    @property
    def info(self) -> BackendInfo:
        flags = {
            "delegate": self._delegate,
            **self._programs.flags,
            "threads": str(self._pool or self._threads or "default"),
            **{f"operations, {name}": str(part) for name, part in self._divided.items()},
        }
        if self._delegate == XNNPACK and self._dtype == "fp32":
            flags["sums"] = FROM_BIAS
        if self._delegate != NONE and len(self._divided) == 2:
            counts = {(part.parts, part.outside) for part in self._divided.values()}
            flags["partition"] = "moved by states" if len(counts) > 1 else "not moved by states"
        return BackendInfo(
            spec=str(self.spec),
            name=self.name,
            device="cpu",
            dtype=self._dtype,
            versions=versions(*PACKAGES),
            flags=flags,
        )

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        return self._programs.outputs_skipped

    def _forward(self, probe: Probe, sink: Sink | None) -> Arrays:
        exported = self._plain(probe) if sink is None else self._traced(probe)
        program, feed = self._load(exported), self._feed(exported, probe)
        arrays, _ = program.run(feed, self._model.label)
        states = [exported.tensors[point.name] for point in exported.points]
        return exported.hand_on(dict(zip((*exported.outputs, *states), arrays, strict=True)), sink)

    def lap(self, probe: Probe) -> Lap:
        """One plain run, timed around the runtime's own call."""
        exported = self._plain(probe)
        program, feed = self._load(exported), self._feed(exported, probe)
        return Lap(program.run(feed, self._model.label)[1])

    def _traced(self, probe: Probe) -> Exported:
        exported = self._programs.get(probe, self._look)
        self._divided["traced"] = Summary.read(exported.folder).partition
        return exported

    def _plain(self, probe: Probe) -> Exported:
        exported = self._programs.shipped(probe)
        self._divided["plain"] = Summary.read(exported.folder).partition
        return exported

    def _feed(self, exported: Exported, probe: Probe) -> list[Array]:
        floats = FORMATS[self._dtype].dtype
        arrays = [probe.inputs[name] for name in Summary.read(exported.folder).inputs]
        return [a.astype(floats) if a.dtype.kind == "f" else a for a in arrays]

    def _load(self, exported: Exported) -> Program:
        path = exported.folder / PROGRAM
        self._pool = set_threads(self._threads)
        if path not in self._loaded:
            start = time.perf_counter()
            self._loaded[path] = load(path, f"the program of {self._model.label}")
            self._seconds["load"] = self._seconds.get("load", 0.0) + time.perf_counter() - start
        return self._loaded[path]

    def _close(self) -> None:
        self._loaded.clear()
        self._programs.close()


def check_spec(spec: Spec) -> None:
    """Refuse a device or a dtype that there never is."""
    if spec.device not in ("", "cpu"):
        raise UsageError(f"Backend 'executorch' has no device {spec.device!r}; it has cpu.")
    if spec.dtype and spec.dtype not in DTYPES:
        raise UsageError(
            f"Backend 'executorch' has no dtype {spec.dtype!r}; it has {', '.join(DTYPES)}."
        )
