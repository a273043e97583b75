"""One side of a run, compared with the truth at its own dtype.

Nothing that the gate trusts goes unchecked: the reference is judged as the candidate is.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace

from ..layer_drift import INTRODUCED, Allowed, Side
from ..measure.norms import Norms
from ..states import State, Trace
from ..workers import in_threads
from .calibrate import Calibration
from .constants import TIE_EXAMINED, TIE_EXPLAINS, VOID_SHARE, YARDSTICKS
from .honest import LIKE_THE_YARDSTICK, ROOM, SAME, Honest, allowed

_TIED, _TIPPED = "tied", "tipped"


class JudgedSide:
    """The errors of one side at every point, and how much of what was allowed they use."""

    def __init__(self, side: Side, calibration: Calibration) -> None:
        self.side = side
        self.calibration = calibration
        self.errors: dict[str, Norms] = {}
        self._tie_errors: dict[str, dict[str, Norms]] = {_TIED: {}, _TIPPED: {}}
        self._introduced: Mapping[str, Norms] = {}
        self._own_room = self._layer_room = ROOM

    def meet(self, state: State) -> None:
        """Take note of how far a state is from the truth."""
        error = self.calibration.error(state)
        if error is not None:
            self.errors[state.point.name] = error
            for kind, found in self._tie_errors.items():
                honest: Mapping[str, Honest] = getattr(self.calibration, kind)
                if state.point.name in honest:
                    found[state.point.name] = self.calibration.error(state, honest) or error

    def meet_all(self, trace: Trace) -> None:
        """The same for a whole trace, several states at a time."""
        in_threads(self.meet, trace.states, State.elements)

    def judge_layers(
        self,
        introduced: Mapping[str, Norms],
        may_be_copy: bool = True,
        same_code: bool = True,
        by_chance: bool = False,
    ) -> None:
        """Judge each layer by what it made of its own input too, not only by what came out.

        Total error hides a small fault under the noise of all layers before it; the difference
        that one layer makes, given the same input, does not.

        `same_code`: both sides are run by one runtime. Another one may have convolutions that are
        bit by bit the same, and norms that are not: what differs then is all there is to see of it.

        `by_chance`: which layers differ at all is chance, since many numbers may tip over in one of
        them. How near the others are says nothing of it then.
        """
        self._introduced = introduced
        room = self.calibration.room(introduced)
        if room == SAME and not same_code:
            room = self.calibration.room({n: e for n, e in introduced.items() if e.max_abs > 0})
        self._own_room = room if may_be_copy or room != SAME else LIKE_THE_YARDSTICK
        self._layer_room = ROOM if by_chance else self._own_room

    @property
    def is_copy(self) -> bool:
        """Whether most of its layers compute bit by bit what the reference's do."""
        return self._own_room == SAME

    @property
    def changed_layers(self) -> tuple[str, ...]:
        """Of a copy, the layers that do not compute bit by bit what the reference's do."""
        if not self.is_copy:
            return ()
        return tuple(name for name, error in self._introduced.items() if error.max_abs > 0)

    def raise_layers(self, times: Mapping[str, float]) -> None:
        """Have layers judged as so many times beyond what they may introduce."""
        raised = {
            name: self.calibration.allowed_own(name, self._layer_room).scaled(factor)
            for name, factor in times.items()
            if name in self.calibration.own
        }
        own = self._introduced
        raised = {n: own[n].or_larger(least) if n in own else least for n, least in raised.items()}
        self._introduced = {**own, **raised}

    @property
    def room(self) -> Norms:
        """For total errors: an implementation that rounds more in every layer may be off more."""
        own = self._own_room
        middle = max(1.0, own.token_middle), max(1.0, own.channel_middle)
        if middle == (ROOM.token_middle, ROOM.channel_middle):
            return ROOM
        return replace(ROOM, token_middle=middle[0], channel_middle=middle[1])

    def allowed(self, point: str) -> Norms:
        """What its total error may be at a point, on the branch that it took."""
        return self._of(point, self._branch(point))[1]

    def error(self, point: str) -> Norms:
        """Its total error, in the units of that allowance."""
        return self._of(point, self._branch(point))[0]

    def element_room(self, point: str) -> float | None:
        """What a single element may be off, whatever branch was taken; None: nothing is known."""
        if point not in self.errors:
            return None
        most = self.calibration.most_allowed(point, self.room).max_abs
        return most if math.isfinite(most) else None

    def judged(self, point: str) -> Allowed | None:
        """How much of its allowance the side uses at a point, in the norm that uses most of it."""
        if point not in self.errors:
            return None
        error, most = self._of(point, self._branch(point))
        if not math.isfinite(most.max_abs):
            return None  # plain PyTorch itself overflows here: no measure of honest noise
        needed, norm = error.over(most)
        room = Allowed(most.max_abs, 0.0, 1.0, needed, YARDSTICKS, norm, self.side)
        own = self._introduced.get(point)
        if own is None:
            return room
        exceeded, norm = own.over(self.calibration.allowed_own(point, self._layer_room))
        if exceeded <= needed:
            return room
        return replace(room, needed=exceeded, norm=f"{INTRODUCED}{norm}")

    def _branch(self, point: str) -> str:
        """As what the side is judged at a point: as one that tipped over only where it did.

        It did where much of its allowance is used up, and the other branch of the tokens at a tie
        in that very layer explains most of that.
        """
        tipped = False
        for name in self.calibration.truth.names if self.calibration.tied else ():
            branch = _TIPPED if tipped else _TIED
            has_branch = name in self._tie_errors[branch]
            if name == point:
                return branch if has_branch and self._needed(name, "") > 1 else ""
            if has_branch and not tipped:
                plainly = self._needed(name, "")
                tipped = (
                    plainly > TIE_EXAMINED and self._needed(name, branch) < TIE_EXPLAINS * plainly
                )
        return ""

    def _needed(self, point: str, branch: str) -> float:
        error, most = self._of(point, branch)
        return error.over(most)[0]

    def _of(self, point: str, branch: str) -> tuple[Norms, Norms]:
        """The error at a point and what is allowed there."""
        if not branch:
            return self.errors[point], self.calibration.allowed(point, self.room)
        honest: Mapping[str, Honest] = getattr(self.calibration, branch)
        return self._tie_errors[branch][point], allowed(honest[point], self.room)

    def left_to_chance(self, agreed: Container[str] = ()) -> str:
        """Why nothing can be said of a side that chose otherwise than the truth; else empty.

        Where it is within what is allowed without a choice that tipped over, nothing is left open;
        nor is it at points at which both sides `agreed` bit by bit, and so chose alike.
        """
        calibration = self.calibration
        tipped = any(self._branch(point) for point in self.errors) if calibration.chance else False
        for point, sentence in calibration.chance.items():
            if point in agreed:
                continue
            noise, size = calibration.noise(point).l2, calibration.size(point).l2
            error = self.errors[point].l2 if point in self.errors else 0.0
            if tipped or (noise > VOID_SHARE / 2 * size and error > noise / 2):
                return sentence
        return ""

    @property
    def holds(self) -> bool:
        """Whether every point is within its allowance."""
        found = (self.judged(point) for point in self.errors)
        return all(item is None or item.needed <= 1 for item in found)


def errors_of(trace: Trace, calibration: Calibration) -> dict[str, Norms]:
    """How far the reference is from the truth at every point, by a trace of it."""
    side = JudgedSide("reference", calibration)
    side.meet_all(trace)
    return side.errors
