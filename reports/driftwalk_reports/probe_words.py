"""A set of probes in words: how many passed, how the numbers spread, and the worst by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from driftwalk.probe_set import Percentiles, ProbeRow, ProbeSet
from driftwalk.result import Report

from .exercised import driven_sentence, exercised_rows, exercised_sentences
from .layout import SYMBOLS, Cell, Sign
from .numbers import NOTHING, count, cut, number, share, used

MOST_WORST = 10
MOST_REFUSED = 5
MOST_ROWS = 1000
"""Of a page; result.json has all of them."""
PERCENTILES = ("over the set", "median", "90 %", "99 %", "largest")
WORST = ("probe", "verdict", "used", "first divergence", "root cause", "largest KL", "flips")


@dataclass(frozen=True)
class SetView:
    """What is shown of a set, without markup."""

    sentence: str
    numbers: tuple[tuple[str, ...], ...]
    """For each number that probes have: its name, median, percentiles, and the largest."""
    worst: tuple[tuple[Cell, ...], ...]
    rows: tuple[tuple[Cell, ...], ...]
    """All probes, in the order of the set; none where the worst are all."""
    rest: str
    """How many probes have no row; empty where all have one."""
    refused: tuple[str, ...]
    screened: tuple[str, ...]
    """How many probes were not judged whole, and what that means; none where all were."""
    coverage: tuple[str, ...]
    shares: tuple[tuple[str, str], ...]
    """Each kind of part of the model, and how much of it the probes used together."""
    touched: tuple[tuple[str, ...], ...]


def set_view(report: Report) -> SetView | None:
    """What is shown of the set that a report is the worst of; None where it is of one probe."""
    told = report.probe_set
    if told is None:
        return None
    by_rank = sorted(report.probes, key=lambda row: row.rank, reverse=True)
    known = told.exercised
    shares = known.shares if known is not None else {}
    left = told.count - min(len(report.probes), MOST_ROWS)
    return SetView(
        sentence=set_sentence(told),
        numbers=tuple(_numbers(told)),
        worst=tuple(_row(row) for row in by_rank[:MOST_WORST]),
        rows=tuple(_row(row) for row in report.probes[:MOST_ROWS])
        if len(report.probes) > MOST_WORST
        else (),
        rest=f"{count(left)} more are not listed here." if left > 0 else "",
        refused=tuple(_refused(told)),
        screened=tuple(_screened(told)),
        coverage=tuple(_coverage(told)),
        shares=tuple((what, share(part)) for what, part in shares.items()),
        touched=exercised_rows(known),
    )


def set_sentence(told: ProbeSet) -> str:
    """The verdicts of a set in one sentence."""
    total = f"{count(told.count)} probe{'s' if told.count != 1 else ''}"
    left = f", {count(told.refused_count)} more could not be run" if told.refused_count else ""
    left += ", and then it was stopped" if told.stopped else ""
    if told.passed == told.count:
        return (f"all {total} pass" if told.count > 1 else "the one probe passes") + left
    words = {"drift": told.drifted, "cannot be verified": told.unverified}
    return f"of {total}, " + " and ".join(f"{count(n)} {w}" for w, n in words.items() if n) + left


def _numbers(told: ProbeSet) -> Iterator[tuple[str, ...]]:
    if told.used is not None:
        yield ("allowance used", *map(used, _values(told.used)))
    if told.kl is not None:
        yield ("largest KL", *(number(one) for one in _values(told.kl)))
    if told.flips is not None:
        yield ("flips that are no ties", *(f"{one:.0f}" for one in _values(told.flips)))


def _values(found: Percentiles) -> tuple[float, ...]:
    return found.p50, found.p90, found.p99, found.largest


def _row(row: ProbeRow) -> tuple[Cell, ...]:
    word = f"{row.verdict}, screened" if row.screened else row.verdict
    sign = Sign(row.verdict, SYMBOLS[row.verdict], word, cut(row.reason, 200))
    return (
        f"{row.number}: {cut(row.name, 60)}",
        sign,
        NOTHING if row.used is None else used(row.used),
        cut(row.first_divergence or NOTHING, 60),
        cut(row.root_cause or NOTHING, 60),
        number(row.kl),
        NOTHING if row.flips is None else str(row.flips),
    )


def _refused(told: ProbeSet) -> Iterator[str]:
    for one in told.refused[:MOST_REFUSED]:
        yield f"Not run: probe {one.number} ({cut(one.name, 60)}): {cut(one.why, 600)}."
    if told.refused_count > MOST_REFUSED:
        yield f"And {count(told.refused_count - MOST_REFUSED)} more probes were not run."


def _screened(told: ProbeSet) -> Iterator[str]:
    if not told.screened:
        return
    whole = told.count - told.screened
    yield (
        f"{count(whole)} of {count(told.count)} probes were judged whole: the first ones of each "
        "shape, all that came near an allowance or were unlike the others, and the worst. The "
        f"other {count(told.screened)} were screened: every state of both sides is within its "
        "allowance and as far off as is usual; their layers were not run on each other's states, "
        "and both sides ran only once. --thorough judges all whole. Rows of tables were counted in "
        "all probes; experts, and what else only a watched run shows, in those judged whole."
    )


def _coverage(told: ProbeSet) -> Iterator[str]:
    known = told.exercised
    if known is None:
        return
    if known.covered is not None:
        parts = ", ".join(f"{share(part)} of {what}" for what, part in known.shares.items())
        yield f"Together the probes cover {share(known.covered)} of what can be covered: {parts}."
    yield from exercised_sentences(known, "The set uses")
    if driven := driven_sentence(known):
        yield driven
