"""The process a backend is timed in: one JSON object a line in, one a line out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from ...errors import DriftwalkError
from ...jsonable import encode
from ...registry import create
from ...stage import open_model
from ...states import Probe
from .runner import Local


class Worker:
    """Holds one backend and does what it is told."""

    def __init__(self) -> None:
        self._runner: Local | None = None

    def answer(self, order: Mapping[str, Any]) -> Any:
        known: dict[str, Callable[..., Any]] = {
            "make": self._make,
            "open": lambda probe: self._held.open(Probe.load(probe)),
            "lap": lambda: encode(self._held.lap()),
            "layers": lambda: dict(self._held.layers()),
            "memory": lambda: {"rss": peak_rss(), **self._held.memory()},
            "info": lambda: encode(self._held.info()),
        }
        more = {name: value for name, value in order.items() if name not in ("id", "do")}
        return known[order["do"]](**more)

    @property
    def _held(self) -> Local:
        if self._runner is None:
            raise DriftwalkError("no backend was made yet")
        return self._runner

    def _make(self, spec: str, model: str, blocks: str | None, trust_remote_code: bool) -> str:
        opened = open_model(model, blocks=blocks, trust_remote_code=trust_remote_code)
        made = create(spec, opened)
        self._runner = Local(made)
        return str(made.spec)


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
        told: dict[str, Any] = {}
        try:
            order = json.loads(line)
            told["id"] = order.get("id")
            told["answer"] = worker.answer(order)
        except Exception as error:  # told to the other side, which knows what to do
            plain = isinstance(error, DriftwalkError)
            told["error"] = str(error) if plain else f"{type(error).__name__}: {error}"
        answers.write(json.dumps(told) + "\n")
        answers.flush()


def main() -> None:
    # Answers have a channel of their own: what a model prints must not be taken for one.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, channel)


if __name__ == "__main__":
    main()
