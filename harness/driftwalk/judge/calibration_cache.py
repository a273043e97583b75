"""Calibrations on disk: a gate pays for the truth once per model, probe and version.

Beside each stands the evidence: the hash of what the model itself gave when it was made. It is used
only where the model gives the same now. The truth's states, most of what there is to store, are
stored once for all dtypes, and mapped, not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ..adapter import BackendInfo
from ..cache import FolderCache, key_of
from ..dtypes import Array
from ..files import release
from ..jsonable import decode, encode
from ..measure.norms import Norms
from ..mixture import Mixture
from ..states import Point, Probe, State, Trace
from ..traces.tensor_file import read_tensors, tensors_in, write_tensors
from ..workers import in_threads
from .calibrate import Calibration, Keep
from .exact import ByChance
from .honest import Honest
from .honest_table import as_arrays, from_arrays
from .margins import HonestChoice

_STATES, _WEIGHTS, _NUMBERS = "truth.safetensors", "weights.safetensors", "calibration.json"
_ENTRIES, _CHOICE, _HONEST, _ERRORS = "by_chance|", "choice|", "honest|", "model_errors"
_PARTS = ("total", "own", "tied", "tipped", "steady")
_PLAIN = ("doubt", "ties", "chance")
"""Fields of a calibration that are JSON as they are."""
SMALL = 32 << 20
"""Bytes of states that are read, which takes less time than to have them mapped."""
_CHOICE_ARRAYS = ("taken", "noise", "margins")


def stored_calibration(
    question: Sequence[str],
    dtype: str,
    probe: Probe,
    evidence: str,
    exact: Trace | None,
    make: Callable[[Keep], Calibration],
) -> tuple[Calibration, str]:
    """The calibration for a question, made now where none is stored that can be read and believed.

    And what became of one that was made now, in words. `exact` is what the truth gave already;
    `make` is told how to keep what it gives.
    """
    key, store, truths = key_of(*question, dtype), FolderCache("calibration"), _Truths(question)
    files = store.read(key, lambda files: _evidence(files) == evidence)
    if files is not None:
        with suppress(Exception):  # intact, and yet not what this version writes: made anew
            return _read(files, probe, truths, exact), "stored"
    made = make(lambda trace: truths.kept(trace, evidence))
    failed = store.store(key, lambda folder: _write(made, evidence, folder))
    failed = failed or truths.store(made.all_states, evidence)
    return made, f"not stored ({failed})" if failed else "stored for the next run"


class _Truths:
    """What the truth gave, by its spec and the evidence for it."""

    def __init__(self, question: Sequence[str]) -> None:
        self._question = question
        self._store = FolderCache("truth")

    def kept(self, trace: Trace, evidence: str) -> Trace:
        """The same states in a file that is mapped, which takes no memory from others.

        The trace itself where they cannot be stored, or others are.
        """
        with suppress(Exception):  # whatever a disk, or an array of a rare kind, does
            if not self.store(trace, evidence):
                arrays = self.read(trace.backend, evidence)
                states = tuple(State(one.point, arrays[one.point.name]) for one in trace)
                pairs = list(zip(trace, states, strict=True))
                same = in_threads(_are_equal, pairs, lambda pair: pair[0].elements())
                return Trace(states, trace.probe, trace.backend) if all(same) else trace
        return trace

    def store(self, trace: Trace, evidence: str) -> str:
        """Store what is not stored yet; why that could not be done, or nothing."""
        key = self._key(trace.backend, evidence)
        if self._store.has(key):
            return ""
        arrays = {state.point.name: state.array for state in trace}
        # Checked against its checksum when it is read: what a crash lost is made again.
        return self._store.store(
            key, lambda folder: write_tensors(folder / _STATES, arrays, sync=False)
        )

    def read(self, backend: BackendInfo, evidence: str) -> Mapping[str, Array]:
        """The arrays by the names of their points; LookupError where there are none."""
        key = self._key(backend, evidence)
        if (files := self._store.read(key, lambda files: _STATES in files, most=SMALL)) is not None:
            return tensors_in(files[_STATES])
        folder = self._store.find(key)
        if folder is None:
            raise LookupError("the truth is not stored")
        try:
            return read_tensors(folder / _STATES)
        finally:
            release(folder)  # what is mapped stays

    def _key(self, backend: BackendInfo, evidence: str) -> str:
        return key_of(*self._question, backend.spec, evidence)


def _are_equal(pair: tuple[State, State]) -> bool:
    one, other = (state.array for state in pair)
    return one.dtype == other.dtype and np.array_equal(one, other)


def _evidence(files: Mapping[str, bytes]) -> object:
    try:
        return json.loads(files[_NUMBERS])["evidence"]
    except (ValueError, LookupError, TypeError):
        return None


def _write(calibration: Calibration, evidence: str, folder: Path) -> None:
    truth = calibration.truth
    arrays: dict[str, Array] = {}
    numbers: dict[str, Any] = {
        "points": [[state.point.name, state.point.module] for state in truth],
        "backend": encode(truth.backend),
        "evidence": evidence,
        "whole": [[state.point.name, state.point.module] for state in calibration.whole],
        "shapes": list(calibration.by_chance.shapes),
        "mixture": encode(calibration.mixture),
        **{name: encode(getattr(calibration, name)) for name in _PLAIN},
    }
    for name, entries in calibration.by_chance.entries.items():
        arrays[f"{_ENTRIES}{name}"] = entries
    numbers["choices"] = []
    for at, choice in enumerate(calibration.choices):
        own = {field.name: getattr(choice, field.name) for field in fields(choice)}
        for name in _CHOICE_ARRAYS:
            arrays[f"{_CHOICE}{at}|{name}"] = np.ascontiguousarray(own.pop(name))
        numbers["choices"].append(encode(own))
    known: list[Honest] = []
    for part in _PARTS:
        of_part: Mapping[str, Honest] = getattr(calibration, part)
        numbers[part] = list(of_part)
        known += of_part.values()
    arrays |= {f"{_HONEST}{name}": array for name, array in as_arrays(known).items()}
    errors = [error.in_order for error in calibration.model_errors.values()]
    numbers["model_errors"] = list(calibration.model_errors)
    arrays[_ERRORS] = np.array(errors, np.float64).reshape(-1, len(fields(Norms)))
    write_tensors(folder / _WEIGHTS, arrays, sync=False)
    (folder / _NUMBERS).write_text(json.dumps(numbers, allow_nan=False))


def _read(
    files: Mapping[str, bytes], probe: Probe, truths: _Truths, exact: Trace | None
) -> Calibration:
    numbers = json.loads(files[_NUMBERS])
    arrays, backend = tensors_in(files[_WEIGHTS]), decode(BackendInfo, numbers["backend"])
    if exact is not None and exact.backend.spec == backend.spec:
        true: Mapping[str, Array] = {state.point.name: state.array for state in exact}
    else:
        true = truths.read(backend, numbers["evidence"])

    def states(points: list[list[str]]) -> tuple[State, ...]:
        return tuple(State(Point(*pair), true[pair[0]]) for pair in points)

    table = {n.removeprefix(_HONEST): a for n, a in arrays.items() if n.startswith(_HONEST)}
    known = iter(from_arrays(table))
    kept: dict[str, Any] = {part: {name: next(known) for name in numbers[part]} for part in _PARTS}
    truth = Trace(states(numbers["points"]), probe, backend)
    rows = zip(numbers["model_errors"], arrays[_ERRORS].tolist(), strict=True)
    errors = {name: Norms(*row) for name, row in rows}
    plain = {name: numbers[name] for name in _PLAIN}
    whole = states(numbers["whole"])
    entries = {n.removeprefix(_ENTRIES): a for n, a in arrays.items() if n.startswith(_ENTRIES)}
    choices = tuple(_choice(at, own, arrays) for at, own in enumerate(numbers["choices"]))
    by_chance = ByChance(entries, tuple(numbers["shapes"]))
    return Calibration(
        truth,
        mixture=decode(Mixture, numbers["mixture"]),
        **kept,
        **plain,
        model_errors=errors,
        whole=whole,
        by_chance=by_chance,
        choices=choices,
    )


def _choice(at: int, own: Mapping[str, Any], arrays: Mapping[str, Array]) -> HonestChoice:
    kept: dict[str, Any] = {name: arrays[f"{_CHOICE}{at}|{name}"] for name in _CHOICE_ARRAYS}
    return HonestChoice(**own, **kept)
