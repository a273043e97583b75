"""A signature: numbers of each state of a trace, in order, and who made the trace.

It is one JSON file: fit for git, and hostile until it was checked. `digest` is the hash of all the
rest, so that a flipped byte is damage and never drift.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..files import read_json, write_atomically
from ..jsonable import decode, encode
from ..make_report import probe_info
from ..result import ProbeInfo
from ..states import BackendInfo, Probe, Trace
from ..traces.trace_file import MANIFEST
from .make import COUNT, QUANTILES, SAMPLES, StateSignature, few_inputs, sign_states

KIND = "driftwalk.signature"
VERSION = 1

MOST_BYTES = 64 << 20
"""More than any signature needs."""


@dataclass(frozen=True)
class Signature:
    """The states of a trace as numbers: kilobytes, where the trace has megabytes."""

    states: tuple[StateSignature, ...]
    probe: ProbeInfo
    backend: BackendInfo
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The probe's values, flat, where they are few whole numbers: token ids and masks."""
    model: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    kind: str = KIND
    schema_version: int = VERSION

    @classmethod
    def of(cls, trace: Trace, seed: int = 0) -> Signature:
        return cls(
            sign_states(trace, seed),
            probe_info(trace.probe),
            trace.backend,
            few_inputs(trace.probe),
            trace.model,
            trace.environment,
            seed,
        )

    def save(self, path: str | Path) -> Path:
        """Write it to one JSON file; the same trace gives the same bytes."""
        to, body = Path(path), encode(self)
        if to.is_dir() or (to.exists() and not _is_signature(to)):
            raise UsageError(
                f"{str(to)!r} is there, and is no signature; nothing was written. Name another "
                "file."
            )
        # Only a mixture of dtypes has these: all other signatures are what they always were.
        backend = body["backend"].items()
        body["backend"] = {n: v for n, v in backend if v or n not in ("dtypes", "stored")}
        body["digest"] = digest_of(body)
        states = body.pop("states")
        head = json.dumps(body, indent=1, sort_keys=True, allow_nan=False)
        # One line for each state: a change in git shows which states moved.
        lines = ",\n".join(json.dumps(s, sort_keys=True, allow_nan=False) for s in states)
        try:
            return write_atomically(to, f'{head[:-2]},\n "states": [\n{lines}\n]}}\n')
        except OSError as error:
            raise UsageError(
                f"Cannot write a signature to {str(to)!r}: {error.strerror or error}."
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> Signature:
        """Read one; every number in it is checked before it is believed."""
        at = Path(path)
        signature = decode(cls, _read_body(at), at.name)
        signature._check_states(at)
        signature._check_inputs(at)
        return signature

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(state.name for state in self.states)

    def state(self, name: str) -> StateSignature | None:
        return next((state for state in self.states if state.name == name), None)

    def inputs_as_probe(self) -> Probe | None:
        """The probe it was made from, where the inputs were few enough to be kept."""
        if not self.inputs or self.inputs.keys() != self.probe.inputs.keys():
            return None
        arrays = {}
        for name, values in self.inputs.items():
            kept = self.probe.inputs[name]
            arrays[name] = np.array(values, dtype=kept.dtype).reshape(kept.shape)
        made = Probe(arrays, self.probe.origin, self.probe.texts, self.probe.tokens)
        if made.sha256 != self.probe.sha256:
            raise UsageError(
                f"The signature's inputs are not those of its probe {self.probe.sha256[:12]}."
            )
        return made

    def _check_states(self, path: Path) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise UsageError(f"The signature {str(path)!r} lists no points, or one of them twice.")
        for state in self.states:
            if wrong := _wrong(state):
                name = state.name[:80]
                raise UsageError(f"The signature {str(path)!r} is damaged: {name!r} {wrong}.")

    def _check_inputs(self, path: Path) -> None:
        """Inputs that are kept are those of the probe, or the file says two things."""
        for name, values in self.inputs.items():
            kept = self.probe.inputs.get(name)
            sizes = (-1,) if kept is None else kept.shape
            if math.prod(sizes) != len(values) or any(n < 0 for n in sizes):
                raise UsageError(f"The signature {str(path)!r} has inputs that its probe does not.")
        try:
            self.inputs_as_probe()
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(
                f"The signature {str(path)!r} has inputs that cannot be: {error}"
            ) from None

    def __repr__(self) -> str:
        return f"<Signature of {self.backend.spec}: {', '.join(self.names)}>"


def load_either(path: str | Path) -> Trace | Signature:
    """A trace from its folder, or a signature from its file."""
    at = Path(path)
    return Signature.load(at) if at.is_file() and at.name != MANIFEST else Trace.load(at)


def digest_of(body: Any) -> str:
    """Of what a file says, however it is laid out."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_signature(path: Path) -> bool:
    """Whether a file says that it is one."""
    try:
        with path.open("rb") as file:
            return f'"kind": "{KIND}"'.encode() in file.read(MOST_BYTES)
    except OSError:
        return False


def _read_body(at: Path) -> dict[str, Any]:
    """What a file says, as it was written; its numbers are still to be checked."""
    data = read_json(at, MOST_BYTES)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(
            f"{str(at)!r} is no signature; `driftwalk record MODEL --signature -o FILE` writes one."
        )
    version = data.get("schema_version")
    if isinstance(version, int) and version > VERSION:
        raise UsageError(
            f"The signature {str(at)!r} has version {version}; this driftwalk reads up to "
            f"{VERSION}."
        )
    digest = data.pop("digest", None)
    try:
        intact = digest == digest_of(data)
    except (ValueError, RecursionError):  # NaN, which is no JSON
        intact = False
    if not intact:
        raise UsageError(
            f"The signature {str(at)!r} is damaged: its digest is not that of what it says. "
            "Record it anew, or take the old one from version control."
        )
    return data


def _wrong(state: StateSignature) -> str:
    """What of a state's numbers cannot be."""
    moments = state.moments
    some = state.counted > state.nonfinite
    samples = [value for value in state.samples if value is not None]
    numbers = (*astuple(moments), state.unit, *state.quantiles, *state.projections, *samples)
    tests = (
        (len(state.sha256) != 64 or set(state.sha256) - set("0123456789abcdef"), "has no sha256"),
        (any(size < 0 for size in state.shape), "has a negative size"),
        (not 0 <= state.nonfinite <= state.counted, "counts what cannot be"),
        (state.counted > math.prod(state.shape), "counts more elements than its shape has"),
        (not all(map(math.isfinite, numbers)), "has a number that is not finite"),
        (len(state.projections) != COUNT, f"has not {COUNT} projections"),
        (len(state.quantiles) != (len(QUANTILES) if some else 0), "lacks quantiles"),
        (list(state.quantiles) != sorted(state.quantiles), "has quantiles out of order"),
        (len(state.samples) != (SAMPLES if state.counted else 0), f"has not {SAMPLES} samples"),
        (
            min(moments.rms, moments.mean_abs, moments.min_abs, state.unit) < 0,
            "has a negative size",
        ),
        (moments.min > moments.max, "has a least element above the greatest"),
        (
            not all(moments.min <= value <= moments.max for value in samples),
            "has a sample beyond its extremes",
        ),
    )
    return next((words for wrong, words in tests if wrong), "")
