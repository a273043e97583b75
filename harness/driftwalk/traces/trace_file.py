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
from typing import TYPE_CHECKING, Any

import numpy as np

from ..decoding import Decoding
from ..dtypes import Array, dtype_name
from ..errors import UsageError
from ..files import read_json, write_atomically
from ..jsonable import Sparse, decode, encode
from ..other_inputs import from_plain
from ..point import BackendInfo, Point, Probe, State
from .steps import by_step, check_plan
from .tensor_file import MOST_HEADER, read_tensors, sha256_of_all, write_tensors

if TYPE_CHECKING:
    from ..states import Trace

VERSION, WITHOUT_STEPS = 2, 1
"""The newest version; a trace of one run is still written as older driftwalks read it."""
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
    others: Sparse[Mapping[str, Any]] = field(default_factory=dict)
    """Inputs that are not one array (other_inputs.py), and the arrays that lie inside them."""
    inside: Sparse[tuple[Stored, ...]] = ()


_NOBODY = BackendInfo("", "", "", "")


@dataclass(frozen=True)
class Manifest:
    """All that a trace says of itself. A program that writes one must give `points`, in order."""

    points: tuple[Stored, ...]
    schema_version: int = WITHOUT_STEPS
    file: str = STATES
    outputs: tuple[Stored, ...] = ()
    probe: StoredProbe = StoredProbe()
    backend: BackendInfo = _NOBODY
    model: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    decoding: Sparse[Decoding | None] = None
    """Where the sequence was fed step by step: in which steps, and what was kept between them."""


def save_trace(trace: Trace, folder: str | Path) -> Path:
    """Write a trace; one that is there already is replaced whole, or stays whole."""
    path = Path(folder)
    if path.is_file() or (path.is_dir() and any(path.iterdir()) and not _is_trace(path)):
        raise UsageError(
            f"{str(path)!r} is there, and is no trace; nothing was written. Name another folder."
        )
    inside, others = trace.probe.plain_others()
    tensors: dict[str, Array] = {state.point.name: state.array for state in trace}
    tensors |= {INPUT + name: array for name, array in trace.probe.inputs.items()}
    tensors |= {INPUT + name: array for name, array in inside.items()}
    tensors |= {OUTPUT + name: array for name, array in trace.outputs.items()}

    def manifest(hashes: Mapping[str, str]) -> Manifest:
        def stored(kind: str, name: str, array: Array, module: str = "") -> Stored:
            return Stored(name, array.shape, dtype_name(array), hashes[kind + name], module)

        probe = trace.probe
        inputs = tuple(stored(INPUT, *item) for item in probe.inputs.items())
        kept = None if probe.kept is None else {n: _as_digits(k) for n, k in probe.kept.items()}
        said = probe.sha256, probe.origin, probe.texts, probe.tokens, inputs, kept, others
        arrays = tuple(stored(INPUT, *item) for item in inside.items())
        return Manifest(
            points=tuple(stored("", s.point.name, s.array, s.point.module) for s in trace),
            schema_version=WITHOUT_STEPS if trace.decoding is None else VERSION,
            outputs=tuple(stored(OUTPUT, *item) for item in trace.outputs.items()),
            probe=StoredProbe(*said, arrays),
            backend=trace.backend,
            model=trace.model,
            environment=trace.environment,
            decoding=trace.decoding,
        )

    try:
        path.mkdir(parents=True, exist_ok=True)
        with _alone_in(path) as synced:
            return _write(path, manifest, tensors, synced)
    except OSError as error:
        raise UsageError(
            f"Cannot write a trace to {str(path)!r}: {error.strerror or error}."
        ) from None


def _as_digits(keep: Array) -> tuple[str, ...]:
    return tuple("".join("01"[int(flag)] for flag in row) for row in keep)


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
            for item in path.iterdir():
                if item.name.startswith(_TEMPORARY):  # no finished file has such a name
                    item.unlink(missing_ok=True)
        yield lambda: os.fsync(handle)
    finally:
        os.close(handle)


