"""The reference is wrong: a port with a bug, a golden trace from before the bug was mended."""

from __future__ import annotations

from collections.abc import Iterator

from driftwalk.registry import create

from ..planning import FaultyModel
from .lie import UNSEEN, Absent, Case, Ground, Lie, Weighed, placed

REFERENCE_DTYPE = "fp32"


def wrong_reference(ground: Ground) -> Iterator[Lie]:
    """In turn: the reference alone is wrong; both sides are wrong in the same way."""
    for number in range(len(_TOLD) * 4):
        text, dtypes, build = _TOLD[number % len(_TOLD)]
        own = (REFERENCE_DTYPE, ground.dtype) if dtypes else (REFERENCE_DTYPE,)
        weighed = ground.owed(f"wrong_reference|{number}", own, first=number)
        if weighed is None:
            raise Absent(UNSEEN)
        said = f"{text}: {weighed.fault.description}"
        yield Lie("wrong_reference", said, lambda w=weighed, b=build: b(ground, w))  # type: ignore[misc]


def _alone(ground: Ground, weighed: Weighed) -> Case:
    reference = create("torch", FaultyModel(ground.model, weighed.fault))
    where = placed(weighed)
    return Case(ground.model, ground.candidate, ground.probe, "reference", where, reference)


def _both(ground: Ground, weighed: Weighed) -> Case:
    reference = create("torch", FaultyModel(ground.model, weighed.fault))
    candidate = ground.faulty(weighed.fault)
    return Case(ground.model, candidate, ground.probe, "both", placed(weighed), reference)


_TOLD = (
    ("only the reference has it", False, _alone),
    ("reference and candidate both have it", True, _both),
)
