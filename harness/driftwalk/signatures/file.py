"""A signature as one JSON file: fit for git, and hostile until it was checked.

`digest` is the hash of all the rest, so that a flipped byte is damage and never drift.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import read_json, write_atomically
from .state import QUANTILES, StateSignature
from .weights import COUNT, SAMPLES

KIND = "driftwalk.signature"
VERSION = 1

MOST_BYTES = 64 << 20
"""More than any signature needs."""


def write_body(body: dict[str, Any], path: str | Path) -> Path:
    """Write what a signature says; a file that is no signature is not written over."""
    to = Path(path)
    if to.is_dir() or (to.exists() and not is_signature(to)):
        raise UsageError(
            f"{str(to)!r} is there, and is no signature; nothing was written. Name another file."
        )
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


def read_body(at: Path) -> dict[str, Any]:
    """What a file says, as it was written; its numbers are still to be checked."""
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
    return data


def check_states(path: Path, states: Sequence[StateSignature]) -> None:
    """What cannot be is named."""
    names = [state.name for state in states]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"The signature {str(path)!r} lists no points, or one of them twice.")
    for state in states:
        if wrong := _wrong(state):
            name = state.name[:80]
            raise UsageError(f"The signature {str(path)!r} is damaged: {name!r} {wrong}.")


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
