"""What a user says of the probe: what was given, and the shape of what is made up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .states import Probe

if TYPE_CHECKING:
    from driftwalk_backends.sources import AnyModel


@dataclass(frozen=True)
class Ask:
    """None stands for the default in each case."""

    given: object = None
    batch: int | None = None
    length: int | None = None
    seed: int = 0

    def made_for(self, model: AnyModel) -> Probe:
        """The probe, checked against the model."""
        from driftwalk_backends.probes import BATCH, LENGTH, make_probe

        shape = {"batch": self.batch or BATCH, "length": self.length or LENGTH}
        return make_probe(model, self.given, **shape, seed=self.seed)
