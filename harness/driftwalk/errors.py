"""Every error driftwalk raises on purpose, each with the exit code the command line gives it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class DriftwalkError(Exception):
    """Base of all errors raised on purpose: a message for a person, and an exit code."""

    exit_code: ClassVar[int] = 3


class UsageError(DriftwalkError):
    """What was asked for cannot be meant: a bad spec, option, policy, rule or folder."""

    exit_code = 2


class ProbeError(UsageError):
    """The inputs do not fit the model."""


class BackendUnavailable(DriftwalkError):  # noqa: N818 - a state of the machine, not a failure
    """The backend exists, but not here: no GPU, a package or provider not installed."""


class ModelError(DriftwalkError):
    """The model could not be found, loaded, run or understood."""


class BackendError(DriftwalkError):
    """A backend failed while running, or broke its promise."""


class BudgetError(DriftwalkError):
    """The run took more memory than its budget allows, and was stopped."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`known: a, b, c` as a sentence, with the nearest match first when one is close."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}."