def _write(
    path: Path,
    make: Callable[[Mapping[str, str]], Manifest],
    tensors: Mapping[str, Array],
    synced: Callable[[], None],
) -> Path:
    handle, temporary = tempfile.mkstemp(dir=path, prefix=".states.", suffix=".tmp")
    os.close(handle)
    try:
        with ThreadPoolExecutor(1) as beside:  # hashing and writing both wait for little else
            hashing = beside.submit(sha256_of_all, tensors)
            write_tensors(Path(temporary), tensors)
            manifest = make(hashing.result())
        os.chmod(temporary, 0o644)
        if (path / STATES).exists():  # a file that a manifest speaks of is never written over
            digest = hashlib.sha256(json.dumps(encode(manifest)).encode()).hexdigest()
            manifest = replace(manifest, file=f"states.{digest[:16]}.safetensors")
        os.replace(temporary, path / manifest.file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    synced()
    text = json.dumps(encode(manifest), indent=1, sort_keys=True, allow_nan=False)
    write_atomically(path / MANIFEST, text + "\n")
    synced()
    for old in path.glob("states*.safetensors"):
        if old.name != manifest.file:
            with contextlib.suppress(OSError):  # no harm in it but its size
                old.unlink()
    return path


def _is_trace(path: Path) -> bool:
    """A trace, or what a crash left of the first attempt at one."""
    names = {item.name for item in path.iterdir() if not item.name.startswith(_TEMPORARY)}
    return MANIFEST in names or names <= {STATES}


Texts = Mapping[str, str]
Contents = tuple[
    tuple[State, ...], Probe, BackendInfo, Mapping[str, Array], Texts, Texts, Decoding | None
]
"""What a trace is made of: states, probe, backend, outputs, model, environment, decoding."""


def read_trace(folder: str | Path, probe: Probe | None = None) -> Contents:
    """Map a trace, and compare every tensor with what the manifest says of it."""
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
    manifest = _manifest(path)
    tensors = read_tensors(path / manifest.file)
    found = _checked(path, tensors, manifest)
    states = tuple(State(Point(s.name, s.module), found[s.name]) for s in manifest.points)
    outputs = {s.name: found[OUTPUT + s.name] for s in manifest.outputs}
    inputs = {s.name: found[INPUT + s.name] for s in manifest.probe.inputs}
    note = manifest.probe
    if inputs or note.others:
        others = _others(path, note, found)
        kept = _read(note.kept)
        made = Probe(inputs, note.origin, note.texts, note.tokens, kept, others=others)
    elif probe is not None:
        made = probe
    else:
        raise UsageError(f"The trace {str(path)!r} does not say what inputs it was made from.")
    if note.sha256 and note.sha256 != made.sha256:
        raise UsageError(
            f"The trace {str(path)!r} was made from a probe {note.sha256[:12]}, not from "
            f"{made.sha256[:12]}."
        )
    dtypes = manifest.backend.dtypes  # in order of execution, which JSON does not keep
    ordered = {s.name: dtypes[s.name] for s in manifest.points if s.name in dtypes}
    backend = replace(manifest.backend, dtypes=ordered | dict(dtypes))
    plan = manifest.decoding
    if plan is not None:
        check_plan(f"The trace {str(path)!r}", plan, made)
    return states, made, backend, outputs, manifest.model, manifest.environment, plan


def _others(path: Path, note: StoredProbe, found: Mapping[str, Array]) -> dict[str, Any]:
    try:
        arrays = {stored.name: found[INPUT + stored.name] for stored in note.inside}
        return {name: from_plain(data, arrays) for name, data in note.others.items()}
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"The trace {str(path)!r} has inputs that cannot be: {error}") from None


def _manifest(path: Path) -> Manifest:
    data = read_json(path / MANIFEST, MOST_HEADER)
    version = data.get("schema_version", WITHOUT_STEPS) if isinstance(data, dict) else VERSION
    if isinstance(version, int) and version > VERSION:
        raise UsageError(
            f"The trace {str(path)!r} has version {version}; this driftwalk reads up to {VERSION}."
        )
    manifest = decode(Manifest, data, f"{path.name}/{MANIFEST}")
    inside = Path(manifest.file).name == manifest.file and manifest.file not in ("", ".", "..")
    if not inside or "\0" in manifest.file or (path / manifest.file).is_symlink():
        raise UsageError(f"{path.name}/{MANIFEST} names a file outside its folder.")
    names = [s.name for s in manifest.points]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"{path.name}/{MANIFEST} lists no points, or one of them twice.")
    return manifest


def _checked(path: Path, tensors: Mapping[str, Array], manifest: Manifest) -> dict[str, Array]:
    """All that a manifest lists, by its name in the file, in the shape, dtype and bytes it says."""
    inputs = (*manifest.probe.inputs, *manifest.probe.inside)
    kinds = (("", manifest.points), (OUTPUT, manifest.outputs), (INPUT, inputs))
    listed = [(kind + stored.name, stored) for kind, items in kinds for stored in items]
    if manifest.decoding is not None:
        lacking = [s.name for s in manifest.points if s.name not in tensors]
        room = (path / manifest.file).stat().st_size
        whole = by_step(f"The trace {str(path)!r}", lacking, tensors, manifest.decoding, room)
        tensors = {**tensors, **whole}
    for name, stored in listed:
        if name not in tensors:
            raise UsageError(
                f"The trace {str(path)!r} lacks {stored.name[:80]!r}, which its manifest lists."
            )
        shape, dtype = tensors[name].shape, dtype_name(tensors[name])
        facts = ("shape ", stored.shape, shape), ("", stored.dtype or None, dtype)
        for what, said, found in facts:
            if said not in (None, found):
                raise UsageError(
                    f"The trace {str(path)!r} has {stored.name[:80]!r} in {what}{found}; its "
                    f"manifest says {str(said)[:40]}."
                )
    hashes = {name: stored.sha256 for name, stored in listed if stored.sha256}
    for name, digest in sha256_of_all({name: tensors[name] for name in hashes}).items():
        if digest != hashes[name]:
            raise UsageError(
                f"The trace {str(path)!r} is damaged: {name[:80]!r} does not have the bytes it was "
                "written with."
            )
    return {name: tensors[name] for name, _ in listed}
