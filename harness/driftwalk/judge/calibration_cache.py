"""Calibrations on disk: a gate pays for the truth once per model, probe, dtype and version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..adapter import BackendInfo
from ..cache import FolderCache
from ..jsonable import decode, encode
from ..measure.norms import Norms
from ..states import Point, Probe, State, Trace
from .calibrate import Calibration

_STATES, _NUMBERS = "truth.safetensors", "calibration.json"


def stored_calibration(key: str, probe: Probe, make: Callable[[], Calibration]) -> Calibration:
    """The calibration for `key`, made now where none is stored or the stored one is damaged."""
    made: list[Calibration] = []

    def write(folder: Path) -> None:
        made.append(make())
        _write(made[0], folder)

    folder = FolderCache("calibration").get(key, write)
    return made[0] if made else _read(folder, probe)


def _write(calibration: Calibration, folder: Path) -> None:
    from safetensors.numpy import save_file

    truth = calibration.truth
    states = {f"{number}": state.array for number, state in enumerate(truth)}
    save_file(states, folder / _STATES)
    numbers: dict[str, Any] = {
        "points": [[state.point.name, state.point.module] for state in truth],
        "backend": encode(truth.backend),
        "dtype": calibration.dtype,
        "dtypes": dict(calibration.dtypes),
    }
    for name in ("yardstick", "introduced", "scale"):
        numbers[name] = encode(getattr(calibration, name))
    (folder / _NUMBERS).write_text(json.dumps(numbers, allow_nan=False))


def _read(folder: Path, probe: Probe) -> Calibration:
    from safetensors.numpy import load_file

    numbers = json.loads((folder / _NUMBERS).read_text())
    arrays = load_file(folder / _STATES)
    states = tuple(
        State(Point(*pair), arrays[f"{number}"]) for number, pair in enumerate(numbers["points"])
    )
    kept: dict[str, Mapping[str, Norms]] = {
        name: {point: decode(Norms, value) for point, value in numbers[name].items()}
        for name in ("yardstick", "introduced", "scale")
    }
    truth = Trace(states, probe, decode(BackendInfo, numbers["backend"]))
    return Calibration(
        truth=truth, dtype=numbers["dtype"], dtypes=numbers.get("dtypes", {}), **kept
    )
