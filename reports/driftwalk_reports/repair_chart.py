"""The curve of a repair as geometry: what more bytes buy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from driftwalk.tasks.repair.result import Repair

from .format_costs import size
from .format_words import decibels
from .numbers import cut, number

LEFT, RIGHT, TOP, BOTTOM = 110, 650, 20, 200


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    tip: str
    chosen: bool


@dataclass(frozen=True)
class Mark:
    at: float
    label: str


@dataclass(frozen=True)
class Curve:
    """Dots from left to right, the line through them, the goal, and both axes' marks."""

    dots: tuple[Dot, ...]
    line: str
    goal: float | None
    """Its height; None where it lies outside."""
    heights: tuple[Mark, ...]
    widths: tuple[Mark, ...]
    label: str


def curve(result: Repair) -> Curve | None:
    """None where there is nothing to draw."""
    steps = [("as it is", result.before, 0)]
    steps += [(step.part, step.measure, step.bytes) for step in result.steps]
    known = [_height(result, measure) for _, measure, _ in steps]
    if len(steps) < 2 or not all(map(math.isfinite, known)):
        return None
    asked = _height(result, result.goal.limit)
    around = [*known, asked] if math.isfinite(asked) else known
    low, high = min(around), max(around)
    most = max(1, steps[-1][2])

    def up(value: float) -> float:
        part = (value - low) / (high - low) if high > low else 0.5
        return round(BOTTOM - part * (BOTTOM - TOP), 1)

    dots = tuple(
        Dot(
            round(LEFT + more / most * (RIGHT - LEFT), 1),
            up(height),
            f"{cut(name, 60)}: {_words(result, measure)}, {size(more)} more",
            name in result.chosen,
        )
        for (name, measure, more), height in zip(steps, known, strict=True)
    )
    ends = [(result.before, known[0]), (steps[-1][1], known[-1])]
    return Curve(
        dots=dots,
        line=" ".join(f"{dot.x},{dot.y}" for dot in dots),
        goal=up(asked) if math.isfinite(asked) else None,
        heights=tuple(Mark(up(height), _words(result, measure)) for measure, height in ends),
        widths=(Mark(LEFT, "0"), Mark(RIGHT, size(most))),
        label=f"What more bytes buy: {len(result.steps)} parts restored one after another",
    )


def _height(result: Repair, measure: float) -> float:
    """Decibels as they are; KL divergences by their logarithm."""
    if result.goal.kind == "snr":
        return measure
    return math.nan if math.isnan(measure) else math.log10(max(measure, 1e-12))


def _words(result: Repair, measure: float) -> str:
    return decibels(measure) if result.goal.kind == "snr" else f"KL {number(measure)}"
