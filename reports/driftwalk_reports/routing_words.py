"""What became of the choices inside a model, in words: some sentences, a row for each place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from driftwalk.result import Report
from driftwalk.routing import Decided, Flips, RouterFault, Routing

from .numbers import NOTHING, count, cut, names, number, share, used

TITLE = "What the model chooses"
HEAD = (
    *("layer", "module", "chosen", "decisions", "within the noise", "margin"),
    *("not the truth's", "ties", "following", "changes"),
)
PARTS_HEAD = ("point", "routing", "arithmetic", "allowed", "used")
MOST_ROWS = 200

LEGEND = (
    "A decision is what is chosen at once: a token's experts. Within the noise: honest arithmetic "
    "could choose otherwise, and a flip there is a tie. Margin: how many times the noise the "
    "middle decision is from flipping. Following: what the truth chooses too, once it chose as the "
    "candidate did before."
)
PARTS_LEGEND = (
    "Relative L2. Routing: the truth with the candidate's choices, minus the truth. Arithmetic: "
    "the candidate minus the truth with the candidate's choices; this is what is judged."
)

MANY = 0.25
"""From this share of decisions within the noise on, a layer is named."""
MOST = 0.5
"""Beyond this share of all of them, a model is left to chance."""


@dataclass(frozen=True)
class RoutingView:
    """The section of a page."""

    title: str
    flipped: bool
    """Whether the candidate chose otherwise than the truth anywhere."""
    places: tuple[tuple[str, ...], ...]
    parts: tuple[tuple[str, ...], ...]
    head: tuple[str, ...] = HEAD
    parts_head: tuple[str, ...] = PARTS_HEAD
    legend: str = LEGEND
    parts_legend: str = PARTS_LEGEND

    @classmethod
    def of(cls, report: Report) -> RoutingView | None:
        found = report.routing
        if found is None or not found.places:
            return None
        flipped = found.verdict not in ("same", "not seen")
        return cls(TITLE, flipped, routing_rows(found), part_rows(found))


def routing_sentences(report: Report) -> tuple[str, ...]:
    """What was chosen otherwise, and how much hangs on noise; empty where nothing is chosen."""
    found = report.routing
    if found is None or not found.places:
        return ()
    return tuple(text for text in (_chosen(found), _margins(found)) if text)


def routing_rows(found: Routing) -> tuple[tuple[str, ...], ...]:
    """Every place at which something is chosen."""
    return tuple(map(_row, found.places[:MOST_ROWS]))


def part_rows(found: Routing) -> tuple[tuple[str, ...], ...]:
    """Routing and arithmetic at every point; empty where nothing was chosen otherwise."""
    return tuple(
        (
            cut(part.point, 80),
            *map(number, (part.routing, part.arithmetic, part.allowed)),
            used(part.used),
        )
        for part in found.parts[:MOST_ROWS]
    )


def _row(place: Decided) -> tuple[str, ...]:
    flips = place.candidate
    margin = NOTHING if place.margin is None else number(place.margin, 2)
    told = (flips.others, flips.ties, flips.followed, flips.changes) if flips else ()
    return (
        cut(place.point, 80),
        cut(place.module or "the model", 80),
        f"{place.best} of {place.of}",
        count(place.decisions),
        f"{count(place.close)} ({share(place.share)})",
        margin,
        *(map(count, told) if told else (NOTHING,) * 4),
    )


def _chosen(found: Routing) -> str:
    flips = [place.candidate for place in found.places if place.candidate is not None]
    decisions = sum(place.decisions for place in found.places)
    total = f"{count(decisions)} decision{'s' if decisions != 1 else ''}"
    implied = ", as its states imply" if found.seen == "implied" else ""
    if found.verdict == "not seen":
        return f"What the candidate chose in {total} inside the model could not be seen."
    if found.verdict == "same":
        return f"The candidate chooses as the truth does in all {total} inside the model{implied}."
    if found.fault is not None:
        return f"{_fault(found.fault)} {_counted(flips, total, found, implied)}"
    text = _counted(flips, total, found, implied)
    if found.verdict == "handed down":
        return f"{text} No router is at fault: what it was given is."
    return " ".join((text, *_attributed(found)))


def _counted(flips: list[Flips], total: str, found: Routing, implied: str) -> str:
    others, ties, followed, changes = (
        sum(getattr(one, name) for one in flips)
        for name in ("others", "ties", "followed", "changes")
    )
    if not others:
        return f"All {total} inside the model are the truth's{implied}."
    parts = [
        f"{count(number_of)} {words}"
        for number_of, words in (
            (ties, f"within the noise of {cut(found.dtype, 40)}: ties, not bugs"),
            (followed, "following from a choice before"),
            (changes, "that no noise explains"),
        )
        if number_of
    ]
    told = f"{count(others)} of {total} inside the model are not the truth's{implied}"
    return f"{told} ({'; '.join(parts)})."


def _attributed(found: Routing) -> Iterator[str]:
    """How much of the drift is routing, and how much arithmetic."""
    if not found.parts:
        return
    last, worst = found.parts[-1], max(found.parts, key=lambda part: part.used)
    most = f"{used(worst.used)} of its allowance, at {cut(worst.point, 80)}"
    yield (
        f"At {cut(last.point, 80)} the choices account for {number(last.routing)} of drift, the "
        f"arithmetic for {number(last.arithmetic)} (rel L2); beside a truth that chooses alike, "
        f"the candidate uses at most {most}."
    )
    if found.excused:
        yield (
            f"Drift by ties alone, and so none, at {names(found.excused)}: beyond the allowance "
            "only for what was chosen."
        )
    if found.verdict == "open":
        yield (
            "Not all of that is explained by noise: choices, the scores they were made by, or "
            "states are farther off."
        )


def _fault(fault: RouterFault) -> str:
    who = f"{cut(fault.module or fault.point, 120)} in {cut(fault.point, 80)}"
    if fault.best != fault.expected:
        number_of = f"{fault.best} where the model chooses {fault.expected}"
        return f"A routing change: {who} chooses {number_of}."
    if fault.kind == "choice":
        return (
            f"A routing change: {who} chooses otherwise than its own input leads to, in "
            f"{count(fault.tokens)} of {count(fault.of)} decisions, and none of these is a tie."
        )
    return (
        f"A routing change in the weights: {who} chooses as it should, and counts what it chose "
        f"otherwise, by {number(fault.ratio)} times what honest arithmetic may be off."
    )


def _margins(found: Routing) -> str:
    """How much hangs on noise; named is the layer where most does."""
    noise = f"the noise of {cut(found.dtype, 40)}"
    if not any(place.close for place in found.places):
        return f"None of these decisions lies within {noise}."
    worst = max(found.places, key=lambda place: place.share)
    where, part = cut(worst.point, 80), share(worst.share)
    if found.hanging > MOST:
        return (
            f"{share(found.hanging)} of the model's decisions lie within {noise}: what it chooses "
            "is left to chance. Another kernel or batch chooses otherwise, and is right, too."
        )
    if worst.share >= MANY:
        return f"{part} of the choices in {where} lie within {noise}: left to chance there."
    return f"{share(found.hanging)} of all choices lie within {noise}, at most {part} ({where})."
