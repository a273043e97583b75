"""A side of a generation: a backend that can decode, and what it gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ...adapter import Backend, Decodes, Rewinds
from ...errors import BackendError
from ...states import Trace


class DecodingBackend(Backend, Decodes):
    """A backend that can decode."""


def decoding_side(backend: Backend, rewinds: bool = False) -> DecodingBackend:
    if not isinstance(backend, Decodes):
        raise BackendError(
            f"Backend {backend.spec} cannot decode step by step: it keeps no cache. torch, "
            "emulated, modules, traces and programs can."
        )
    if rewinds and not isinstance(backend, Rewinds):
        raise BackendError(
            f"Backend {backend.spec} can neither reorder nor cut what it keeps between steps, as "
            "beam search and drafted tokens need."
        )
    return cast(DecodingBackend, backend)


@dataclass(frozen=True, eq=False)
class DecodedSide:
    """A backend, and what it gave: on the whole sequence at once, and step by step."""

    backend: DecodingBackend
    whole: Trace | None
    """None of a recording that has only steps."""
    decoded: Trace
