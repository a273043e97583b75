"""One side of a run, compared with the truth at its own dtype.

Nothing that the gate trusts goes unchecked: the reference is judged as the candidate is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..layer_drift import INTRODUCED, Allowed, Side
from ..measure.norms import Norms
from ..states import State, Trace
from ..workers import in_threads
from .calibrate import Calibration
from .honest import ROOM, K


class JudgedSide:
    """The errors of one side at every point, and how much of what was allowed they use."""

    def __init__(self, side: Side, calibration: Calibration) -> None:
        self.side = side
        self.calibration = calibration
        self.errors: dict[str, Norms] = {}
        self._introduced: Mapping[str, Norms] = {}
        self._own_room = ROOM

    def meet(self, state: State) -> None:
        """Take note of how far a state is from the truth."""
        error = self.calibration.error(state)
        if error is not None:
            self.errors[state.point.name] = error

    def meet_all(self, trace: Trace) -> None:
        """The same for a whole trace, several states at a time."""
        found = in_threads(self.calibration.error, trace.states, State.elements)
        pairs = zip(trace.names, found, strict=True)
        self.errors = {name: error for name, error in pairs if error is not None}

    def judge_layers(self, introduced: Mapping[str, Norms]) -> None:
        """Judge each layer by what it made of its own input too, not only by what came out.

        Total error hides a small fault under the noise of all layers before it; the difference
        that one layer makes, given the same input, does not.
        """
        self._introduced = introduced
        self._own_room = self.calibration.room(introduced)

    @property
    def room(self) -> Norms:
        """For total errors: an implementation that rounds more in every layer may be off more."""
        own = self._own_room
        middle = max(1.0, own.token_middle), max(1.0, own.channel_middle)
        return replace(ROOM, token_middle=middle[0], channel_middle=middle[1])

    def allowed(self, point: str) -> Norms:
        return self.calibration.allowed(point, self.room)

    def judged(self, point: str) -> Allowed | None:
        """How much of its allowance the side uses at a point, in the norm that uses most of it."""
        error = self.errors.get(point)
        if error is None:
            return None
        allowed = self.allowed(point)
        if not math.isfinite(allowed.max_abs):
            return None  # plain PyTorch itself overflows here: no measure of honest noise
        needed, norm = error.over(allowed)
        room = Allowed(allowed.max_abs, 0.0, 1.0, needed, K, norm, self.side)
        own = self._introduced.get(point)
        if own is None:
            return room
        exceeded, norm = own.over(self.calibration.allowed_own(point, self._own_room))
        if exceeded <= needed:
            return room
        return replace(room, needed=exceeded, norm=f"{INTRODUCED}{norm}")

    @property
    def holds(self) -> bool:
        """Whether every point is within its allowance."""
        found = (self.judged(point) for point in self.errors)
        return all(item is None or item.needed <= 1 for item in found)
