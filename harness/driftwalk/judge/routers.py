"""Routers that compute something else, and what a report says of all choices.

A router is accused only if, given the very input that the candidate gave it, the truth's own router
chooses otherwise than the candidate did, by more than noise explains, or counts what was chosen
otherwise. So it is not for an error that was made before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..adapter import Backend, Chooses, LooksInside
from ..chosen import Choice
from ..dtypes import Float64
from ..layer_drift import Allowed, Culprit, LayerDrift, Side, both_or_one
from ..names import layer_of
from ..result import Report
from ..routing import RouterFault, Routing, RoutingVerdict
from ..states import State
from .calibrate import Calibration
from .constants import FLOOR_ROUNDOFFS, ROUTER_LAYERS, SURE_CHOICE, YARDSTICKS
from .drill import looking
from .gate import run_verdict
from .honest import ROOM
from .margins import HonestChoice, by_name, counted_rows, ignore, rms
from .routing import Routed, decided, excused_rows, routed
from .walk import Walk
from .witness import Witness

CHOICES = "choices"
"""Stands for the norm where it is a choice that is beyond what is allowed."""


@dataclass(frozen=True, eq=False)
class Routes:
    """The choices of both sides of a run."""

    calibration: Calibration
    backends: Mapping[Side, Backend]
    truths: Mapping[Side, Backend]
    sides: Mapping[Side, Routed]
    excused: tuple[str, ...] = ()
    fault: RouterFault | None = None

    @classmethod
    def of(
        cls,
        sides: Mapping[Side, tuple[Backend, Witness]],
        calibrations: Mapping[Side, Calibration],
    ) -> Routes | None:
        """None where nothing is chosen, or a roundoff may tip whole steps over anyway."""
        ours = calibrations["candidate"]
        if not ours.choices or sides["candidate"][1].tips:
            return None
        found: dict[Side, Routed] = {}
        for name, (backend, witness) in sides.items():
            try:
                with witness.stage(f"choices: {backend.spec}"):
                    one = routed(name, backend, witness.truth, calibrations[name])
            except Exception as error:  # on another branch a model may not run at all
                text = f"What the {name} chose could not be followed: {error}"
                witness.note(calibrations[name].mixture, text)
                one = None
            if one is not None:
                found[name] = one
        backends = {name: backend for name, (backend, _) in sides.items()}
        truths = {name: witness.truth for name, (_, witness) in sides.items()}
        return cls(ours, backends, truths, found)

    def judged(self, report: Report, walk: Walk) -> tuple[Routes, Report]:
        """The report without drift that ties alone explain, and with a router that is wrong."""
        rows, excused = excused_rows(report.layers, self.sides, self.truths)
        routes = replace(self, excused=excused)
        steady = all(not one.flipped or one.by_ties_alone for one in self.sides.values())
        open_left = report.verdict == "unverified" and steady and self._flips
        if excused or open_left:
            report = self._again(report, rows, walk, steady)
        candidate = self.sides.get("candidate")
        if candidate is None or not candidate.recorded:
            return routes, report
        if candidate.changed or report.verdict == "drift":
            fault = find_fault(candidate, self.backends["candidate"], self.truths["candidate"])
            routes = replace(routes, fault=fault)
        if routes.fault is None or report.verdict != "pass":
            return routes, report
        if routes.fault.kind != "choice" or routes.fault.ratio < SURE_CHOICE:
            return replace(routes, fault=None), report
        rows = tuple(_changed(row, routes.fault) for row in report.layers)
        return routes, self._again(report, rows, walk, steady)

    def without_ties(self, rows: tuple[LayerDrift, ...]) -> tuple[LayerDrift, ...]:
        """The points of a run, without drift that ties alone explain."""
        return excused_rows(rows, self.sides, self.truths)[0]

    @property
    def _flips(self) -> bool:
        return any(one.flipped for one in self.sides.values())

    def _again(
        self, report: Report, rows: tuple[LayerDrift, ...], walk: Walk, steady: bool
    ) -> Report:
        left, chance = (walk.left_to_chance, walk.chance) if not steady else (walk.left_open, ())
        verdict, reason = run_verdict(
            rows, report.coverage, report.observer, "", left, frozenset(chance)
        )
        at_fault = both_or_one({side for row in rows for side in row.sides_at_fault})
        return replace(report, layers=rows, verdict=verdict, reason=reason, at_fault=at_fault)

    def told(self, report: Report) -> Report:
        """The report with all that is known of choices; a router at fault is the culprit."""
        candidate, reference = self.sides.get("candidate"), self.sides.get("reference")
        routing = Routing(
            verdict=self._verdict(candidate, report.verdict == "drift"),
            dtype=str(self.calibration.mixture),
            seen="" if candidate is None else "recorded" if candidate.recorded else "implied",
            places=decided(self.calibration, candidate, reference),
            parts=candidate.parts if candidate is not None else (),
            excused=self.excused,
            fault=self.fault,
        )
        report = replace(report, routing=routing)
        fault = self.fault
        if fault is None or report.verdict != "drift" or report.at_fault == "reference":
            return report
        names = [row.point.name for row in report.layers]
        if report.cause in names and names.index(report.cause) < names.index(fault.point):
            return report
        found = _culprit(fault, report.culprit)
        return replace(report, cause=fault.point, cause_among=(), culprit=found)

    def _verdict(self, candidate: Routed | None, drifted: bool) -> RoutingVerdict:
        if candidate is None:
            return "not seen"
        if self.fault is not None:
            return "change" if self.fault.kind == "choice" else "weights"
        if not candidate.flipped:
            return "same"
        if candidate.changed and drifted:
            return "handed down"
        return "ties" if candidate.by_ties_alone else "open"


def _changed(row: LayerDrift, fault: RouterFault) -> LayerDrift:
    """The row of the faulty router's layer, as drift."""
    if row.point.name != fault.point or row.tolerance is None:
        return row
    used: Allowed = replace(row.tolerance, needed=fault.ratio, norm=CHOICES, side="candidate")
    return replace(row, verdict="drift", tolerance=used, sides={**row.sides, "candidate": used})


