"""A signature as one JSON file: fit for git, and hostile until it was checked.

`digest` is the hash of all the rest, so that a flipped byte is damage and never drift.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import read_json, write_atomically
from ..jsonable import decode, encode
from ..states import Trace
from ..traces.trace_file import MANIFEST, load_trace
from .data import KIND, QUANTILES, VERSION, Signature, StateSignature
from .weights import COUNT, SAMPLES

MOST_BYTES = 64 << 20
"""More than any signature needs."""


def save_signature(signature: Signature, path: str | Path) -> Path:
    """Write it; a file that is no signature is not written over."""
    to = Path(path)
    if to.is_dir() or (to.exists() and not is_signature(to)):
        raise UsageError(
            f"{str(to)!r} is there, and is no signature; nothing was written. Name another file."
        )
    body = encode(signature)
    # Only a mixture of dtypes has these: all other signatures are what they always were.
    body["backend"] = {
        name: value
        for name, value in body["backend"].items()
        if value or name not in ("dtypes", "stored")
    }
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


def digest_of(body: Any) -> str:
    """Of what a file says, however it is laid out."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def is_signature(path: str | Path) -> bool:
    """Whether a file says that it is one."""
    try:
        with Path(path).open("rb") as file:
            return f'"kind": "{KIND}"'.encode() in file.read(MOST_BYTES)
    except OSError:
        return False


def load_signature(path: str | Path) -> Signature:
    """Read one; what cannot be is named."""
    at = Path(path)
    try:
        size = at.stat().st_size
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise UsageError(f"Cannot read {str(at)!r}: {words}.") from None
    if size > MOST_BYTES:
        raise UsageError(f"{at.name} has {size} bytes, more than any signature needs.")
    data = read_json(at)
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
    _check_digest(at, data)
    found = decode(Signature, data, at.name)
    names = [state.name for state in found.states]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"The signature {str(at)!r} lists no points, or one of them twice.")
    for state in found.states:
        wrong = _wrong(state)
        if wrong:
            raise UsageError(f"The signature {str(at)!r} is damaged: {state.name[:80]!r} {wrong}.")
    _check_inputs(at, found)
    return found


def load_either(path: str | Path) -> Trace | Signature:
    """A trace from its folder, or a signature from its file."""
    at = Path(path)
    if at.is_file() and at.name != MANIFEST:
        return load_signature(at)
    return load_trace(at)


def _check_digest(path: Path, data: dict[str, Any]) -> None:
    told = data.pop("digest", None)
    try:
        found = digest_of(data)
    except (ValueError, RecursionError):  # NaN, which is no JSON
        found = ""
    if not found or told != found:
        raise UsageError(
            f"The signature {str(path)!r} is damaged: its digest is not that of what it says. "
            "Record it anew, or take the old one from version control."
        )


def _wrong(state: StateSignature) -> str:
    """What of a state's numbers cannot be."""
    told = state.moments
    some = state.counted > state.nonfinite
    numbers = (
        *(told.mean, told.mean_abs, told.rms, told.min, told.max, told.min_abs, state.unit),
        *(*state.quantiles, *state.projections, *(v for v in state.samples if v is not None)),
    )
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
        (min(told.rms, told.mean_abs, told.min_abs, state.unit) < 0, "has a negative size"),
        (told.min > told.max, "has a least element above the greatest"),
        (
            any(v is not None and not told.min <= v <= told.max for v in state.samples),
            "has a sample beyond its extremes",
        ),
    )
    return next((words for wrong, words in tests if wrong), "")


def _check_inputs(path: Path, found: Signature) -> None:
    """Inputs that are kept are those of the probe, or the file says two things."""
    for name, values in found.inputs.items():
        told = found.probe.inputs.get(name)
        if told is None or math.prod(told.shape) != len(values) or any(n < 0 for n in told.shape):
            raise UsageError(f"The signature {str(path)!r} has inputs that its probe does not.")
    try:
        found.inputs_as_probe()
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"The signature {str(path)!r} has inputs that cannot be: {error}"
        ) from None
