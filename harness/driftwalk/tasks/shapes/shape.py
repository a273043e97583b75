"""Rows by length, as `3x16`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import UsageError

AUTO = "auto"
LONGEST = 512
"""Tokens at most, where nobody says how many; a model with fewer positions takes as many."""
MOST = 64
"""Shapes in one run."""
_FORM = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")


@dataclass(frozen=True)
class Shape:
    rows: int
    length: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.length}"


TRIED = (
    Shape(1, 1),
    Shape(3, 7),
    Shape(1, 8),
    Shape(3, 9),
    Shape(1, 31),
    Shape(3, 32),
    Shape(1, 33),
    Shape(1, LONGEST),
)
"""Where shapes go wrong: a single row or token, around powers of two, and as long as can be."""


def shapes_of(given: object, usual: Shape) -> tuple[Shape, ...]:
    """What a user asks for: `auto`, which begins with the `usual` one, `1x16,3x9`, or pairs.

    Graphs are made at the first: what is of length one comes last, since a model may go another way
    there.
    """
    if given == AUTO:
        return _ordered((usual, *TRIED))
    if isinstance(given, str):
        found = [_read(part.strip()) for part in given.split(",") if part.strip()]
    elif isinstance(given, Iterable):
        found = [_pair(one) for one in given]
    else:
        raise UsageError(_wanted(given))
    if not found:
        raise UsageError(_wanted(given))
    if len(found) > MOST:
        raise UsageError(f"{len(found)} shapes are more than the {MOST} that one run takes.")
    return _ordered(found)


def _ordered(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """Each once, in their order but for those of length one."""
    return tuple(sorted(dict.fromkeys(shapes), key=lambda one: 1 in (one.rows, one.length)))


def _read(text: str) -> Shape:
    match = _FORM.fullmatch(text)
    rows, length = (int(match[1]), int(match[2])) if match else (0, 0)
    return _pair((rows, length) if rows and length else text)


def _pair(given: object) -> Shape:
    match given:
        case Shape():
            return given
        case (int(rows), int(length)) if rows > 0 and length > 0:
            return Shape(rows, length)
    raise UsageError(_wanted(given))


def _wanted(given: object) -> str:
    return f"{str(given)[:60]!r} is no shape; write rows x length (1x16,3x9), or auto."
