"""Where a backend runs while it is timed: here, or in a process of its own.

The process is `python -m driftwalk.tasks.bench.worker`. It reads one JSON object a line and
answers each with one; what the model itself prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...adapter import Backend, BackendInfo, HasDeviceMemory, Lap, TimesLayers
from ...children import Child
from ...errors import BackendError
from ...jsonable import decode, encode
from ...states import Probe

LAST_LINES = 8
"""Of a dead process's own messages."""


class Runner(Protocol):
    """A backend that can be timed."""

    def open(self, probe: Probe) -> Mapping[str, float]:
        """Get ready for a probe, run it once, and say what that cost."""

    def lap(self) -> Lap: ...

    def layers(self) -> Mapping[str, float]: ...

    def memory(self) -> Mapping[str, int]: ...

    def info(self) -> BackendInfo: ...

    def close(self) -> None: ...


class Local:
    """In this process, beside everything else that it holds."""

    def __init__(self, backend: Backend, owned: bool = True) -> None:
        self._backend = backend
        self._owned = owned
        self._probe: Probe | None = None

    def open(self, probe: Probe) -> Mapping[str, float]:
        before = dict(self._backend.seconds)
        first = self._backend.lap(probe).seconds
        self._probe = probe
        spent = {
            name: seconds - before.get(name, 0.0)
            for name, seconds in self._backend.seconds.items()
            if name in ("load", "export", "compile") and seconds > before.get(name, 0.0)
        }
        return spent | {"first run": first}

    def _given(self) -> Probe:
        if self._probe is None:
            raise BackendError(f"{self._backend.spec} was not opened with a probe.")
        return self._probe

    def lap(self) -> Lap:
        return self._backend.lap(self._given())

    def layers(self) -> Mapping[str, float]:
        backend, probe = self._backend, self._given()
        return backend.layer_laps(probe) if isinstance(backend, TimesLayers) else {}

    def memory(self) -> Mapping[str, int]:
        backend = self._backend
        return dict(backend.device_memory()) if isinstance(backend, HasDeviceMemory) else {}

    def info(self) -> BackendInfo:
        return self._backend.info

    def close(self) -> None:
        if self._owned:
            self._backend.close()


@dataclass(frozen=True)
class Recipe:
    """What a process needs to make a backend: words only."""

    spec: str
    model: str
    blocks: str | None = None
    trust_remote_code: bool = False


class Remote:
    """In a process of its own: its memory is its own, and so are its threads."""

    def __init__(self, recipe: Recipe, threads: int | None = None) -> None:
        self._recipe = recipe
        self._asked = 0
        self._folder = tempfile.TemporaryDirectory(prefix="driftwalk-bench-")
        # Into a file, not a pipe: a talkative model must not block, and the end of it is kept.
        self._said = open(Path(self._folder.name) / "stderr", "w+b")  # noqa: SIM115
        # Ctrl-C is for us: the worker ends when we close it, and when we are gone.
        self._process: Child[str] = Child(
            [sys.executable, "-m", "driftwalk.tasks.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment_of(threads),
            text=True,
            encoding="utf-8",
        )
        try:
            self._ask("make", **encode(recipe))
        except BaseException:
            self.close()
            raise

    def open(self, probe: Probe) -> Mapping[str, float]:
        path = probe.save(Path(self._folder.name) / f"{probe.sha256[:16]}.safetensors")
        return decode(dict[str, float], self._ask("open", probe=str(path)), "cold")

    def lap(self) -> Lap:
        return decode(Lap, self._ask("lap"), "lap")

    def layers(self) -> Mapping[str, float]:
        return decode(dict[str, float], self._ask("layers"), "layers")

    def memory(self) -> Mapping[str, int]:
        return decode(dict[str, int], self._ask("memory"), "memory")

    def info(self) -> BackendInfo:
        return decode(BackendInfo, self._ask("info"), "info")

    def _ask(self, what: str, **more: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked += 1
        told: dict[str, Any] = {}
        try:
            self._process.stdin.write(json.dumps({"id": self._asked, "do": what, **more}) + "\n")
            self._process.stdin.flush()
            while told.get("id") != self._asked:  # the answer to an order that was interrupted
                answer = self._process.stdout.readline()
                if not answer:
                    raise BackendError(self._death())
                told = json.loads(answer)
        except OSError:
            raise BackendError(self._death()) from None
        if "error" in told:
            raise BackendError(f"{self._recipe.spec}: {told['error']}")
        return told["answer"]

    def _death(self) -> str:
        code = self._process.wait(10)
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").splitlines()[-LAST_LINES:]
        last = "\n  ".join(lines) or "(it said nothing)"
        return (
            f"The process of {self._recipe.spec} ended with code {code}. Its last lines:\n  {last}"
        )

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.end()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()
        self._folder.cleanup()


def environment_of(threads: int | None) -> dict[str, str]:
    """Ours, with as many threads as asked for, and the path that makes driftwalk importable."""
    found = dict(os.environ)
    found["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if threads:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            found[name] = str(threads)
    return found
