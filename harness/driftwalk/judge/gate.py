"""From layers to one verdict, and from a verdict to an exit code."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Protocol

from ..layer_drift import LayerDrift
from ..result import Coverage, Observer, RunVerdict

EXIT_CODES: dict[RunVerdict, int] = {"pass": 0, "drift": 1, "unverified": 3}


def run_verdict(
    layers: Iterable[LayerDrift],
    covered: Coverage,
    observer: Mapping[str, Observer],
    doubt: str = "",
    left_to_chance: str = "",
    chance: Container[str] = (),
) -> tuple[RunVerdict, str]:
    """The run's verdict, and for `unverified` the reason; `doubt` says why no truth is trusted.

    `left_to_chance` says why a side within all its allowances is still not verified, and `chance`
    holds the points where choices leave too little to compare: what a side is off there, and not
    by a layer's own doing, says nothing (ties.py).
    """
    rows = tuple(layers)
    for row in rows:
        broken = row.metrics.nonfinite.reference if row.metrics else 0
        if broken:
            return "unverified", (
                f"the reference itself has {broken} non-finite value(s) at {row.point.name}, "
                "so nothing can be held against it; check the model, the probe and its dtype"
            )
    if not covered.compared:
        return "unverified", "no point was compared"
    for side, seen in observer.items():
        if not seen.within_tolerance:
            return "unverified", (
                f"capturing states changed the {side}'s own output {seen.output!r} {seen.amount}, "
                "more than the tolerance: its states are not those of the plain run"
            )
    unknown = [row.point.name for row in rows if row.verdict == "unknown"]
    bad = [row for row in rows if not row.ok and row.verdict != "unknown"]
    if doubt and bad and all(row.verdict == "drift" for row in bad):
        return "unverified", (
            f"{doubt}; and the two sides differ at {bad[0].point.name} by more than the dtype "
            "table allows, so that nothing can say which of them is right"
        )
    if any(not (left_to_chance and _is_open(row, chance)) for row in bad):
        return "drift", ""
    if left_to_chance:
        return "unverified", left_to_chance
    if unknown:
        return "unverified", (
            f"whether {len(unknown)} of {len(rows)} points, {unknown[0]} the first, are within "
            "tolerance cannot be told from a signature; record a full trace, or judge signatures "
            "by L2 (policy l2:TOLERANCE)"
        )
    return "pass", ""


def _is_open(row: LayerDrift, chance: Container[str]) -> bool:
    own = row.tolerance is not None and row.tolerance.by_own_doing
    return row.verdict == "drift" and row.point.name in chance and not own


class HasVerdict(Protocol):
    @property
    def verdict(self) -> RunVerdict: ...


def exit_code(reports: Iterable[HasVerdict]) -> int:
    """Drift outweighs a run that could not be verified, then a pass; no run is none."""
    codes = {EXIT_CODES[report.verdict] for report in reports}
    return next((code for code in (1, 3, 0) if code in codes), 3)
