"""The section on a format: how weights are stored, and each layer's error in two parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from driftwalk.formats import FormatCost, FormatFindings, StoredAs
from driftwalk.formats import decibels as snr
from driftwalk.result import Report

from .format_words import decibels, format_sentences, misstored
from .numbers import NOTHING, count, number
from .rows import Gap

TITLE = "What the format costs"
STORED_HEAD = (
    *("stored as", "one step for", "inputs rounded to", "weights", "numbers", "size"),
    "of float32",
)
HEAD = ("point", "format", "SNR", "adds", "rank", "kernel", "its SNR")
LEGEND = (
    "format, kernel: the two parts of the candidate's error, rel L2: the model with the weights "
    "and the rounding that the format declares, from the truth; the candidate, from that model. "
    "adds: what the format's cost grows by at a layer (errors add in squares)."
)


@dataclass(frozen=True)
class CostRow:
    """One point: what its format costs, and what its kernel adds."""

    name: str
    cost: FormatCost
    added: float | None
    """What the format's cost grows by here; None inside a layer."""
    rank: int | None
    """By that, counted from 1; None where it does not grow."""
    part: float
    """Of the largest cost of all."""

    @property
    def cells(self) -> tuple[str, ...]:
        cost = self.cost
        return (
            self.name,
            number(cost.relative_format),
            decibels(cost.snr_db),
            NOTHING if self.added is None else number(self.added),
            "" if self.rank is None else str(self.rank),
            number(cost.relative_kernel),
            decibels(snr(cost.relative_kernel)),
        )


@dataclass(frozen=True)
class CostView:
    """A whole section, in words."""

    sentences: tuple[str, ...]
    wrong: tuple[str, ...]
    """Weights that are no rounding of the model's."""
    stored: tuple[tuple[str, ...], ...]
    """Under the titles of `STORED_HEAD`."""
    rows: tuple[CostRow, ...]


def cost_view(report: Report) -> CostView | None:
    """None where the candidate declares no format."""
    found = report.format
    if found is None:
        return None
    return CostView(
        sentences=tuple(format_sentences(report)),
        wrong=tuple(misstored(found)),
        stored=tuple(map(_stored, found.stored)),
        rows=tuple(_rows(found)),
    )


def as_sentence(stored: Sequence[str]) -> str:
    """A row of the stored weights, for where a table has no room."""
    kind, block, inputs, weights, numbers, size, part = stored
    return (
        f"{weights} weights as {kind}, one step for {block}, inputs {inputs} ({numbers} numbers, "
        f"{size}, {part} of float32)."
    )


def few(rows: Sequence[CostRow], most: int) -> list[CostRow | Gap]:
    """At most so many rows, those at which the cost grows most and the last; gaps are counted."""
    if len(rows) <= most:
        return list(rows)
    order = sorted(range(len(rows) - 1), key=lambda at: rows[at].rank or len(rows))
    kept = sorted([*order[: most - 1], len(rows) - 1])
    shown: list[CostRow | Gap] = []
    for before, at in zip([-1, *kept], kept, strict=False):
        shown += [Gap(at - before - 1)] if at - before > 1 else []
        shown.append(rows[at])
    return shown


def _rows(found: FormatFindings) -> Iterator[CostRow]:
    added, ranks = found.added, {name: at for at, name in enumerate(found.ranking, 1)}
    sizes = [cost.relative_format for cost in found.layers.values()]
    largest = max((size for size in sizes if math.isfinite(size)), default=0.0)
    for name, cost in found.layers.items():
        size = cost.relative_format
        part = min(1.0, size / largest) if largest > 0 and math.isfinite(size) else 0.0
        yield CostRow(name, cost, added.get(name), ranks.get(name), part)


def _stored(one: StoredAs) -> tuple[str, ...]:
    return (
        one.kind,
        one.block,
        one.inputs or "not rounded",
        count(one.weights),
        count(one.elements),
        size(one.bytes),
        f"{number(100 / one.smaller)} %" if one.elements else NOTHING,
    )


def size(value: int) -> str:
    """Bytes, in a unit that leaves few digits."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {unit}"
    return f"{value} B"
