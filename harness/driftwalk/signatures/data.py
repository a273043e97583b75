"""A signature: numbers of each state of a trace, in order, and who made the trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import UsageError
from ..jsonable import decode, encode
from ..make_report import probe_info
from ..result import ProbeInfo
from ..states import BackendInfo, Probe, Trace
from ..traces.trace_file import MANIFEST
from .file import KIND, VERSION, check_states, read_body, write_body
from .make import few_inputs, sign_states
from .state import StateSignature


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
        return write_body(encode(self), path)

    @classmethod
    def load(cls, path: str | Path) -> Signature:
        """Read one; every number in it is checked before it is believed."""
        at = Path(path)
        found = decode(cls, read_body(at), at.name)
        check_states(at, found.states)
        found._check_inputs(at)
        return found

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

    def _check_inputs(self, path: Path) -> None:
        """Inputs that are kept are those of the probe, or the file says two things."""
        for name, values in self.inputs.items():
            told = self.probe.inputs.get(name)
            sizes = (-1,) if told is None else told.shape
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
