"""What of the model the probe exercised, in words: a few sentences, and a row for each part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from driftwalk.exercised import (
    BATCH,
    CACHE,
    EXPERTS,
    PADDING,
    POSITIONS,
    TOKEN_TYPES,
    UNUSED,
    WINDOW,
    Driven,
    Exercised,
    Touched,
)

from .numbers import count, cut, names, number, share

MOST_PARTS = 5
MOST_ADVICE = 3
MOST_ROWS = 200
_PATHS = (PADDING, BATCH, WINDOW, CACHE)
"""What is run or not run, and has no rows to count."""


def exercised_sentences(found: Exercised | None, uses: str = "The probe uses") -> tuple[str, ...]:
    """How much took part; what was not tried; what to add. Empty where nothing is known."""
    if found is None:
        return ()
    said = [_weights(found, uses)]
    untried = [_untried(item) for item in found.items if item.what in _PATHS and not item.tried]
    if untried:
        said.append(f"Not tried: {', '.join(untried)}.")
    if found.advice:
        asked = [cut(text, 120) for text in found.advice[:MOST_ADVICE]]
        said.append(f"To try more, add {'; '.join(asked)}.")
    return tuple(said)


def exercised_rows(found: Exercised | None) -> tuple[tuple[str, ...], ...]:
    """Every part, in the order of the model: what, where, how much of it, what to add."""
    parts = (
        (
            f"{'✓' if item.tried else '○'} {cut(item.what, 40)}",
            cut(item.where, 200),
            _used(item),
            item.advice,
        )
        for item in (found.items[:MOST_ROWS] if found else ())
    )
    driven = (
        (f"· {cut(item.function, 40)}", cut(item.where, 200), _driven(item), "")
        for item in (found.driven[:MOST_ROWS] if found else ())
    )
    return (*parts, *driven)


def driven_sentence(found: Exercised) -> str:
    """How far the units of all activations were driven; empty where none was seen."""
    units = sum(item.units for item in found.driven)
    if not units:
        return ""
    low, high = (sum(getattr(item, side) for item in found.driven) for side in ("low", "high"))
    text = (
        f"Of {count(units)} units of activations {share(low / units)} were seen below the bend of "
        f"their function and {share(high / units)} above it"
    )
    twice = [item.twice for item in found.driven if item.twice is not None]
    if not twice:
        return f"{text}."
    alone = share(1 - sum(twice) / units)
    return f"{text}; {alone} were at their largest in one probe alone: another may go farther."


def _weights(found: Exercised, uses: str) -> str:
    if found.weights is None:
        why = f": {cut(found.unknown, 200).rstrip('. ')}" if found.unknown else ""
        text = f"How much of the weights the probe uses cannot be told{why}"
    else:
        whole = found.weights == 1
        text = f"{uses} {'all' if whole else share(found.weights)} of the weights"
    parts = list(_parts(found))
    more = f" and {len(parts) - MOST_PARTS} more" if len(parts) > MOST_PARTS else ""
    return f"{text}{': ' if parts else ''}{', '.join(parts[:MOST_PARTS])}{more}."


def _parts(found: Exercised) -> Iterator[str]:
    """What was used in part, each as `9 of 512 positions`."""
    for item in found.items:
        if item.tried or item.what in (*_PATHS, EXPERTS, UNUSED):
            continue
        part = f"{count(item.used)} of {count(item.of)} "
        if item.what in (POSITIONS, TOKEN_TYPES):
            yield part + item.what
        else:
            tied = " (a tied layer reads the rest)" if item.shared else ""
            yield f"{part}rows of {cut(item.where, 80)}{tied}"
    if experts := found.of(EXPERTS):
        yield from _experts(experts)
    if unused := found.of(UNUSED):
        yield f"nothing of {names([item.where for item in unused], 3)}"


def _experts(items: Sequence[Touched]) -> Iterator[str]:
    """The experts of all layers in one clause; nothing where all of them were used."""
    partly = [item for item in items if not item.tried]
    if not partly:
        return
    low, high = min(item.used for item in partly), max(item.used for item in partly)
    span = count(low) if low == high else f"{count(low)} to {count(high)}"
    of = " or ".join(sorted({count(item.of) for item in partly}))
    if len(items) == 1:
        yield f"{span} of {of} experts"
    else:
        yield f"{span} of {of} experts in {len(partly)} of {len(items)} layers"


def _untried(item: Touched) -> str:
    if item.what == PADDING:
        return "left padding" if "left" in item.advice else "padding"
    if item.what == WINDOW:
        return f"the window of {count(item.of)} positions (the probe has {count(item.used)})"
    return {BATCH: "more than one row", CACHE: "decoding with a cache"}[item.what]


def _driven(item: Driven) -> str:
    """In units: below and above the bend, the largest input, and whether it was seen twice."""
    of = f"of {count(item.units)} units"
    text = f"{count(item.low)} {of} below the bend, {count(item.high)} above"
    twice = "" if item.twice is None else f"; at their largest twice: {count(item.twice)}"
    return f"{text}; largest input {number(item.largest)}{twice}"


def _used(item: Touched) -> str:
    used, of = count(item.used), count(item.of)
    words = {
        UNUSED: f"none of {of} weights",
        WINDOW: f"{used} positions, the window has {of}",
        PADDING: "tried" if item.tried else "not tried",
        BATCH: "more than one" if item.tried else "one",
        CACHE: "used" if item.tried else "not used",
    }
    rest = "; a tied layer reads the rest" if item.shared and not item.tried else ""
    return words.get(item.what, f"{used} of {of}{rest}")
