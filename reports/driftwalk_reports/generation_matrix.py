"""What should not matter to a generation, side by side: bit-exact, within noise or broken."""

from __future__ import annotations

from driftwalk.tasks.generation.result import Generation, Invariance

from .layout import Cell, Sign
from .numbers import NOTHING, cut
from .sentences import share_used

SIDES = ("reference", "candidate")
_SIGNS = {"bit-exact": ("pass", "✓"), "within noise": ("pass", "≈"), "broken": ("drift", "✗")}
BY_MODEL = "in float64 too: the model itself depends on it"


def matrix(report: Generation) -> tuple[tuple[Cell, ...], ...]:
    """A row for each change, a column for each side; none where it was not asked for."""
    known: dict[tuple[str, str], Invariance] = {
        (one.change, one.side): one for one in report.invariance
    }
    return tuple(
        (cut(change, 60), *(_sign(known.get((change, side))) for side in SIDES))
        for change in dict.fromkeys(one.change for one in report.invariance)
    )


def _sign(one: Invariance | None) -> Sign:
    if one is None or one.agreement == "not run":
        return Sign("", NOTHING, "not run", cut(one.note, 160) if one is not None else "")
    tone, symbol = _SIGNS[one.agreement]
    where = f"{share_used(one.used)} at {cut(one.point, 60)}" if one.point else ""
    if one.agreement == "broken" and one.by_model:
        tone, where = "unverified", f"{where}; {BY_MODEL}"
    return Sign(tone, symbol, one.agreement, where)
