"""Where a backend runs while it is timed: here, or in a process of its own.

The process is this file, run as a program. It reads one JSON object a line and answers each with
one; what the model itself prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from ...adapter import Backend, BackendInfo, HasDeviceMemory, Lap, TimesLayers
from ...children import Child
from ...errors import BackendError, DriftwalkError
from ...jsonable import decode, encode
from ...registry import create
from ...stage import open_model
from ...states import Probe

LAST_LINES = 8
"""Of a dead process's own messages."""


class Local:
    """In this process, beside everything else that it holds."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._probe: Probe | None = None

    def open(self, probe: Probe) -> Mapping[str, float]:
        """Get ready for a probe, run it once, and say what that cost."""
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


class Remote:
    """In a process of its own: its memory is its own, and so are its threads."""

    def __init__(
        self, spec: str, model: str, threads: int | None = None, **options: str | bool | None
    ) -> None:
        self._spec = spec
        self._asked = 0
        self._folder = tempfile.TemporaryDirectory(prefix="driftwalk-bench-")
        # Into a file, not a pipe: a talkative model must not block, and the end of it is kept.
        self._said = open(Path(self._folder.name) / "stderr", "w+b")  # noqa: SIM115
        # Ctrl-C is for us: the worker ends when we close it, and when we are gone.
        self._process: Child[str] = Child(
            [sys.executable, "-m", "driftwalk.tasks.bench.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment_of(threads),
            text=True,
            encoding="utf-8",
        )
        try:
            self._ask("make", spec=spec, model=model, **options)
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
        reply: dict[str, Any] = {}
        try:
            self._process.stdin.write(json.dumps({"id": self._asked, "do": what, **more}) + "\n")
            self._process.stdin.flush()
            while reply.get("id") != self._asked:  # the answer to an order that was interrupted
                answer = self._process.stdout.readline()
                if not answer:
                    raise BackendError(self._death())
                reply = json.loads(answer)
        except OSError:
            raise BackendError(self._death()) from None
        if "error" in reply:
            raise BackendError(f"{self._spec}: {reply['error']}")
        return reply["answer"]

    def _death(self) -> str:
        code = self._process.wait(10)
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").splitlines()[-LAST_LINES:]
        last = "\n  ".join(lines) or "(it said nothing)"
        return f"The process of {self._spec} ended with code {code}. Its last lines:\n  {last}"

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


Runner = Local | Remote


def environment_of(threads: int | None) -> dict[str, str]:
    """Ours, with as many threads as asked for, and the path that makes driftwalk importable."""
    variables = dict(os.environ)
    variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if threads:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            variables[name] = str(threads)
    return variables


# ---- the process itself ----


class Worker:
    """Holds one backend and does what it is told."""

    def __init__(self) -> None:
        self._runner: Local | None = None

    def answer(self, do: str, id: int | None = None, **given: Any) -> Any:
        if do == "make":
            self._make(**given)
            return None
        orders: dict[str, Callable[[Local], Any]] = {
            "open": lambda runner: runner.open(Probe.load(given["probe"])),
            "lap": Local.lap,
            "layers": Local.layers,
            "memory": lambda runner: {"rss": peak_rss(), **runner.memory()},
            "info": Local.info,
        }
        asked = orders[do]
        if self._runner is None:
            raise DriftwalkError("no backend was made yet")
        return encode(asked(self._runner))

    def _make(self, spec: str, model: str, **options: Any) -> None:
        self._runner = Local(create(spec, open_model(model, **options)))


def peak_rss() -> int:
    """The largest resident memory of this process so far, in bytes; 0 where nobody tells.

    Linux counts what a process inherited at its start into `getrusage`: the parent's memory.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def serve(orders: TextIO, answers: TextIO) -> None:
    """Answer every line until there is none left."""
    worker = Worker()
    for line in orders:
        reply: dict[str, Any] = {}
        try:
            order = json.loads(line)
            reply["id"] = order.get("id")
            reply["answer"] = worker.answer(**order)
        except Exception as error:  # told to the other side, which knows what to do
            plain = isinstance(error, DriftwalkError)
            reply["error"] = str(error) if plain else f"{type(error).__name__}: {error}"
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def main() -> None:
    # Answers have a channel of their own: what a model prints must not be taken for one.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, channel)


if __name__ == "__main__":
    main()
