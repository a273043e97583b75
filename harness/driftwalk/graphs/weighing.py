"""What of a walk's rows counts, after what is only inherited has been excused.

A tensor is suspect where a side is farther from the truth than is allowed, or where both sides
differ by more than the dtype table allows. The graph's nodes as written are then run on the tensors
of that side (`rows.account`): a suspect is excused where nothing that it comes from introduced more
than honest arithmetic explains. A tensor that is suspect by the table alone counts only where some
node was found to have introduced more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..dtypes import Array
from ..errors import BackendError
from ..judge.constants import NODE_NOISES
from ..layer_drift import INTRODUCED, Allowed, LayerDrift
from .own_doing import OwnDoing
from .rows import Account, account

if TYPE_CHECKING:
    from driftwalk_backends.onnx.pairs.runtime import GraphRuntime

    from ..states import Probe


@dataclass(frozen=True, eq=False)
class Weighing:
    """One pair of graphs, and how its suspects are looked at."""

    written: GraphRuntime
    """Whose nodes are run on a side's tensors."""
    sides: Sequence[GraphRuntime]
    """Those to look at: all but the one that is written so itself."""
    probe: Probe
    dtypes: Sequence[str]

    def weighed(
        self,
        rows: Sequence[LayerDrift],
        beyond: Mapping[str, LayerDrift],
        tensors: Mapping[str, str],
    ) -> Account:
        """The rows that count; `beyond` are those that the table does not allow, by name.

        `tensors` are the graph's names for what rows compare; a row without one stays.
        """
        plain = {row.point.name: row for row in rows}
        asked = [beyond.get(row.point.name, row) for row in rows]
        names = [r.point.name for r in asked if r.verdict == "drift" and r.point.name in tensors]
        suspects = {name: tensors[name] for name in names}
        if not suspects:
            return Account(tuple(rows))
        notes: list[str] = []
        guilty: list[OwnDoing] = []
        after: dict[str, LayerDrift] = {}
        excused, blamed = set(names), dict[str, OwnDoing]()
        for side in self.sides:
            try:
                found, depends = self._account(asked, suspects, side)
            except BackendError as error:
                notes.append(f"Whether the differences are only inherited is not known: {error}")
                excused.clear()
                continue
            notes += [found.note] if found.note else []
            guilty += found.guilty
            after |= {row.point.name: row for row in found.rows}
            excused -= {name for name in names if after[name].verdict != "ok"}
            for name, tensor in suspects.items():
                own = [g for g in found.guilty if g.tensor == tensor or depends(tensor, g.tensor)]
                if own:
                    blamed.setdefault(name, own[0])

        def final(row: LayerDrift) -> LayerDrift:
            name = row.point.name
            if name not in suspects:
                return row
            if row.verdict == "ok":  # by the truth: it counts where a node is guilty of it
                return _introduced(beyond[name], row, blamed[name]) if name in blamed else row
            if name not in excused:
                return row
            return replace(after[name], truth=row.truth, sides={})

        weighed = tuple(final(plain[row.point.name]) for row in rows)
        return Account(weighed, tuple(guilty), " ".join(notes))

    def _account(
        self, rows: Sequence[LayerDrift], suspects: Mapping[str, str], side: GraphRuntime
    ) -> tuple[Account, Callable[[str, str], bool]]:
        from driftwalk_backends.onnx.pairs.replay import Replay

        replay = Replay(self.written, side, self.probe)
        depends = replay.graph.depends
        return account(rows, suspects, replay, depends, self.dtypes), depends


def _introduced(beyond: LayerDrift, row: LayerDrift, own: OwnDoing) -> LayerDrift:
    """A row that is near enough to the truth, and comes of a node that is not what was written."""
    room = Allowed(
        own.allowed, 0.0, 1.0, own.needed, NODE_NOISES, f"{INTRODUCED}max_abs", "candidate"
    )
    return replace(beyond, truth=row.truth, tolerance=room, sides={"candidate": room})


def within_rooms(
    plain: Mapping[str, Array], traced: Mapping[str, Array], rows: Sequence[LayerDrift]
) -> bool:
    """Whether two runs of one side differ by no more than its outputs may be off, each of them.

    The table is not asked: how exact an output is, its own row says.
    """
    rooms = {row.point.name: row.tolerance for row in rows if row.ok and row.truth is not None}
    if plain.keys() != traced.keys():
        return False
    for name, array in plain.items():
        other, room = traced[name], rooms.get(name)
        if array.shape != other.shape or array.dtype != other.dtype:
            return False
        if np.array_equal(array, other, equal_nan=array.dtype.kind == "f"):
            continue
        if room is None or array.dtype.kind != "f":
            return False
        difference = np.abs(array.astype(np.float64) - other)
        if not bool(np.all(difference <= room.atol)):
            return False
    return True
