"""Cones as geometry: which field of a grid has which level of colour, for the page to draw.

The page's script draws the same, from the same numbers in bytes: its levels are these.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.tasks.studies.visibility_result import Visibility

from ..heatmap import LEVELS, field_paths
from ..numbers import cut, number

DECADES = 3.0
"""How far below the largest the colours reach; what is smaller has the palest, and zero none."""
DEEPEST = 6.0
"""Decades that the page's bytes can tell apart."""
MOST_NAMES = 72


@dataclass(frozen=True)
class Grid:
    """Points up, positions across; one path for each level of colour, in units of fields."""

    paths: tuple[str, ...]
    low: str
    high: str


@dataclass(frozen=True)
class Place:
    """Where a grid lies in its SVG."""

    left: float
    top: float
    step: float
    tall: float
    width: float
    height: float
    names: tuple[str, ...]


def grid(values: Array, decades: float = DECADES) -> Grid:
    """The last row on top; a field of exactly zero is left out."""
    largest = float(values.max())
    high = math.log10(largest) if largest > 0 else 0.0
    rows = [[float(v) if v > 0 else None for v in line] for line in values[::-1]]
    return Grid(
        field_paths(rows, high - decades, high)[:LEVELS],
        number(10 ** (high - decades)),
        number(10**high),
    )


def overview(study: Visibility) -> Grid:
    """How much the end depends on each state; its own scale, since none of them is near zero."""
    reach = study.reach()
    there = reach[reach > 0]
    span = math.log10(float(there.max() / there.min())) if there.size else 0.0
    return grid(reach, min(DECADES, max(0.5, span)))


def places(study: Visibility) -> tuple[Place, Place]:
    """One with the tokens' names on top, one without; columns of both stand below each other."""
    columns, rows = len(study.tokens), len(study.points)
    short = columns <= MOST_NAMES
    names = tuple(cut(token, 12) for token in study.tokens) if short else ()
    slant = 14 + 5 * max(map(len, names)) if names else 0
    left, tall = 118.0, 18.0 if rows <= 40 else 12.0
    step = round(min(46.0, (1000 - left - slant) / columns), 4)

    def lying(top: float, texts: tuple[str, ...]) -> Place:
        return Place(left, top, step, tall, 1000.0, top + rows * tall + 4, texts)

    return lying(8.0 + slant, names), lying(8.0, ())


def page_data(study: Visibility) -> dict[str, object]:
    """All that the script needs: pairs of states in one byte each, and the norms of the states."""
    influence = study.influence
    flat = np.concatenate([influence[n, :, :n].ravel() for n in range(1, len(influence))])
    there = flat > 0
    high = math.log10(float(flat.max())) if there.any() else 0.0
    low, codes = high - DEEPEST, np.zeros(flat.shape, np.uint8)
    step = DEEPEST / 254
    logs = np.log10(flat[there])
    codes[there] = np.clip(np.round((logs - low) / step), 0, 254).astype(np.uint8) + 1
    return {
        "points": [cut(name, 40) for name in study.points],
        "tokens": [cut(token, 40) for token in study.tokens],
        "row": study.points.index(study.point),
        "at": study.position,
        "low": low,
        "step": step,
        "decades": DECADES,
        "levels": LEVELS,
        "norms": [[float(f"{size:.4g}") for size in line] for line in study.norms],
        "codes": base64.b64encode(codes.tobytes()).decode(),
    }
