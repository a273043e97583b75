"""Where errors stop mattering, as data: the decisions that one restored layer brings back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    """The reference's state put into the candidate at one point."""

    point: str
    flips: int
    """Positions where the argmax still differs from the reference's."""


@dataclass(frozen=True)
class Patching:
    """The decision-level blame curve: one run of the candidate for each point."""

    positions: int
    flips: int
    """Without a patch."""
    patches: tuple[Patch, ...]
    seconds: float = 0.0

    @property
    def runs(self) -> int:
        return len(self.patches) + 1

    def removed(self, patch: Patch) -> int:
        return self.flips - patch.flips

    @property
    def stops_at(self) -> str | None:
        """The first point from which on no patch leaves a flip.

        What goes wrong after it changes no decision; what goes wrong up to it does.
        """
        last = next((i for i in range(len(self.patches), 0, -1) if self.patches[i - 1].flips), 0)
        return self.patches[last].point if last < len(self.patches) else None
