"""What this process saw a model give on a probe, as one hash: what makes stored results believable.

A stored truth or export is as good as the model it was made from is the same. No fingerprint can
tell: a function may be patched, a method replaced, autocast switched on. So every state and output
of the model itself, in plain eager PyTorch on the CPU, is hashed when something is stored, and must
come out the same, bit by bit, when it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from driftwalk.adapter import Backend, ShowsModel
from driftwalk.dtypes import Array, dtype_name
from driftwalk.errors import DriftwalkError
from driftwalk.states import Probe, State, Trace
from driftwalk.workers import in_threads

from .calls import call, explaining, quietly
from .eager_run import as_arrays, watched

if TYPE_CHECKING:
    from .loaded import LoadedModel


def evidence_dtype(dtype: str) -> str:
    """What the model is run in to prove a result in `dtype`: float32, unless that is too coarse."""
    return "fp64" if dtype == "fp64" else "fp32"


def arithmetic() -> str:
    """What the bits depend on beside the model: results of other threads are stored apart."""
    return f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"


class Evidence:
    """Hashes of one model's own states, by probe and dtype, for as long as one run lasts."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._traces: dict[tuple[str, str], Trace] = {}
        self._hashes: dict[tuple[str, str], str] = {}

    def offer(self, backend: Backend, trace: Trace) -> None:
        """Keep a trace, if it is of the model itself: then it need not be run once more."""
        if isinstance(backend, ShowsModel) and backend.shows(self._model):
            where = trace.probe.sha256, trace.backend.dtype
            self._traces[where] = trace
            self._hashes.pop(where, None)

    def trace(self, probe: Probe, dtype: str) -> Trace | None:
        """The run in `dtype` whose very bits `of` proves; None where there is none.

        Of a result in another dtype than the evidence, no bits of that dtype are proved.
        """
        proved = dtype == evidence_dtype(dtype)
        return self._traces.get((probe.sha256, dtype)) if proved else None

    def of(self, probe: Probe, dtype: str) -> str:
        """The hash for a probe, fit to prove a result in `dtype`.

        Empty where the model cannot be run so: nothing proves what was made of it, nor is stored.
        """
        where = probe.sha256, evidence_dtype(dtype)
        if where not in self._hashes:
            trace = self._traces.get(where)
            try:
                seen = (trace, trace.outputs) if trace else self._run(probe, where[1])
            except DriftwalkError:
                return ""
            self._hashes[where] = hash_of(*seen)
        return self._hashes[where]

    def forget(self) -> None:
        """What was seen says nothing about the next run: the model may change in between."""
        self._traces.clear()
        self._hashes.clear()

    def _run(self, probe: Probe, dtype: str) -> tuple[list[State], Mapping[str, Array]]:
        """All states and outputs, as the `torch` backend gives them on the CPU."""
        module = self._model.at(dtype, "cpu")
        states: list[State] = []
        with quietly(module), explaining(self._model.label, f"torch:cpu:{dtype}"):
            inputs = self._model.inputs(module, probe, torch.device("cpu"))
            run = partial(call, module, inputs)
            layout = self._model.layout(module, inputs, run)
            outputs = as_arrays(lambda sink: watched(module, layout, sink, run), states.append)
        return states, outputs


def hash_of(states: Iterable[State], outputs: Mapping[str, Array]) -> str:
    """One hash over names, dtypes, shapes and bytes of all states and outputs."""
    named = [(f"state {state.point.name}", state.array) for state in states]
    named += [(f"output {name}", array) for name, array in outputs.items()]
    # The last state often is an output as well: the same memory is read once.
    different = {_place(array): array for _, array in named}
    hashes = in_threads(_hash, list(different.values()), lambda array: array.nbytes)
    known = dict(zip(different, hashes, strict=True))
    digest = hashlib.blake2b(digest_size=32)
    for name, array in named:
        digest.update(f"{name}|{dtype_name(array)}|{array.shape}|".encode() + known[_place(array)])
    return digest.hexdigest()


def _place(array: Array) -> tuple[object, ...]:
    where = array.__array_interface__
    return where["data"], where["strides"], where["shape"], where["typestr"]


def _hash(array: Array) -> bytes:
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.blake2b(raw.data).digest()
