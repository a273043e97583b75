"""Whose error it is, and which layer made it: blame runs on the side that is at fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..adapter import Backend, LooksInside
from ..layer_drift import Blame, Culprit, LayerDrift, Side, both_or_one
from ..result import Report
from ..states import Trace
from .blame import blame, root_cause, unseen_before
from .calibrate import Calibration
from .drill import Drilled, drill, first_guilty_layer
from .shared import UNSEEN, Accused, accuse_shared, guilty_alike, sharing
from .witness import Witness


def accuse(report: Report, sides: Mapping[Side, tuple[Backend, Witness]]) -> Report:
    """The report with its root cause, culprit and side at fault.

    A candidate may drift from the reference's own blocks while both are near the truth: then the
    truth is asked about both, and the one whose layer it finds guilty is at fault. A side that is
    left out is not asked about.
    """
    beyond = frozenset[str]().union(*(_beyond(row) for row in report.layers))
    suspects: list[Side] = [side for side in sides if side in beyond] or ["candidate"]
    found = {side: _accused(*sides[side], report.layers, side) for side in suspects}
    if not beyond and not found["candidate"].proven and "reference" in sides:
        found["reference"] = _accused(*sides["reference"], report.layers, "reference")
    proven = {side for side, accusation in found.items() if accusation.proven}
    judged = any(row.sides_at_fault for row in report.layers)
    guilty = set(beyond) or proven or ({"candidate"} if judged else set())
    main = found["reference" if guilty == {"reference"} else "candidate"]
    return replace(
        report,
        layers=main.layers,
        cause=main.cause,
        cause_among=main.among,
        culprit=main.culprit,
        at_fault=both_or_one(guilty),
    )


def _beyond(row: LayerDrift) -> frozenset[str]:
    """The sides whose total error at a point the truth itself finds too large."""
    return frozenset(side for side in row.sides_at_fault if not row.sides[side].by_own_doing)


@dataclass(frozen=True)
class _Accusation:
    """What blame found out about one side."""

    layers: tuple[LayerDrift, ...]
    cause: str | None = None
    culprit: Culprit | None = None
    among: tuple[str, ...] = ()
    """Points before the cause without a state, each of which may be it as well."""
    proven: bool = False
    """Whether a layer makes more error of its own than honest arithmetic does."""


def _accused(
    backend: Backend, witness: Witness, layers: tuple[LayerDrift, ...], side: Side
) -> _Accusation:
    """Run a side once more, replay its states, and write the blame into the layers."""
    calibration = witness.calibration(backend.info)
    if calibration is None:
        return _Accusation(layers)
    with witness.stage(f"blame: replaying the {side}'s states"):
        trace = backend.trace(witness.probe)
        blames = blame(witness.truth, calibration, trace)
    proven = any(item.guilty for item in blames.values())
    cause = root_cause(blames, layers, side, witness.tips)
    among = () if cause is None else unseen_before(cause, calibration.truth, trace)
    if cause is None and _worth_a_closer_look(layers):
        cause, among = _look_closer(backend, witness, calibration, blames, side)
    shared, remark = _shared(backend, witness, calibration, blames, cause)
    if shared is not None:
        named = _with_blame(layers, shared.blames)
        rows = shared.among(named)
        return _Accusation(rows, shared.cause, shared.culprit, proven=proven)
    # Inside a layer that only one side has, or of another shape, there is nothing to compare.
    drilled = cause if cause in blames else None
    inside = _drill(backend, witness, trace, calibration, drilled)
    culprit = inside.culprit if inside is not None else None
    if culprit is not None and remark:
        culprit = replace(culprit, sentence=culprit.sentence + remark)
    among = () if inside is not None and inside.after_others else among
    return _Accusation(_with_blame(layers, blames), cause, culprit, among, proven)


def _worth_a_closer_look(layers: tuple[LayerDrift, ...]) -> bool:
    """Whether numbers are off that no whole layer explains; a lacking state is none."""
    return any(not row.ok and row.verdict not in ("missing", "extra") for row in layers)


def _with_blame(
    layers: tuple[LayerDrift, ...], blames: Mapping[str, Blame]
) -> tuple[LayerDrift, ...]:
    return tuple(replace(layer, blame=blames.get(layer.point.name)) for layer in layers)


def _look_closer(
    backend: Backend,
    witness: Witness,
    calibration: Calibration,
    blames: Mapping[str, Blame],
    side: Side,
) -> tuple[str | None, tuple[str, ...]]:
    """The layer of the first guilty module, and those before it of which nothing was seen; where
    there is none, a note says what was tried."""
    tried = "each layer was run on the states that it was given"
    if not witness.looks_inside:
        tried = f"{tried} (and not each module inside: too much for the budget of memory)"
    elif isinstance(backend, LooksInside) and isinstance(witness.truth, LooksInside):
        tried = f"{tried}, and so was each module inside"
        try:
            with witness.yardstick(calibration) as yardstick:
                both = witness.truth, yardstick
                found = first_guilty_layer(*both, backend, witness.probe, calibration)
        except Exception as error:  # a backend may raise anything when asked for more
            tried, found = f"{tried} ({error})", (None, ())
        if found[0] is not None:
            return found
    used = {n: b.norms["introduced"].over(b.norms["allowed"])[0] for n, b in blames.items()}
    name = max(used, key=lambda name: used[name], default="")
    most = f"; {name} came closest, at {used[name]:.0%} of what it may make" if name else ""
    witness.note(
        calibration.mixture,
        f"No root cause of the {side}'s drift: {tried}, and none made more error than honest "
        f"arithmetic may, so that it builds up over many of them{most}.",
    )
    return None, ()


def _shared(
    backend: Backend,
    witness: Witness,
    calibration: Calibration,
    blames: Mapping[str, Blame],
    cause: str | None,
) -> tuple[Accused | None, str]:
    """What all layers share, where that explains the blame; else what to say of it."""
    if cause is None or not guilty_alike(blames, cause):
        return None, ""
    try:
        with (
            witness.stage("blame: what all layers share"),
            witness.yardstick(calibration) as yardstick,
        ):
            with sharing(backend):
                trace = backend.trace(witness.probe)
            return accuse_shared(witness.truth, yardstick, calibration, trace, blames, cause)
    except Exception as error:  # a backend may raise anything when asked for more
        witness.note(calibration.mixture, f"Could not look at what all layers share: {error}")
        return None, UNSEEN


def _drill(
    backend: Backend, witness: Witness, trace: Trace, calibration: Calibration, cause: str | None
) -> Drilled | None:
    """Where inside the root cause; a drill that breaks costs a note, never the report."""
    guilty = None if cause is None else calibration.truth.state(cause)
    if guilty is None:
        return None
    try:
        with witness.stage(f"drill: inside {cause}"), witness.yardstick(calibration) as yardstick:
            return drill(witness.truth, yardstick, backend, trace, calibration, guilty.point)
    except Exception as error:  # a backend may raise anything when asked for more
        witness.note(calibration.mixture, f"Could not look inside {cause}: {error}")
        return None
