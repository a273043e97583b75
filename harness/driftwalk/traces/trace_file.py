"""Traces on disk: a folder with `manifest.json` and the states in one safetensors file.

docs/trace-format.md is for those who write one from another language. The manifest comes last, and
names the file it speaks of: a crash leaves the trace that was there before, or the new one. Writers
of one folder wait for each other, so that what lies about when one begins is of the dead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..dtypes import Array, dtype_name
from ..errors import UsageError
from ..files import read_json, write_atomically
from ..jsonable import decode, encode
from ..point import BackendInfo, Point, Probe, State
from .tensor_file import MOST_HEADER, read_tensors, sha256_of_all, write_tensors

if TYPE_CHECKING:
    from ..states import Trace

VERSION = 1
MANIFEST, STATES = "manifest.json", "states.safetensors"
_TEMPORARY = (".states.", f".{MANIFEST}.")
INPUT, OUTPUT = "input:", "output:"
"""Before the names of inputs and outputs in the file; states stand under their points' names."""


@dataclass(frozen=True)
class Stored:
    """A tensor in the file; what is left out is not checked."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    sha256: str = ""
    module: str = ""
    """Of a state: the module it was taken from."""


@dataclass(frozen=True)
class StoredProbe:
    """What the trace was made of; the inputs themselves may lie in the file."""

    sha256: str = ""
    origin: str = ""
    texts: tuple[str, ...] = ()
    tokens: tuple[tuple[str, ...], ...] = ()
    inputs: tuple[Stored, ...] = ()
    kept: Mapping[str, tuple[str, ...]] | None = None
    """What is not padding, by the beginning of points' names: a row of 0s and 1s for each row."""


_NOBODY = BackendInfo("", "", "", "")


@dataclass(frozen=True)
class Manifest:
    """All that a trace says of itself. A program that writes one must give `points`, in order."""

    points: tuple[Stored, ...]
    schema_version: int = VERSION
    file: str = STATES
    outputs: tuple[Stored, ...] = ()
    probe: StoredProbe = StoredProbe()
    backend: BackendInfo = _NOBODY
    model: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def save_trace(trace: Trace, folder: str | Path) -> Path:
    """Write a trace; one that is there already is replaced whole, or stays whole."""
    path = Path(folder)
    if path.is_file() or (path.is_dir() and any(path.iterdir()) and not _is_trace(path)):
        raise UsageError(
            f"{str(path)!r} is there, and is no trace; nothing was written. Name another folder."
        )
    tensors: dict[str, Array] = {state.point.name: state.array for state in trace}
    tensors |= {INPUT + name: array for name, array in trace.probe.inputs.items()}
    tensors |= {OUTPUT + name: array for name, array in trace.outputs.items()}

    def told(hashes: Mapping[str, str]) -> Manifest:
        return Manifest(
            points=tuple(_stored(s.point.name, s.array, hashes, "", s.point.module) for s in trace),
            outputs=tuple(_stored(n, a, hashes, OUTPUT) for n, a in trace.outputs.items()),
            probe=StoredProbe(
                trace.probe.sha256,
                trace.probe.origin,
                trace.probe.texts,
                trace.probe.tokens,
                tuple(_stored(n, a, hashes, INPUT) for n, a in trace.probe.inputs.items()),
                _written(trace.probe.kept),
            ),
            backend=trace.backend,
            model=trace.model,
            environment=trace.environment,
        )

    try:
        path.mkdir(parents=True, exist_ok=True)
        with _alone_in(path) as synced:
            return _write(path, told, tensors, synced)
    except OSError as error:
        raise UsageError(
            f"Cannot write a trace to {str(path)!r}: {error.strerror or error}."
        ) from None


def _written(kept: Mapping[str, Array] | None) -> dict[str, tuple[str, ...]] | None:
    if kept is None:
        return None
    return {
        name: tuple("".join("01"[int(flag)] for flag in row) for row in keep)
        for name, keep in kept.items()
    }


def _read(kept: Mapping[str, tuple[str, ...]] | None) -> dict[str, Array] | None:
    if kept is None:
        return None
    if any(len({len(row) for row in rows}) != 1 for rows in kept.values()):
        raise UsageError("The manifest's probe.kept has no rows, or rows of unequal length.")
    return {name: np.array([[c == "1" for c in row] for row in kept[name]]) for name in kept}


