"""What messages say about the sides of images, and images with other sides."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

from .failures import Failure
from .shape_rules import EXPECTED, Guess
from .subject import Subject
from .wanted import Wanted

_STEP = 64
"""What sides are a multiple of that can be halved often."""
_LARGEST = 2048
_GROWS = 4
"""By how much sides may grow at most to be a multiple: a guess must stay cheap."""
_EXTRA = 6
"""Positions that are not of a patch: a class token, registers."""


def image_size(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """The height and width that a message asks for."""
    stated = re.search(
        r"size \((\d+)\*(\d+)\) doesn't match model(?: \((\d+)\*(\d+)\))?", failure.message
    )
    if stated is None or stated.group(3) is None:
        return None
    had, wants = ([int(n) for n in pair] for pair in (stated.groups()[:2], stated.groups()[2:]))

    def sides(one: Wanted) -> tuple[int, ...]:
        # Images may have been laid side by side before they were measured.
        both = zip(one.shape[-2:], had, wants, strict=True)
        return tuple(side * want // was for side, was, want in both)

    return _with_sides(wanted, sides)


def scaled(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Images with as many patches as there are positions for, where a message counts both."""
    for pattern in (*EXPECTED, r"shape `?\([a-z_]+, (?P<want>\d+)\).*got.*\[\d+, (?P<have>\d+)\]"):
        stated = re.search(pattern, failure.message, re.I | re.S)
        if stated is None:
            continue
        have, want = int(stated["have"]), int(stated["want"])
        for extra in range(_EXTRA):
            rows = [math.isqrt(max(0, count - extra)) for count in (have, want)]
            squares = [row * row + extra for row in rows]
            if squares == [have, want] and min(rows) > 1:
                return _with_sides(wanted, partial(_in_proportion, rows[0], rows[1]))
    return None


def _in_proportion(have: int, want: int, one: Wanted) -> tuple[int, ...]:
    return tuple(side * want // have for side in one.shape[-2:])


def windowed(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Images that can be cut into the windows of the config, each of whole patches."""
    windows = subject.number("num_windows", "window_size")
    if windows is None or not _about_sizes(failure):
        return None
    return _with_multiple(wanted, windows * subject.patch)


def rounded(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Images whose sides can be halved often, where sizes of what became of them differ."""
    return _with_multiple(wanted, _STEP) if _about_sizes(failure) else None


def _about_sizes(failure: Failure) -> bool:
    return bool(
        re.search(
            r"size of tensor|[Ss]izes of tensors|is invalid for input of size|divisible|same shape",
            failure.message,
        )
    )


def _with_multiple(wanted: Guess, step: int) -> Guess | None:
    sides = [side for one in wanted.values() if len(one.shape) >= 4 for side in one.shape[-2:]]
    if not sides or step > _GROWS * max(sides):
        return None
    return _with_sides(wanted, lambda one: tuple(-(-s // step) * step for s in one.shape[-2:]))


def _with_sides(wanted: Guess, sides: Callable[[Wanted], tuple[int, ...]]) -> Guess | None:
    """All images with other sides; None where there is no image, or it would be too large."""
    images = {n: o for n, o in wanted.items() if len(o.shape) >= 4 and o.kind != "given"}
    changed = {n: o.resized((*o.shape[:-2], *sides(o))) for n, o in images.items()}
    if not changed or any(max(o.shape[-2:]) > _LARGEST for o in changed.values()):
        return None
    return {**wanted, **changed}
