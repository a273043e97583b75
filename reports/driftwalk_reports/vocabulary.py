"""The words of a report, explained where they first appear: below a table, and once for all."""

from __future__ import annotations

from collections.abc import Container, Sequence

from .rows import Row

FROM_TRUTH = "from truth"
TRUTH = "this model in float64"
DECLARED = f"{TRUTH}; for the candidate, with the weights and the rounding that its format declares"
ALLOWANCE = "a few times the error of the yardstick (plain eager PyTorch at the same dtype)"


def legend(rows: Sequence[Row], shown: Container[str] = (), declared: bool = False) -> str:
    """What each column of a table of points measures; nothing where nothing was compared.

    Of the columns that a narrow table may lack, `shown` are those that it has. `declared`: the
    candidate has a format, and a truth of its own.
    """
    if all(row.error is None for row in rows):
        return ""
    sides = "rel L2, max abs: the candidate against the reference."
    if not has_truth(rows):
        return (
            f"{sides} allowance: what one element may differ by (|r|: its value in the reference). "
            "used: the largest share of it that an element took."
        )
    truth = DECLARED if declared else TRUTH
    if FROM_TRUTH in shown:
        used = (
            f"{FROM_TRUTH}: rel L2 of a side from the truth ({truth}). used: its share of the "
            f"allowance, {ALLOWANCE}."
        )
    else:
        used = (
            f"used: how far a side is from the truth ({truth}), as a share of its allowance, "
            f"{ALLOWANCE}."
        )
    return f"{sides} {used} Of both sides the worse is shown, in its worst norm."


def has_truth(rows: Sequence[Row]) -> bool:
    """Whether both sides were compared with the truth, not only with each other."""
    return any(row.from_truth for row in rows)
