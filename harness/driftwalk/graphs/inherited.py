"""Rows beyond the table's tolerance that are the honest rounding of nodes before them, passed on.

A difference is excused only where no node that the tensor is computed from, nor its own, introduced
more than honest arithmetic explains (own_doing.py): a sigmoid near zero, what cancels, whole
numbers on the boundary between two steps and all that is made of them. One node that introduced
more, and everything after it stays as it was judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..layer_drift import Allowed, LayerDrift
from ..measure.metrics import Measured, measure
from ..tolerance import Tolerance
from .own_doing import OwnDoing, own_doing
from .replayed import Replayed
from .rows import without_shared

INHERITED = (
    "beyond the table, and inherited: given its inputs, the reference makes the same of them"
)

_ROUNDING = 1 + 1e-6
"""The bound is met exactly where a tensor introduced nothing; its own rounding is no excess."""


class Depends(Protocol):
    """Whether one tensor is computed from another."""

    def __call__(self, later: str, earlier: str) -> bool: ...


@dataclass(frozen=True)
class Account:
    """The rows after all, the nodes that introduced too much, in order, and a sentence."""

    rows: tuple[LayerDrift, ...]
    guilty: tuple[OwnDoing, ...]
    note: str


def account(
    rows: Sequence[LayerDrift],
    tensors: Mapping[str, str],
    replayed: Iterable[Replayed],
    depends: Depends,
    dtypes: Sequence[str],
) -> Account:
    """Excuse what was inherited; `tensors` are those of rows that drifted, by the row's name."""
    found: dict[str, OwnDoing] = {}
    again: dict[str, Measured] = {}
    wanted = set(tensors.values())
    for one in replayed:
        own = own_doing(one, dtypes)
        found[one.tensor] = own
        if one.tensor in wanted and not own.guilty:
            room = Tolerance((own.inherited + own.allowed) * _ROUNDING)
            mine, theirs, _ = without_shared(one.reference, one.candidate)
            again[one.tensor] = measure(mine, theirs, room)
    guilty = tuple(own for own in found.values() if own.guilty)

    def excused(row: LayerDrift) -> LayerDrift:
        tensor = tensors.get(row.point.name)
        if tensor is None or row.metrics is None:
            return row
        if any(own.tensor == tensor or depends(tensor, own.tensor) for own in guilty):
            return row
        if tensor not in found:
            # It could not be replayed, and may itself be at fault: what is made of it tells.
            after = [own for own in found.values() if depends(own.tensor, tensor)]
            if not after or any(own.guilty for own in after):
                return row
        measured = again.get(tensor)
        if measured is None:
            metrics, most = replace(row.metrics, mismatched=0), row.metrics.max_abs
            room = Allowed(most, 0.0, 1.0, 1.0)
        else:
            metrics, most = measured.metrics, found[tensor].inherited + found[tensor].allowed
            room = Allowed(most, 0.0, 1.0, measured.exceeded)
        note = "; ".join(word for word in (row.note, INHERITED) if word)
        return replace(row, verdict="ok", metrics=metrics, tolerance=room, note=note)

    after = tuple(excused(row) for row in rows)
    honest = [own.needed for own in found.values() if not own.guilty]
    changed = sum(a.verdict != b.verdict for a, b in zip(after, rows, strict=True))
    return Account(after, guilty, _told(changed, len(found), max(honest, default=0.0), found))


def _told(changed: int, count: int, most: float, found: Mapping[str, OwnDoing]) -> str:
    if not changed:
        return ""
    words = (
        f"{changed} tensors differ by more than the dtype table allows, by what they inherit: each "
        f"of {count} nodes (or what was fused into one) was given the candidate's own inputs in "
        f"the reference, and none that they come from differs by more than {most:.2g} of what "
        "honest arithmetic explains."
    )
    tipped = {name: own.other_steps for name, own in found.items() if own.other_steps}
    if tipped:
        first = next(iter(tipped))
        words += (
            f" Whole numbers in {len(tipped)} tensors are not the reference's own, in {first!r} "
            f"first ({tipped[first]}): they lay at the boundary between two steps, or come of such."
        )
    return words
