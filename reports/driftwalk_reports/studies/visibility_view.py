"""Visibility in words: what its page and its text show, without markup."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.tasks.studies.visibility_result import Visibility

from ..numbers import count, cut, number, part_of, seconds
from ..view import model_name

Fact = tuple[str, str]


@dataclass(frozen=True)
class Strongest:
    """One point: which of its tokens has most to do with the chosen state, and how much."""

    point: str
    side: str
    token: str
    influence: str
    own: str
    """The influence within the same position: what goes straight up."""
    share: str
    """The part of the squared influence that comes from, or goes to, other positions."""


@dataclass(frozen=True)
class VisibilityView:
    headline: str
    failed: bool
    sentences: tuple[str, ...]
    about: tuple[Fact, ...]
    points: tuple[str, ...]
    tokens: tuple[str, ...]
    rows: tuple[Strongest, ...]
    text: str
    notes: tuple[str, ...]
    command: str
    created: str
    tool: str
    environment: tuple[Fact, ...]


def look(study: Visibility) -> VisibilityView:
    """Everything a page shows, for the state that was asked for."""
    return VisibilityView(
        headline=f"FAILED: {study.failed}" if study.failed else _headline(study),
        failed=bool(study.failed),
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
        command=study.command,
        created=study.created,
        tool=f"{study.tool.name} {study.tool.version}",
        environment=tuple(study.environment.items()),
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
    state = f"{cut(study.point, 40)} at token {_token(study, study.position)}"
    told = []
    if before.size:
        told.append(f"sees {_of(before)} earlier states{_most(study, before, 0)}")
    if after.size:
        told.append(f"is seen by {_of(after)} later ones{_most(study, after, row + 1)}")
    return f"{state} {', and '.join(told)}."


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


def _sentences(study: Visibility) -> list[str]:
    told = []
    if study.leak is None:
        told.append(
            "No state depends on a later token: outside the cone every derivative is exactly zero."
        )
    elif not study.causal:
        why = "" if study.causal is False else ", and does not say whether it should be"
        told.append(
            f"The model is not causal{why}: {count(study.leak.pairs)} pairs of states look ahead, "
            "so there is no cone."
        )
    return told


def _rows(study: Visibility) -> list[Strongest]:
    cone = study.cone()
    chosen = study.points.index(study.point)
    found = []
    for row in reversed(range(len(study.points))):
        if row == chosen:
            continue
        line = cone[row]
        at = int(line.argmax())
        total = float(np.square(line).sum())
        others = total - float(line[study.position]) ** 2
        found.append(
            Strongest(
                point=cut(study.points[row], 40),
                side="sees it" if row > chosen else "is seen",
                token=_token(study, at) if line[at] > 0 else "none",
                influence=number(float(line[at])),
                own=number(float(line[study.position])),
                share=part_of(max(0.0, others / total)) if total > 0 else "0 %",
            )
        )
    return found