def find_fault(side: Routed, backend: Backend, truth: Backend) -> RouterFault | None:
    """The first router that is wrong, given what the candidate gave it; None where none is."""
    if not isinstance(truth, Chooses) or not isinstance(backend, Chooses):
        return None
    probe, calibration = side.calibration.truth.probe, side.calibration
    given = {state.point.name: state.array for state in side.states}
    try:
        made = by_name(truth.chosen(probe, ignore, given, side.forced))
    except Exception:  # another number of experts may not fit the model's code
        made = by_name(truth.chosen(probe, ignore, given))
    suspects = [
        one
        for one in calibration.choices
        if one.name in side.choices and _wrong(one, side.choices[one.name], made, calibration)
    ]
    layers = list(dict.fromkeys(one.point for one in suspects))
    for layer in layers[:ROUTER_LAYERS]:
        inside = [one for one in suspects if one.point == layer]
        if (fault := _inside(inside, layer, backend, truth, calibration)) is not None:
            return fault
    return None


def _inside(
    suspects: list[HonestChoice],
    layer: str,
    backend: Backend,
    truth: Backend,
    calibration: Calibration,
) -> RouterFault | None:
    """Look into a layer: each router on the very input that the candidate's was given."""
    looks = isinstance(backend, LooksInside) and isinstance(truth, LooksInside)
    if not (isinstance(backend, Chooses) and isinstance(truth, Chooses)):
        return None
    probe, states = calibration.truth.probe, list[State]()
    with ExitStack() as opened:
        if looks and layer_of(layer) == layer:
            for side in (backend, truth):
                opened.enter_context(looking(side, "module", layer))
        theirs = by_name(backend.chosen(probe, states.append))
        given = {
            state.point.name: state.array
            for state in states
            if not any(_is_of_router(state, one) for one in suspects)
        }
        forced = {name: choice.taken for name, choice in theirs.items()}
        try:
            made = by_name(truth.chosen(probe, ignore, given, forced))
        except Exception:
            made = by_name(truth.chosen(probe, ignore, given))
    known = [one for one in suspects if one.name in theirs]
    faults = [_wrong(one, theirs[one.name], made, calibration) for one in known]
    # Of one router that chooses groups, then experts, what changes most.
    worst = sorted(filter(None, faults), key=lambda one: (one.kind != "choice", -one.tokens))
    return worst[0] if worst else None


def _is_of_router(state: State, choice: HonestChoice) -> bool:
    """Whether a state is what the router itself made: its scores, or what it gives."""
    module, router = state.point.module, choice.module
    scores = module.startswith(f"{router}.") and state.array.shape[-1] == choice.of
    return (module == router and state.point.name != choice.point) or scores


def _wrong(
    one: HonestChoice, theirs: Choice, made: Mapping[str, Choice], calibration: Calibration
) -> RouterFault | None:
    """Whether the truth's router, on the same input, chooses or counts otherwise."""
    own = made.get(one.name)
    if own is None:
        return None
    counted = counted_rows(one, calibration.truth)
    excess = np.full(len(counted), np.inf)  # of another number, all are others
    if theirs.best == one.best:
        excess = one.excess(replace(own, taken=theirs.taken))
    excess = np.where(counted, excess, 0.0)
    changes, total = int((excess > 1).sum()), int(counted.sum())

    def fault(kind: Literal["choice", "weights"], tokens: int, times: float) -> RouterFault:
        numbers = tokens, total, times, theirs.best, one.best
        return RouterFault(one.point, one.module, kind, *numbers)

    if changes:
        return fault("choice", changes, float(excess.max()))
    times = _weights_off(one, theirs.weights, own.weights, counted)
    return fault("weights", total, times) if times > 1 else None


def _weights_off(
    one: HonestChoice, theirs: Float64 | None, own: Float64 | None, counted: Float64
) -> float:
    """How many times as far off as honest arithmetic may be what the chosen ones count is."""
    if theirs is None or own is None or theirs.shape != own.shape or not one.weights_noise:
        return 0.0
    keep = counted.astype(bool)
    error, size = rms(theirs[keep] - own[keep]), rms(own[keep])
    return error / (
        YARDSTICKS * ROOM.max_abs * one.weights_noise + FLOOR_ROUNDOFFS * one.roundoff * size
    )


def _culprit(fault: RouterFault, found: Culprit | None) -> Culprit:
    """The router, in the place of what drift inside the layer shows first."""
    inside = fault.module.rpartition(f".{fault.point.rpartition('.')[2]}.")[2]
    who = f"{fault.point} {inside}".strip()
    return Culprit(fault.module, fault.ratio, None, None, f"{who}: {fault_words(fault)}")


def fault_words(fault: RouterFault) -> str:
    """What a router does wrong, in words."""
    if fault.best != fault.expected:
        return (
            f"a routing change: it chooses {fault.best} where it should choose {fault.expected}, "
            f"in all of {fault.of} decisions"
        )
    if fault.kind == "choice":
        return (
            f"a routing change: {fault.tokens} of {fault.of} decisions are others than its own "
            "input leads to, and no tie"
        )
    return (
        "a routing change in the weights: the right ones are chosen, and what they count is off by "
        f"{fault.ratio:.3g}\u00d7 what honest arithmetic may be"
    )
