"""Visibility: a map of all states, and the cone of one: in words, on a terminal, as a page."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from driftwalk.dtypes import Array
from driftwalk.tasks.studies.results import Normalisation, Visibility

from .. import console
from ..door import renderer
from ..heatmap import LEVELS, field_paths, frame
from ..layout import Head, model_name
from ..numbers import count, cut, number, part_of, seconds
from ..page import fill, inline_json

DECADES = 3.0
"""How far below the largest the colours reach; what is smaller has the palest, and zero none."""
DEEPEST = 6.0
"""Decades that the page's bytes can tell apart."""
LEFT = 118.0
"""Room for the names of points beside a grid."""
_SHADES = "░▒▓█"
NORMALISATIONS: tuple[tuple[Normalisation, str, str], ...] = (
    ("raw", "raw", "by how much a small change of one state has grown at the other"),
    ("layer", "per layer", "over the largest of the same layer: which tokens matter there"),
    ("norm", "per norm", "relative change of the one for a relative change of the other"),
)


@dataclass(frozen=True, kw_only=True)
class VisibilityView(Head[Visibility]):
    points: tuple[str, ...]
    tokens: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Each point; whether it sees or is seen; its token that has most to do with the state; that
    token's influence; the influence within the same position: what goes straight up; and the part
    of the squared influence that comes from, or goes to, other positions."""
    text: str


def look(study: Visibility) -> VisibilityView:
    """Everything a page shows, for the state that was asked for."""
    return VisibilityView(
        document=study,
        tone="study failed" if study.failed else "study",
        headline=f"FAILED: {study.failed}" if study.failed else _headline(study),
        sentences=tuple(_sentences(study)),
        about=(
            ("model", model_name(study.model)),
            ("backend", study.backend.spec),
            ("states", f"{len(study.points)} points of {len(study.tokens)} tokens"),
            ("time", seconds(study.seconds)),
            ("each number", _how(study)),
        ),
        points=tuple(cut(name, 24) for name in study.points),
        tokens=tuple(cut(token, 24) for token in study.tokens),
        rows=tuple(_rows(study)),
        text=cut(study.text, 1000),
        notes=study.notes,
    )


def _how(study: Visibility) -> str:
    if study.exact:
        return f"exact: all {study.width} directions"
    error = "not known" if study.error is None else f"± {part_of(study.error)}, typically"
    return f"estimated from {study.directions} of {study.width} directions, {error}"


def _headline(study: Visibility) -> str:
    cone = study.cone()
    row = study.points.index(study.point)
    before, after = cone[:row], cone[row + 1 :]
    said = []
    if before.size:
        said.append(f"sees {_of(before)} earlier states{_most(study, before, 0)}")
    if after.size:
        said.append(f"is seen by {_of(after)} later ones{_most(study, after, row + 1)}")
    state = f"{cut(study.point, 40)} at token {_token(study, study.position)}"
    return f"{state} {', and '.join(said)}."


def _of(part: Array) -> str:
    return f"{count(int(np.count_nonzero(part)))} of {count(part.size)}"


def _most(study: Visibility, part: Array, first: int) -> str:
    """The strongest at another position."""
    others = part.copy()
    others[:, study.position] = 0
    if not others.any():
        return ""
    row, at = np.unravel_index(int(others.argmax()), others.shape)
    where = cut(study.points[first + int(row)], 40)
    return f" (of other tokens, most {where} at {_token(study, int(at))})"


def _token(study: Visibility, at: int) -> str:
    word = cut(study.tokens[at], 24)
    return str(at) if word == str(at) else f"{at} “{word}”"


def _sentences(study: Visibility) -> Iterator[str]:
    if study.leak is None:
        yield (
            "No state depends on a later token: outside the cone every derivative is exactly zero."
        )
    elif not study.causal:
        why = "" if study.causal is False else ", and does not say whether it should be"
        yield (
            f"The model is not causal{why}: {count(study.leak.pairs)} pairs of states look ahead, "
            "so there is no cone."
        )


def _rows(study: Visibility) -> Iterator[tuple[str, ...]]:
    cone, chosen = study.cone(), study.points.index(study.point)
    for row in reversed(range(len(study.points))):
        if row == chosen:
            continue
        line = cone[row]
        at, total = int(line.argmax()), float(np.square(line).sum())
        others = total - float(line[study.position]) ** 2
        yield (
            cut(study.points[row], 40),
            "sees it" if row > chosen else "is seen",
            _token(study, at) if line[at] > 0 else "none",
            number(float(line[at])),
            number(float(line[study.position])),
            part_of(max(0.0, others / total)) if total > 0 else "0 %",
        )


def _parts(view: VisibilityView, screen: Console) -> Iterator[RenderableType]:
    yield console.about(view.about)
    yield Text("\nInfluence, the last layer on top; ◆ is the state, · is exactly zero", "bold")
    yield from _shaded(view, screen.width)
    titles = ("point", "", "strongest at token", "influence", "same token", "from others")
    yield console.table(titles, view.rows, " l rrr")
    yield from map(Text, view.sentences)
    yield from console.noted(view.notes)


def _shaded(view: VisibilityView, width: int) -> Iterator[Text]:
    """The cone of the state, a character for each state in it."""
    study = view.document
    cone, chosen = study.cone(), study.points.index(study.point)
    side = max(len(console.fit(name, 16)) for name in view.points)
    room = max(8, width - side - 2)
    first = max(0, min(study.position - room // 2, cone.shape[1] - room))
    high = math.log10(float(cone.max()))
    for row in reversed(range(len(cone))):
        line = "".join(_shade(float(v), high) for v in cone[row, first : first + room])
        if row == chosen:
            at = study.position - first
            line = f"{line[:at]}◆{line[at + 1 :]}"
        yield Text(f"{console.fit(view.points[row], 16):>{side}}  {line}")


def _shade(value: float, high: float) -> str:
    if value <= 0:
        return "·"
    part = 1 + (math.log10(value) - high) / DECADES
    return _SHADES[min(len(_SHADES) - 1, max(0, int(part * len(_SHADES))))]


@dataclass(frozen=True)
class Grid:
    """Points up, positions across; one path for each level of colour, in units of fields."""

    paths: tuple[str, ...]
    low: str
    high: str


render = console.text_renderer(look, _parts)


@renderer
def render_page(study: Visibility) -> str:
    """The script of the page draws the same grids, from the same numbers in bytes."""
    view, columns = look(study), len(study.tokens)
    names = [cut(token, 12) for token in study.tokens]
    # One with the tokens' names on top, one without, below it: columns of both in one line.
    above = frame(LEFT, len(study.points), columns, names)
    below = replace(above, top=8.0, height=above.height - above.top + 8.0, names=())
    return fill(
        "studies/visibility.html.j2",
        view,
        scripts=("report.js", "studies/visibility.js"),
        cones=[
            (name, label, hint, _grid(study.cone(normalisation=name), DECADES))
            for name, label, hint in NORMALISATIONS
        ],
        overview=_overview(study),
        above=above,
        below=below,
        row=len(study.points) - 1 - study.points.index(study.point),
        at=study.position,
        levels=LEVELS,
        data=inline_json(_page_data(study)),
    )


def _grid(values: Array, decades: float) -> Grid:
    """The last row on top; a field of exactly zero is left out."""
    largest = float(values.max())
    high = math.log10(largest) if largest > 0 else 0.0
    rows = [[float(v) if v > 0 else None for v in line] for line in values[::-1]]
    paths = field_paths(rows, high - decades, high)[:LEVELS]
    return Grid(paths, number(10 ** (high - decades)), number(10**high))


def _overview(study: Visibility) -> Grid:
    """How much the end depends on each state; its own scale, since none of them is near zero."""
    reach = study.reach()
    there = reach[reach > 0]
    span = math.log10(float(there.max() / there.min())) if there.size else 0.0
    return _grid(reach, min(DECADES, max(0.5, span)))


def _page_data(study: Visibility) -> dict[str, object]:
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