@contextlib.contextmanager
def _alone_in(path: Path) -> Iterator[Callable[[], None]]:
    """Keep other writers out of a folder, and clear away what a killed one left there.

    Gives what makes renames in the folder lasting. A lock of the system ends with its process,
    however that ends; where there are none, two writers of one folder are not kept apart.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield lambda: None
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network folders have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
            for left in _left_over(path):
                left.unlink(missing_ok=True)
        yield lambda: os.fsync(handle)
    finally:
        os.close(handle)


def _left_over(path: Path) -> list[Path]:
    """What has a temporary name; no finished file has one."""
    return [item for item in path.iterdir() if item.name.startswith(_TEMPORARY)]


def _write(
    path: Path,
    tell: Callable[[Mapping[str, str]], Manifest],
    tensors: Mapping[str, Array],
    synced: Callable[[], None],
) -> Path:
    handle, temporary = tempfile.mkstemp(dir=path, prefix=".states.", suffix=".tmp")
    os.close(handle)
    try:
        with ThreadPoolExecutor(1) as beside:  # hashing and writing both wait for little else
            hashing = beside.submit(sha256_of_all, tensors)
            write_tensors(Path(temporary), tensors)
            told = tell(hashing.result())
        os.chmod(temporary, 0o644)
        if (path / STATES).exists():  # a file that a manifest speaks of is never written over
            digest = hashlib.sha256(json.dumps(encode(told)).encode()).hexdigest()
            told = replace(told, file=f"states.{digest[:16]}.safetensors")
        os.replace(temporary, path / told.file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    synced()
    text = json.dumps(encode(told), indent=1, sort_keys=True, allow_nan=False)
    write_atomically(path / MANIFEST, text + "\n")
    synced()
    for old in path.glob("states*.safetensors"):
        if old.name != told.file:
            with contextlib.suppress(OSError):  # no harm in it but its size
                old.unlink()
    return path


def _stored(
    name: str, array: Array, hashes: Mapping[str, str], kind: str = "", module: str = ""
) -> Stored:
    return Stored(name, array.shape, dtype_name(array), hashes[kind + name], module)


def _is_trace(path: Path) -> bool:
    """A trace, or what a crash left of the first attempt at one."""
    names = {item.name for item in path.iterdir() if not item.name.startswith(_TEMPORARY)}
    return MANIFEST in names or names <= {STATES}


class Contents(NamedTuple):
    """What a trace is made of, in the order of its fields."""

    states: tuple[State, ...]
    probe: Probe
    backend: BackendInfo
    outputs: Mapping[str, Array]
    model: Mapping[str, str]
    environment: Mapping[str, str]


def read_trace(folder: str | Path, probe: Probe | None = None) -> Contents:
    """Map a trace, and hold every tensor against what the manifest says of it."""
    path = Path(folder)
    if path.is_file():
        raise UsageError(
            f"{str(path)!r} is a file; a trace is a folder with {MANIFEST} and {STATES}. A "
            "signature has no states to run with: `driftwalk compare` takes one, on either side."
        )
    if not (path / MANIFEST).is_file():
        raise UsageError(
            f"{str(path)!r} is no trace: a trace is a folder with {MANIFEST} and {STATES}."
        )
    told = _manifest(path)
    tensors = read_tensors(path / told.file)
    states = tuple(State(Point(s.name, s.module), _checked(path, tensors, s)) for s in told.points)
    outputs = {s.name: _checked(path, tensors, s, OUTPUT) for s in told.outputs}
    inputs = {s.name: _checked(path, tensors, s, INPUT) for s in told.probe.inputs}
    _check_hashes(path, tensors, told)
    note = told.probe
    if inputs:
        made = Probe(inputs, note.origin, note.texts, note.tokens, _read(note.kept))
    elif probe is not None:
        made = probe
    else:
        raise UsageError(f"The trace {str(path)!r} does not say what inputs it was made from.")
    if note.sha256 and note.sha256 != made.sha256:
        raise UsageError(
            f"The trace {str(path)!r} was made from a probe {note.sha256[:12]}, not from "
            f"{made.sha256[:12]}."
        )
    backend = replace(told.backend, dtypes=_in_order(told.backend.dtypes, told))
    return Contents(states, made, backend, outputs, told.model, told.environment)


def _in_order(dtypes: Mapping[str, str], told: Manifest) -> dict[str, str]:
    """In order of execution, which JSON does not keep."""
    ordered = {s.name: dtypes[s.name] for s in told.points if s.name in dtypes}
    return ordered | dict(dtypes)


def _manifest(path: Path) -> Manifest:
    size = (path / MANIFEST).stat().st_size
    if size > MOST_HEADER:
        raise UsageError(f"{path.name}/{MANIFEST} has {size} bytes, more than any trace needs.")
    data = read_json(path / MANIFEST)
    version = data.get("schema_version", VERSION) if isinstance(data, dict) else VERSION
    if isinstance(version, int) and version > VERSION:
        raise UsageError(
            f"The trace {str(path)!r} has version {version}; this driftwalk reads up to {VERSION}."
        )
    told = decode(Manifest, data, f"{path.name}/{MANIFEST}")
    inside = Path(told.file).name == told.file and told.file not in ("", ".", "..")
    if not inside or "\0" in told.file or (path / told.file).is_symlink():
        raise UsageError(f"{path.name}/{MANIFEST} names a file outside its folder.")
    names = [s.name for s in told.points]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"{path.name}/{MANIFEST} lists no points, or one of them twice.")
    return told


def _checked(path: Path, tensors: Mapping[str, Array], stored: Stored, kind: str = "") -> Array:
    array = tensors.get(kind + stored.name)
    if array is None:
        raise UsageError(
            f"The trace {str(path)!r} lacks {stored.name[:80]!r}, which its manifest lists."
        )
    if stored.shape not in (None, array.shape):
        raise UsageError(
            f"The trace {str(path)!r} has {stored.name[:80]!r} in shape {list(array.shape)}; its "
            f"manifest says {list(stored.shape or ())}."
        )
    if stored.dtype and dtype_name(array) != stored.dtype:
        raise UsageError(
            f"The trace {str(path)!r} has {stored.name[:80]!r} in {dtype_name(array)}; its "
            f"manifest says {stored.dtype[:20]}."
        )
    return array


def _check_hashes(path: Path, tensors: Mapping[str, Array], told: Manifest) -> None:
    kinds = (("", told.points), (OUTPUT, told.outputs), (INPUT, told.probe.inputs))
    said = {kind + s.name: s.sha256 for kind, stored in kinds for s in stored if s.sha256}
    found = sha256_of_all({name: tensors[name] for name in said})
    for name, digest in said.items():
        if found[name] != digest:
            raise UsageError(
                f"The trace {str(path)!r} is damaged: {name[:80]!r} does not have the bytes it was "
                "written with."
            )
