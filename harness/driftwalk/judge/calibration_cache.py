"""Calibrations on disk: a gate pays for the truth once per model, probe, dtype and version.

Beside each stands the evidence: the hash of what the model itself gave when it was made. It is used
only where the model gives the same now.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..adapter import BackendInfo
from ..cache import FolderCache
from ..jsonable import decode, encode
from ..measure.norms import Norms, Weights
from ..states import Point, Probe, State, Trace
from .calibrate import Calibration
from .exact import ByChance
from .honest import Honest

_STATES, _NUMBERS = "truth.safetensors", "calibration.json"
_ENTRIES = "by_chance|"
_PARTS = ("total", "own", "tied", "tipped")
_PLAIN = ("dtype", "dtypes", "doubt", "ties", "chance")
"""Fields of a calibration that are JSON as they are."""


def stored_calibration(
    key: str, probe: Probe, evidence: str, make: Callable[[], Calibration]
) -> tuple[Calibration, str]:
    """The calibration for `key`, made now where none is stored that can be read and believed.

    And what became of one that was made now, in words.
    """
    store = FolderCache("calibration")
    files = store.read(key, lambda files: _evidence(files) == evidence)
    if files is not None:
        with suppress(Exception):  # intact, and yet not what this version writes: made anew
            return _read(files, probe), "stored"
    made = make()
    failed = store.store(key, lambda folder: _write(made, evidence, folder))
    return made, f"not stored ({failed})" if failed else "stored for the next run"


def _evidence(files: Mapping[str, bytes]) -> object:
    try:
        return json.loads(files[_NUMBERS])["evidence"]
    except (ValueError, LookupError, TypeError):
        return None


def _write(calibration: Calibration, evidence: str, folder: Path) -> None:
    from safetensors.numpy import save_file

    truth = calibration.truth
    arrays = {f"{number}": state.array for number, state in enumerate(truth)}
    numbers: dict[str, Any] = {
        "points": [[state.point.name, state.point.module] for state in truth],
        "backend": encode(truth.backend),
        "evidence": evidence,
        "whole": [[state.point.name, state.point.module] for state in calibration.whole],
        "shapes": list(calibration.by_chance.shapes),
        **{name: encode(getattr(calibration, name)) for name in (*_PLAIN, "model_errors")},
    }
    for number, state in enumerate(calibration.whole):
        arrays[f"whole|{number}"] = state.array
    for name, entries in calibration.by_chance.entries.items():
        arrays[f"{_ENTRIES}{name}"] = entries
    for part in _PARTS:
        known: Mapping[str, Honest] = getattr(calibration, part)
        numbers[part] = {
            name: [encode(one.noise), encode(one.size), one.roundoff, one.apart]
            for name, one in known.items()
        }
        for name, one in known.items():
            arrays[f"{part}|{name}|tokens"] = one.weights.tokens
            arrays[f"{part}|{name}|channels"] = one.weights.channels
    save_file(arrays, folder / _STATES)
    (folder / _NUMBERS).write_text(json.dumps(numbers, allow_nan=False))


def _read(files: Mapping[str, bytes], probe: Probe) -> Calibration:
    from safetensors.numpy import load

    numbers = json.loads(files[_NUMBERS])
    arrays = load(files[_STATES])
    states = tuple(
        State(Point(*pair), arrays[f"{number}"]) for number, pair in enumerate(numbers["points"])
    )
    kept: dict[str, Any] = {
        part: {
            name: Honest(
                decode(Norms, noise),
                decode(Norms, size),
                Weights(arrays[f"{part}|{name}|tokens"], arrays[f"{part}|{name}|channels"]),
                roundoff,
                apart,
            )
            for name, (noise, size, roundoff, apart) in numbers[part].items()
        }
        for part in _PARTS
    }
    truth = Trace(states, probe, decode(BackendInfo, numbers["backend"]))
    errors = {name: decode(Norms, error) for name, error in numbers["model_errors"].items()}
    plain = {name: numbers[name] for name in _PLAIN}
    whole = tuple(
        State(Point(*pair), arrays[f"whole|{number}"])
        for number, pair in enumerate(numbers["whole"])
    )
    entries = {n.removeprefix(_ENTRIES): a for n, a in arrays.items() if n.startswith(_ENTRIES)}
    by_chance = ByChance(entries, tuple(numbers["shapes"]))
    return Calibration(
        truth, **kept, **plain, model_errors=errors, whole=whole, by_chance=by_chance
    )
