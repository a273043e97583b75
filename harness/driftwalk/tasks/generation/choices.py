"""What each side would say: the likeliest token of every step, and where the two part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ...dtypes import Array, Float64
from ...errors import BackendError
from ...layer_drift import Allowed
from ...measure.halves import widened
from ...states import Trace
from .cells import Span, room_of
from .result import Parted

Texts = Callable[[Iterable[int]], tuple[str, ...]]


@dataclass(frozen=True)
class Choice:
    """What each side chooses in one step, row by row, and by how much the reference does."""

    tokens: tuple[int, ...]
    theirs: tuple[int, ...]
    margins: tuple[float, ...]
    flips: int
    """Rows in which the candidate finds another token likeliest."""


def logits_in(trace: Trace, step: int, span: Span) -> Float64:
    """What a side gives for the token after a step, row by row."""
    state = trace.state("logits")
    if state is None or state.array.ndim != 3 or state.array.shape[1] != span.tokens:
        raise BackendError(
            f"{trace.backend.spec} gives no logits for every token, so that nothing can be chosen."
        )
    return widened(state.array[:, span.prompt - 1 + step]).astype(np.float64)


def chosen(sides: tuple[Trace, Trace], step: int, span: Span, ids: Array) -> Choice:
    """The choices of one step; `ids` is the whole sequence, which has what was fed after it."""
    ours, theirs = (logits_in(side, step, span) for side in sides)
    best = ours.argmax(-1)
    next_ids = ids[:, span.prompt + step] if step < span.steps else best
    own = np.take_along_axis(ours, next_ids[:, None], 1)[:, 0]
    others = ours.copy()
    np.put_along_axis(others, next_ids[:, None], -np.inf, 1)
    return Choice(
        tuple(next_ids.tolist()),
        tuple(theirs.argmax(-1).tolist()),
        tuple((own - others.max(-1)).tolist()),
        int((theirs.argmax(-1) != best).sum()),
    )


def parted(
    sides: tuple[Trace, Trace],
    true: Trace | None,
    span: Span,
    allowed: Allowed | None,
    texts: Texts,
) -> Parted | None:
    """The first step in which the sides would have chosen different tokens.

    Up to there both have been fed the same, so that each left to itself would part there as well.
    A tie is what the allowance of both sides together could turn round.
    """
    for step in range(span.steps + 1):
        ours, theirs = (logits_in(side, step, span) for side in sides)
        rows = np.flatnonzero(ours.argmax(-1) != theirs.argmax(-1))
        if len(rows):
            row = int(rows[0])
            a, b = int(ours[row].argmax()), int(theirs[row].argmax())
            known = ours if true is None else logits_in(true, step, span)
            margin = float(known[row, a] - known[row, b])
            of_both = room_of(allowed, known[row, [a, b]]).sum() if allowed is not None else 0.0
            one, other = texts((a, b))
            return Parted(step, row, (a, b), (one, other), margin, bool(abs(margin) <= of_both))
    return None
