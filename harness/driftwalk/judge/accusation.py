"""Whose error it is, and which layer made it: blame runs on the side that is at fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..adapter import Backend
from ..layer_drift import LayerDrift, Side, both_or_one
from ..result import Report
from .witness import Accusation, Witness


def accuse(report: Report, sides: Mapping[Side, tuple[Backend, Witness]]) -> Report:
    """The report with its root cause, culprit and side at fault.

    A candidate may drift from the reference's own blocks while both are near the truth: then the
    truth is asked about both, and the one whose layer it finds guilty is at fault.
    """
    beyond = frozenset[str]().union(*(_beyond(row) for row in report.layers))
    suspects: list[Side] = [side for side in sides if side in beyond] or ["candidate"]
    found = {side: _accused(report, sides[side], side) for side in suspects}
    if not beyond and not found["candidate"].proven:
        found["reference"] = _accused(report, sides["reference"], "reference")
    proven = {side for side, accusation in found.items() if accusation.proven}
    guilty = set(beyond) or proven or ({"candidate"} if _judged(report) else set())
    main: Side = "reference" if guilty == {"reference"} else "candidate"
    told = found[main]
    return replace(
        report,
        layers=told.layers,
        cause=told.cause,
        culprit=told.culprit,
        at_fault=both_or_one(guilty),
    )


def _accused(report: Report, side: tuple[Backend, Witness], name: Side) -> Accusation:
    backend, witness = side
    return witness.accuse(backend, report.layers, name)


def _beyond(row: LayerDrift) -> frozenset[str]:
    """The sides whose total error at a point the truth itself finds too large."""
    return frozenset(side for side in row.sides_at_fault if not row.sides[side].by_own_doing)


def _judged(report: Report) -> bool:
    return any(row.sides_at_fault for row in report.layers)
