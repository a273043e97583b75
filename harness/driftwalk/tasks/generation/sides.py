"""A side of a generation: a backend that can decode, and what it gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ...adapter import Backend, Decodes, MayBeClosed, Rewinds
from ...errors import BackendError
from ...states import Trace


class DecodingBackend(Backend, Decodes):
    """A backend that can decode."""


def decoding_side(backend: Backend, rewinds: bool = False) -> DecodingBackend:
    if not isinstance(backend, Decodes):
        raise BackendError(
            f"Backend {backend.spec} cannot decode step by step: it keeps no cache. torch, "
            "emulated, onnxruntime, modules, traces and programs can."
        )
    if rewinds and not isinstance(backend, Rewinds):
        raise BackendError(
            f"Backend {backend.spec} can neither reorder nor cut what it keeps between steps, as "
            "beam search and drafted tokens need."
        )
    return cast(DecodingBackend, backend)


CLOSED = (
    "The states inside of the candidate ({}) cannot be seen in every step. Its outputs and what "
    "its caches hold are compared; which layer made an error of its outputs is not known."
)


def is_closed(backend: Backend) -> bool:
    """Whether only its outputs and what its caches hold can be seen."""
    return isinstance(backend, MayBeClosed) and backend.is_closed


def refuse_closed(reference: Backend) -> None:
    if is_closed(reference):
        raise BackendError(
            f"The states inside of {reference.spec} cannot be seen in every step, so it cannot be "
            f"the reference. Make it the candidate: -c {reference.spec}."
        )


@dataclass(frozen=True, eq=False)
class DecodedSide:
    """A backend, and what it gave: on the whole sequence at once, and step by step."""

    backend: DecodingBackend
    whole: Trace | None
    """None of a recording that has only steps."""
    decoded: Trace
