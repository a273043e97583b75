"""A program's first run, in a process of its own: a bad one may end the process that runs it.

    python -m driftwalk_backends.pte.trial PROGRAM FEEDS RESULTS

FEEDS holds several ways to feed the program; RESULTS gets what it gave for each, or why it failed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.torch import save_file

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from ..tensors import from_numpy, to_numpy
from .program import Program, load

LIMIT = 900
"""Seconds that all runs of a trial may take."""
_ERROR = "BackendError: "


def tried(path: Path, feeds: Sequence[Sequence[Array]]) -> list[list[Array] | str]:
    """What a program gives for each way to feed it, or why it gives nothing."""
    with tempfile.TemporaryDirectory(prefix="driftwalk-pte-") as name:
        given, results = Path(name) / "feeds.safetensors", Path(name) / "results.safetensors"
        _write(given, feeds)
        words = [sys.executable, "-m", __name__, str(path), str(given), str(results)]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(
                words, env=env, capture_output=True, timeout=LIMIT, check=False, errors="replace"
            )
        except subprocess.TimeoutExpired:
            raise BackendError(f"{path.name} was still running after {LIMIT} s.") from None
        if done.returncode or not results.exists():
            raise BackendError(_why(path, done.returncode, done.stderr))
        return _read(results)


def _write(path: Path, ways: Sequence[Sequence[Array] | str]) -> None:
    """Arrays of several ways, or a sentence in place of them."""
    tensors = {
        f"{way}.{place}": from_numpy(np.ascontiguousarray(array))
        for way, arrays in enumerate(ways)
        if not isinstance(arrays, str)
        for place, array in enumerate(arrays)
    }
    said = [one if isinstance(one, str) else len(one) for one in ways]
    save_file(tensors, path, {"ways": json.dumps(said)})


def _read(path: Path) -> list[list[Array] | str]:
    with safe_open(path, "pt") as stored:
        said = json.loads(stored.metadata()["ways"])
        return [
            one
            if isinstance(one, str)
            else [to_numpy(stored.get_tensor(f"{way}.{place}")) for place in range(one)]
            for way, one in enumerate(said)
        ]


def _why(path: Path, code: int, said: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return (
            f"{path.name} ended the process that ran it ({name}): the file is damaged, or was made "
            "for another build of ExecuTorch."
        )
    lines = [line for line in said.strip().splitlines() if line.strip()] or ["it said nothing"]
    known = lines[-1].startswith(_ERROR)
    return lines[-1].removeprefix(_ERROR) if known else f"{path.name} cannot be run: {lines[-1]}"


def _main(path: Path, given: Path, results: Path) -> None:
    program = load(path)
    feeds = [feed for feed in _read(given) if not isinstance(feed, str)]
    _write(results, [_given(program, feed) for feed in feeds])


def _given(program: Program, feed: Sequence[Array]) -> list[Array] | str:
    try:
        return program.run(feed, program.path.name)[0]
    except BackendError as error:
        return str(error)


if __name__ == "__main__":
    try:
        _main(*map(Path, sys.argv[1:]))
    except BackendError as error:
        sys.stderr.write(f"{_ERROR}{error}\n")
        sys.exit(1)
