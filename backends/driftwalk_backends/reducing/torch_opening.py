"""From a candidate that runs a torch module, and a guilty point, to what a search makes smaller.

Two things may be wrong, as with a graph. *The compiler*: it gives other numbers than the module's
own operations in float64. *The module*: in float64 it gives other numbers than the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from driftwalk.adapter import Backend
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.states import Probe

from ..bundles.layer_code import traced_layer
from ..torch_runtime import TorchRuntime
from .constants import DRIFT_LIMIT
from .graphs import Fault, GraphSubject
from .program_runs import ProgramJudge
from .programs import Program, ProgramCutting
from .regions import no_drift
from .right import Right, torch_tensors
from .states import State
from .torch_writing import write_program


class ProgramSubject(GraphSubject):
    """Smaller programs that show the same drift."""

    @property
    def whose(self) -> Fault:
        return "module" if self.fault == "graph" else "runtime"

    def ends(self, state: State) -> list[str]:
        """Not what weights alone make: a weight that is wrong shows in what is done with it."""
        return [name for name in super().ends(state) if not self._cutting.is_constant(name)]

    def idle(self, state: State) -> list[int]:
        """None: an operation is what torch's tracer saw, and stays as it was written."""
        return []

    def write(
        self, state: State, folder: Path, flags: Mapping[str, str], headline: str, about: str
    ) -> str:
        shown = state.shown
        return write_program(folder, state.cut, shown.truth, shown.honest, flags, headline, about)


def module_subject(
    candidate: TorchRuntime, probe: Probe, point: str, truth: Backend | None
) -> tuple[ProgramSubject, State]:
    """What the operations of a candidate's module have to show at a point."""
    states = {state.point.name: state.array for state in candidate.trace(probe)}
    if point not in states:
        raise BackendError(f"{candidate.spec} has no state at {point}.")
    others = {name: array for name, array in states.items() if name != point}
    program = Program(traced_layer(candidate, probe, others, point, pure=True))
    judge = ProgramJudge(candidate)
    wrongs = []

    def opened(
        given: Mapping[str, Array], right: Right | None, exact: Mapping[str, Array]
    ) -> ProgramSubject:
        fed = {f"input {n}": np.asarray(a) for n, a in {**probe.inputs, **given}.items()}
        own = {value.name: fed[value.name] for value in program.inputs}
        cutting = ProgramCutting(program, own, candidate._device)
        whole = cutting.cut(range(len(program.nodes)), program.output)
        unrounded = {f"input {n}": a for n, a in exact.items()}
        taken = {n: a.reshape(own[n].shape) for n, a in unrounded.items() if n in whole.given}
        return ProgramSubject(whole, cutting, judge, right, taken)

    subject = opened(others, None, {})
    if (state := subject.start()) is not None:
        wrongs.append((state.shown.clearest, subject, state))
    if truth is not None:
        true = {state.point.name: state.array for state in truth.trace(probe)}
        fits = point in true and true[point].size == states[point].size
        narrow = {n: _like(true[n], a) for n, a in others.items() if n in true}
        if fits and all(n in narrow for n in others if f"input {n}" in _inputs(program)):
            wide = {n: true[n] for n, a in others.items() if n in true and true[n].size == a.size}
            subject = opened({**others, **narrow}, Right(torch_tensors(truth, probe)), wide)
            if (state := subject.start(true[point])) is not None:
                wrongs.append((state.shown.clearest, subject, state))
    if not wrongs:
        raise BackendError(no_drift(point))
    sure = [one for one in wrongs if one[0] > DRIFT_LIMIT] or wrongs
    _, subject, state = max(sure, key=lambda one: one[0])
    return subject, state


def _inputs(program: Program) -> set[str]:
    return {value.name for value in program.inputs}


def _like(array: Array, like: Array) -> Array:
    return array.reshape(like.shape).astype(like.dtype) if array.size == like.size else like
