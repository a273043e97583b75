"""Traces of decoding: how a sequence was fed, and states that are stored step by step.

A state of such a trace stands in the file whole, or once for each step, as `step.3:layer.0`: what
the tokens gave that were fed in that step. Joined along their tokens they are the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..decoding import TOKENS, Decoding
from ..dtypes import Array, dtype_name
from ..errors import UsageError
from ..point import Probe


def in_step(step: int, name: str) -> str:
    """What a state of one step is called in the file."""
    return f"step.{step}:{name}"


def by_step(
    where: str, names: Iterable[str], tensors: Mapping[str, Array], plan: Decoding, room: int
) -> dict[str, Array]:
    """Those of the states that lie in the file step by step, whole; `room` is the file's size."""
    if not plan.chunks or min(plan.chunks) < 1:
        raise UsageError(f"{where} has steps of no tokens; decoding.chunks counts those of each.")
    found = {name: _parts(where, name, tensors, plan) for name in names}
    if sum(part.nbytes for parts in found.values() for part in parts) > room:
        raise UsageError(f"{where} has several steps in the same bytes.")
    return {name: np.concatenate(parts, axis=1) for name, parts in found.items() if parts}


def _parts(where: str, name: str, tensors: Mapping[str, Array], plan: Decoding) -> list[Array]:
    """A state as each step gave it; none where it does not lie in the file so."""
    if in_step(0, name) not in tensors:
        return []
    parts: list[Array] = []
    for step, tokens in enumerate(plan.chunks):
        part = tensors.get(in_step(step, name))
        if part is None:
            raise UsageError(f"{where} has {name[:80]!r} of step 0, and not of step {step}.")
        expected = _form(parts[0] if parts else part, tokens)
        if _form(part) != expected:
            raise UsageError(
                f"{where} has {name[:80]!r} of step {step} as {_form(part)}; a step of {tokens} "
                f"tokens, which stand along the second axis, gives {expected}."
            )
        parts.append(part)
    return parts


def _form(array: Array, tokens: int | None = None) -> str:
    """Dtype and shape, in words; `tokens` stand in for those that it has."""
    shape = array.shape
    if tokens is not None:
        shape = (*shape[:1], tokens, *shape[2:])
    return f"{dtype_name(array)}{list(shape)}"


def check_plan(where: str, plan: Decoding, probe: Probe) -> None:
    """An error where the inputs are not the sequence that the steps were fed."""
    fed = next((probe.inputs[name] for name in TOKENS if name in probe.inputs), None)
    if fed is None or fed.ndim != 2 or fed.shape[1] != sum(plan.chunks):
        many = "no sequence" if fed is None or fed.ndim != 2 else f"{fed.shape[1]} tokens"
        raise UsageError(
            f"{where} has steps of {sum(plan.chunks)} tokens together, and {many} as input "
            f"({' or '.join(TOKENS)}): the inputs of such a trace are the whole sequence."
        )
