"""What a signature says: numbers of each state, in order, and who made the trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import UsageError
from ..result import ProbeInfo
from ..states import BackendInfo, Probe, Trace

KIND = "driftwalk.signature"
VERSION = 1

QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)


@dataclass(frozen=True)
class Moments:
    """Of the finite elements that count."""

    mean: float
    mean_abs: float
    rms: float
    min: float
    max: float
    min_abs: float


@dataclass(frozen=True)
class StateSignature:
    """One state without its tensor. Padded positions are no part of any of it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str
    """Of the bytes of the elements that count, little-endian."""
    counted: int
    nonfinite: int
    """How many of those are NaN or infinite; they are kept out of all that follows."""
    moments: Moments
    quantiles: tuple[float, ...]
    """At QUANTILES: elements, not values between two of them."""
    samples: tuple[float | None, ...]
    """The elements at seeded places; None where one is not finite."""
    projections: tuple[float, ...]
    unit: float
    """Every element was rounded to a multiple of this before it was projected."""
    module: str = ""

    @property
    def l2(self) -> float:
        return self.moments.rms * float(np.sqrt(max(0, self.counted - self.nonfinite)))


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
        """Sign a trace."""
        from .make import sign

        return sign(trace, seed)

    def save(self, path: str | Path) -> Path:
        """Write it to one JSON file; the same trace gives the same bytes."""
        from .file import save_signature

        return save_signature(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Signature:
        """Read one; every number in it is checked before it is believed."""
        from .file import load_signature

        return load_signature(path)

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
            told = self.probe.inputs[name]
            arrays[name] = np.array(values, dtype=told.dtype).reshape(told.shape)
        made = Probe(arrays, self.probe.origin, self.probe.texts, self.probe.tokens)
        if made.sha256 != self.probe.sha256:
            raise UsageError(
                f"The signature's inputs are not those of its probe {self.probe.sha256[:12]}."
            )
        return made

    def __repr__(self) -> str:
        return f"<Signature of {self.backend.spec}: {', '.join(self.names)}>"
