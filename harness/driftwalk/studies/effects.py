"""What `verify` adds when asked: predicted propagation, and where errors stop mattering."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..adapter import Backend
from ..errors import DriftwalkError, UsageError
from ..judge.witness import Witness
from ..progress import Progress
from ..result import Report
from ..states import Trace
from .patching import patching
from .propagation import propagation


@dataclass(frozen=True)
class Effects:
    """Which of them a run is asked for."""

    propagation: bool = False
    patch: bool = False

    def __bool__(self) -> bool:
        return self.propagation or self.patch

    def refuse_graph(self) -> None:
        """A graph has neither a truth with derivatives nor a way in for a state."""
        if self.propagation:
            raise UsageError("Propagation needs the derivatives of a torch model; this is a graph.")
        if self.patch:
            raise UsageError("Patching puts states into a torch model; a graph takes none in.")


def with_effects(
    report: Report,
    candidate: Backend,
    wanted: Effects,
    trace: Trace,
    witness: Witness,
    show: Progress,
) -> Report:
    """The report with what was asked for; what cannot be done costs a note, not the report."""

    def carry() -> Report:
        carrying = "propagation: carrying the drift through the truth's Jacobian"
        with show.stage(carrying, extra=True):
            truth = witness.of(candidate).truth
            found = propagation(truth, candidate, trace.probe, report.cause)
        return replace(report, propagation=found)

    def restore() -> Report:
        return replace(report, patching=patching(trace, candidate, trace.probe, show))

    steps: list[tuple[str, Callable[[], Report]]] = []
    steps += [("Propagation", carry)] if wanted.propagation else []
    steps += [("Patching", restore)] if wanted.patch else []
    for name, step in steps:
        try:
            report = step()
        except (DriftwalkError, MemoryError) as error:
            report = replace(report, notes=(*report.notes, f"{name} was not possible: {error}"))
    return report
