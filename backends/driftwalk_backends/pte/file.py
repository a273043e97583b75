"""`executorch,file=m.pte`: a program that others made, run as it is.

A program keeps no names: its inputs are those of the model that have their types and shapes, and of
several ways the one that gives the model's outputs. Nothing inside it has a name either, so its
outputs alone are compared. It is first run in a process of its own, which a bad file may end.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from driftwalk.adapter import Backend, BackendInfo, Lap, Offer, Sink
from driftwalk.dtypes import FORMATS, Array, dtype_name
from driftwalk.errors import BackendError, UsageError
from driftwalk.files import sha256_of
from driftwalk.mixture import FROM_BIAS
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe, State

from ..fingerprint import versions
from ..onnx.export import layout_of
from ..onnx.feeds import choose, feeds, match_outputs
from ..onnx.graph import Arrays, Value
from ..sources import torch_model
from ..torch_eager import TorchEager
from .backend import PACKAGES, ExecuTorch, check_spec
from .program import Program, Slot, load, require, set_threads
from .trial import tried

MOST = 8 << 30
"""Bytes of a file that is read."""
_KINDS = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class Ready:
    """For probes of one shape: which way to feed the program, and which output is what."""

    way: int
    outputs: Mapping[str, int]
    points: Mapping[str, Point]


class ExecuTorchFile(Backend):
    """A program as it is; the torch model is only asked what it gives."""

    name: ClassVar[str] = ExecuTorch.name
    options: ClassVar[Mapping[str, str]] = ExecuTorch.options

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec)
        check_spec(spec)
        if others := spec.options.keys() - {"file", "threads"}:
            raise UsageError(
                f"{spec}: {min(others)}= is for driftwalk's own programs; one that others made is "
                "run as it is."
            )
        self._model = torch_model(model)
        self._path = Path(spec.options["file"])
        if not spec.options["file"] or not self._path.is_file():
            raise UsageError(f"file={spec.options['file']}: there is no such file.")
        if self._path.stat().st_size > MOST:
            raise UsageError(f"file={self._path}: it is larger than {MOST >> 30} GiB.")
        self._threads = spec.count("threads")
        require(self.name)
        self._program: Program | None = None
        self._by_xnnpack = False
        """Whether XNNPACK runs parts of it, once it is loaded."""
        self._dtype = spec.dtype or "fp32"
        self._ready: dict[str, Ready] = {}

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return ExecuTorch.offers()

    @property
    def is_closed(self) -> bool:
        """Nothing inside a program has a name."""
        return True

    @property
    def info(self) -> BackendInfo:
        flags = {
            "exporter": "none: a file",
            "file": self._path.name,
            "sha256": sha256_of(self._path),
            "threads": str(self._threads or "default"),
        }
        if self._by_xnnpack and self._dtype == "fp32":
            flags["sums"] = FROM_BIAS
        return BackendInfo(
            spec=str(self.spec),
            name=self.name,
            device="cpu",
            dtype=self._dtype,
            versions=versions(*PACKAGES),
            flags=flags,
        )

    def prepare(self, probe: Probe) -> None:
        """Open the file: what it computes in can only be told from its outputs."""
        self._prepared(probe)

    def lap(self, probe: Probe) -> Lap:
        """One run, timed around the runtime's own call."""
        ready = self._prepared(probe)
        return Lap(self._run(probe, ready)[1])

    def _forward(self, probe: Probe, sink: Sink | None) -> Arrays:
        ready = self._prepared(probe)
        arrays, _ = self._run(probe, ready)
        outputs = {name: arrays[number] for name, number in ready.outputs.items()}
        if sink is not None:
            for name, array in outputs.items():
                sink(State(ready.points[name], array))
        return outputs

    def _run(self, probe: Probe, ready: Ready) -> tuple[list[Array], float]:
        program = self._program
        assert program is not None
        set_threads(self._threads)
        return program.run(self._ways(program.inputs, probe)[ready.way], self._path.name)

    def _prepared(self, probe: Probe) -> Ready:
        """Settle how the program is fed, once for each shape of a probe."""
        key = "|".join(probe.forms())
        if key in self._ready:
            return self._ready[key]
        start = time.perf_counter()
        if self._program is None:
            tried(self._path, [])  # loading alone may end a process
            self._program = load(self._path)
            self._by_xnnpack = _names_xnnpack(self._path)
        ways = self._ways(self._program.inputs, probe)
        with TorchEager(Spec("torch", "cpu", "fp32"), self._model) as model:
            expected = model.run(probe)
        gave = tried(self._path, ways)
        way = self._chosen(ways, gave, expected)
        arrays = gave[way]
        assert not isinstance(arrays, str)
        outputs = self._matched(expected, arrays)
        self._check_dtype(next(iter(outputs.values())), arrays)
        layout = layout_of(self._model, self._model.module, probe, self.spec)
        points = {name: layout.outputs.point(name) for name in outputs}
        self._ready[key] = Ready(way, outputs, points)
        taken = time.perf_counter() - start
        self._seconds["match"] = self._seconds.get("match", 0.0) + taken
        return self._ready[key]

    def _ways(self, slots: Sequence[Slot], probe: Probe) -> list[list[Array]]:
        """All ways to feed the program that its types and shapes allow, the likeliest first."""
        given = {name: _plain(array) for name, array in probe.inputs.items()}
        exact = [_value(i, slot, slot.shape) for i, slot in enumerate(slots)]
        # A size is the most there may be; the runtime itself refuses what cannot be resized.
        loose = [_value(i, slot, [""] * len(slot.shape)) for i, slot in enumerate(slots)]
        try:
            found = feeds(self._path.name, exact, given)
        except BackendError:
            fits = [a.shape for a in given.values()]
            if not any(len(s.shape) == len(f) and _within(f, s.shape) for s in slots for f in fits):
                raise
            found = feeds(self._path.name, loose, given)
        return [
            [_as(feed[value.name], slot) for value, slot in zip(exact, slots, strict=True)]
            for feed in found
        ]

    def _chosen(
        self,
        ways: Sequence[Sequence[Array]],
        gave: Sequence[list[Array] | str],
        expected: Arrays,
    ) -> int:
        failed = [one for one in gave if isinstance(one, str)]
        if len(failed) == len(gave):
            assert self._program is not None
            takes = ", ".join(map(str, self._program.inputs))
            raise BackendError(
                f"{failed[0]}. It takes {takes}: shape the probe alike (--batch, --length)."
            )
        named = [{f"input {i}": _plain(a) for i, a in enumerate(way)} for way in ways]
        outputs = [{} if isinstance(one, str) else _numbered(one) for one in gave]
        way = choose(named, outputs, expected)
        if way is None:
            raise BackendError(
                f"The inputs of {self._path.name} fit the probe in {len(ways)} ways, and no one of "
                f"them gives the outputs of {self._model.label}. Is it a program of this model?"
            )
        return way

    def _matched(self, expected: Arrays, arrays: Sequence[Array]) -> dict[str, int]:
        """For each output of the model the program's: by place where all fit, else by content."""
        shapes = [array.shape for array in arrays]
        if [array.shape for array in expected.values()] == shapes[: len(expected)]:
            return {name: number for number, name in enumerate(expected)}
        found = match_outputs(expected, _numbered(arrays), lambda key: key)
        if not found:
            here = ", ".join(f"{name!r} {list(array.shape)}" for name, array in expected.items())
            raise BackendError(
                f"No output of {self._path.name} ({', '.join(str(list(s)) for s in shapes)}) is "
                f"one of {self._model.label}: {here}. Is it a program of this model?"
            )
        return {name: int(key.partition(" ")[2]) for name, key in found.items()}

    def _check_dtype(self, main: int, arrays: Sequence[Array]) -> None:
        own = dtype_name(arrays[main])
        if own not in FORMATS:
            raise BackendError(f"Output {main} of {self._path.name} is {own}; floats are compared.")
        if self.spec.dtype and self.spec.dtype != own:
            raise BackendError(f"{self.spec}: {self._path.name} gives {own}.")
        self._dtype = own

    def _close(self) -> None:
        self._ready.clear()
        self._program = None


def _names_xnnpack(path: Path) -> bool:
    """A program has the name of each delegate in it, as it is."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"XnnpackBackend") >= 0


def _value(number: int, slot: Slot, shape: Sequence[int | str]) -> Value:
    floats = slot.dtype in ("float16", "bfloat16")
    kind = "float" if floats else _KINDS.get(slot.dtype, slot.dtype)
    return Value(f"input {number}", f"tensor({kind})", tuple(shape))


def _numbered(arrays: Sequence[Array]) -> dict[str, Array]:
    return {f"output {number}": _plain(array) for number, array in enumerate(arrays)}


def _plain(array: Array) -> Array:
    """Half precision as float32, which all that is compared here understands."""
    half = array.dtype == FORMATS["bf16"].dtype or array.dtype == np.float16
    return array.astype(np.float32) if half else array


def _as(array: Array, slot: Slot) -> Array:
    half = {"float16": FORMATS["fp16"].dtype, "bfloat16": FORMATS["bf16"].dtype}
    return array.astype(half[slot.dtype]) if slot.dtype in half else array


def _within(shape: Sequence[int], most: Sequence[int]) -> bool:
    return all(size <= limit for size, limit in zip(shape, most, strict=True))
