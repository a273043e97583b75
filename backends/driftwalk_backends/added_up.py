"""What several runs of one model used, all together: rows, positions and experts of any of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from driftwalk.dtypes import Array
from driftwalk.exercised import PADDING, Touched

from .saturation import Saturation
from .touching import Weight


class AddedUp:
    """The weights that any of several runs read, and what else the runs tried."""

    def __init__(self) -> None:
        self._weights: dict[str, Weight] = {}
        self._tried: dict[tuple[str, str], Touched] = {}
        self.saturation = Saturation()
        self.why = ""
        """Why nothing can be said of weights; empty as soon as one run could be watched."""

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(self._weights.values())

    @property
    def tried(self) -> tuple[Touched, ...]:
        """Padding, windows and whatever else has no rows, each once."""
        return tuple(self._tried.values())

    def add(self, weights: Iterable[Weight], tried: Iterable[Touched], why: str) -> None:
        """One more run; `why` its weights could not be watched, if they could not."""
        for one in tried:
            key = one.what, "" if one.what == PADDING else one.where
            known = self._tried.get(key)
            self._tried[key] = one if known is None else _both(known, one)
        if why:
            self.why = self.why if self._weights else why
            return
        self.why = ""
        for weight in weights:
            have = self._weights.setdefault(weight.name, weight)
            if have is not weight:
                have.add(weight)

    def look_up(self, rows: Mapping[str, Sequence[Array]]) -> None:
        """Rows of tables that one more run looked up, by the names of their weights."""
        for name, numbers in rows.items():
            weight = self._weights.get(name)
            if weight is not None and weight.is_looked_up:
                for some in numbers:
                    weight.looked_up[some[some < weight.rows]] = True


def _both(one: Touched, other: Touched) -> Touched:
    """What two runs tried of one thing: the larger number, and padding on the sides of both."""
    more = other if other.used > one.used else one
    if one.what != PADDING:
        return more
    sides = {side for item in (one, other) for side in item.where.split(" and ")}
    known = [side for side in ("left", "right", "inner") if side in sides]
    return replace(more, where=" and ".join(known) or "none")
