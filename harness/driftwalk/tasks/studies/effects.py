"""What `verify` adds when asked: predicted propagation, and where errors stop mattering."""

from __future__ import annotations

from dataclasses import replace

from ...adapter import Backend
from ...errors import DriftwalkError, UsageError
from ...result import Report
from ...verification import Addition, Run
from .patching import patching
from .propagation import propagation


class _Effect(Addition):
    """What cannot be done costs a note, not the report."""

    name = ""

    def add(self, report: Report, candidate: Backend, run: Run) -> Report:
        try:
            return self._found(report, candidate, run)
        except (DriftwalkError, MemoryError) as error:
            note = f"{self.name} was not possible: {error}"
            return replace(report, notes=(*report.notes, note))

    def _found(self, report: Report, candidate: Backend, run: Run) -> Report:
        raise NotImplementedError


class Propagation(_Effect):
    """The drift against what the truth's Jacobian predicts."""

    name = "Propagation"

    def refuse_graph(self) -> None:
        raise UsageError("Propagation needs the derivatives of a torch model; this is a graph.")

    def _found(self, report: Report, candidate: Backend, run: Run) -> Report:
        carrying = "propagation: carrying the drift through the truth's Jacobian"
        with run.show.stage(carrying, extra=True):
            truth = run.witness.of(candidate).truth
            found = propagation(truth, candidate, run.stage.probe, report.cause)
        return replace(report, propagation=found)


class Patching(_Effect):
    """The flips that each restored layer of the candidate takes away."""

    name = "Patching"

    def refuse_graph(self) -> None:
        raise UsageError("Patching puts states into a torch model; a graph takes none in.")

    def _found(self, report: Report, candidate: Backend, run: Run) -> Report:
        found = patching(run.trace, candidate, run.stage.probe, run.show)
        return replace(report, patching=found)
