"""What was chosen in a generation, step by step, and what the candidate would have chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from driftwalk.tasks.generation.result import Generation, Step

from . import marked
from .generation_words import token
from .layout import Sign
from .marked import Markdown
from .numbers import cut, number

MOST_IDS = 4000
"""Characters of a sequence in numbers."""
MOST_FLIPS = 20
"""Steps in Markdown in which the candidate chooses another token."""


@dataclass(frozen=True)
class Chosen:
    """What was chosen in one step."""

    step: int
    texts: tuple[str, ...]
    """Row by row."""
    theirs: tuple[str, ...]
    """What the candidate would have chosen, where that is another token; else empty."""
    margin: str
    flips: int
    sign: Sign
    """Whether the candidate would have chosen the same."""


def ids_of(row: Sequence[int], prompt: int) -> str:
    """The tokens of a row; a bar stands between what was given and what was generated."""
    parts = (" ".join(map(str, part)) for part in (row[:prompt], row[prompt:]))
    return cut(" | ".join(parts), MOST_IDS)


def chosen(report: Generation, step: Step) -> Chosen:
    parted = report.parted
    texts = tuple(token(text, id_) for text, id_ in zip(step.texts, step.tokens, strict=True))
    theirs = _theirs(step) if report.beams == 1 else ()
    if not step.flips:
        sign = Sign("pass", "✓", "same")
    elif parted is not None and parted.step == step.step:
        other = token(parted.texts[1], parted.tokens[1])
        tone, symbol = ("unverified", "≈") if parted.tie else ("drift", "✗")
        sign = Sign(tone, symbol, f"candidate: {other}", "a tie" if parted.tie else "")
    else:
        others = [f"candidate: {one}" for one in theirs if one] or ["flips"]
        many = f"{step.flips} of {len(step.tokens)} rows" if len(step.tokens) > 1 else others[0]
        sign = Sign("drift" if report.verdict == "drift" else "unverified", "≠", many)
    least = min(step.margins, default=math.nan)
    return Chosen(step.step, texts, theirs, number(least), step.flips, sign)


def _theirs(step: Step) -> tuple[str, ...]:
    """What the candidate chooses otherwise, row by row; older files do not say it."""
    named = zip(step.tokens, step.theirs, step.their_texts, strict=False)
    return tuple("" if ours == theirs else token(text, theirs) for ours, theirs, text in named)


def marked_tokens(tokens: Sequence[Chosen], ids: Sequence[str]) -> Iterator[Markdown]:
    """The steps in which the candidate chooses another token, and the whole sequence."""
    flips = [one for one in tokens if one.flips]
    rows = [
        (one.step, row, marked.code(a), marked.code(b), one.margin, one.sign.detail)
        for one in flips[:MOST_FLIPS]
        for row, (a, b) in enumerate(zip(one.texts, one.theirs, strict=False))
        if b
    ]
    if rows:
        yield marked.table(
            ("step", "row", "reference", "candidate", "least margin", ""), rows, "rr  r"
        )
    if len(flips) > MOST_FLIPS:
        yield marked.paragraph(f"{len(flips) - MOST_FLIPS} more steps choose another token.")
    for row in ids[:1]:
        others = f" and {len(ids) - 1} more rows" if len(ids) > 1 else ""
        shown = marked.code(row, 1000)
        yield Markdown("Fed, prompt | generated: {}{}").format(shown, others)
