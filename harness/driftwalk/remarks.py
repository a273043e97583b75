"""What a report says of the sides themselves: candidates that say nothing, or nothing twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .adapter import Backend, RunsAgain
from .result import Observer
from .states import Probe

CLOSED = (
    "Nothing inside of the candidate ({}) could be looked at: its modules take no hooks. Its "
    "outputs alone are compared, and where an error of theirs comes from is not known. To see "
    "inside, give the plain module that it was made of."
)


def on_given(candidate: object, others: Sequence[object]) -> Iterator[str]:
    """What to say of a module that was given as a candidate, beside the others that were given."""
    if isinstance(candidate, str | Backend):
        return
    if any(candidate is other for other in others):
        yield (
            "The candidate is the very object that the reference runs: that they agree says "
            "nothing. Give another implementation, or a backend."
        )
    if getattr(candidate, "training", False):
        yield (
            "The candidate was given in train mode and run in evaluation mode, as the reference "
            "is; in train mode, dropout and batch norm would compute something else."
        )


def on_unsteady(
    sides: Mapping[str, Backend], observer: Mapping[str, Observer], probe: Probe
) -> list[str]:
    """What to say of sides whose runs differ: which module gives something else every time."""
    notes = []
    for name, side in sides.items():
        if observer[name].bit_identical or not isinstance(side, RunsAgain):
            continue
        if (path := side.unrepeatable(probe)) is not None:
            where = path or "the model itself"
            notes.append(
                f"The {name} gives something else in every run: it begins in {where}, "
                "which draws from a generator that cannot be reset (one of its own, seeded by the "
                "clock), or computes without a fixed order."
            )
    return notes
