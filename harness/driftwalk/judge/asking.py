"""Asks whether a candidate is the same function: the runs of its program that this takes."""

from __future__ import annotations

from dataclasses import replace

from ..adapter import Backend, BackendInfo, HasProgram, Program
from ..states import Trace
from .conditioning import EXAMINED_AT
from .exact import float_states
from .function import Function, function_of
from .witness import KEPT_CASTS, Witness

NO_CASTS, ROUNDED = ",casts=none", ",constants=rounded"
UNASKED = "Whether the candidate is the same function could not be asked in float64: {}"


def function_between(witness: Witness, candidate: Backend) -> Function | None:
    """Whether a candidate is the reference's function; None where its program is not known.

    What is computed from other numbers than the reference's may be off by as much as rounding
    them makes, in the format in which they are stored.
    """
    program = candidate.program(witness.model) if isinstance(candidate, HasProgram) else None
    if program is None or not witness.is_exact:
        return None
    try:
        with witness.stage("the candidate's program in float64"):
            return _asked(witness, program, candidate.info)
    except Exception as error:  # the code of others, in a dtype that it was not written for
        witness.note(candidate.info, UNASKED.format(str(error).partition("\n")[0]))
        return None


def _asked(witness: Witness, program: Program, computes_in: BackendInfo) -> Function | None:
    """The first answer of a float64 run that is the program's own, as a plain run shows."""
    calibration, own = witness.calibration(EXAMINED_AT), witness.calibration(computes_in)
    if calibration is None or own is None:
        return None
    truth, probe = witness.truth, witness.probe
    if program.rounded is not None:
        truth = witness.opened("truth", program.rounded)
        exact = float_states(truth.trace(probe), like=calibration.truth)
        calibration = replace(calibration, truth=exact)
    plain: Trace | None = None
    for casts in (NO_CASTS, "", KEPT_CASTS):
        side = witness.opened("truth", program.model, casts)
        found = function_of(truth, calibration, side, probe)
        if not found.is_apart:
            return found
        moved = witness.opened("truth", program.moved(), f"{casts}{ROUNDED}")
        found = found.allowing(moved.trace(probe))
        if not found.is_apart:
            return found
        if plain is None:
            plain = witness.opened("torch", program.model, f":{EXAMINED_AT}").trace(probe)
        if found.is_of(plain, own if program.rounded is not None else calibration):
            return found
    return None
