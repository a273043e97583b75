"""What of a candidate can be turned off, one thing at a time: `driftwalk bisect`."""

from __future__ import annotations

from dataclasses import dataclass

SEPARATOR = ";"
"""Between names in one option of a spec."""


@dataclass(frozen=True)
class Switch:
    """One thing about a backend that can be turned off: a pass of its compiler, an option."""

    name: str
    what: str
    """What it is, in a few words: `graph transformer`."""
    parts: tuple[str, ...] = ()
    """Finer switches that it consists of, asked for only once it was found."""
    needs: tuple[str, ...] = ()
    """Switches without which it does nothing: a level, a stage of a compiler."""


def named(text: str) -> tuple[str, ...]:
    """The names that an option of a spec lists."""
    return tuple(name.strip() for name in text.split(SEPARATOR) if name.strip())


def listed(names: tuple[str, ...]) -> str:
    """Names as an option of a spec lists them."""
    return SEPARATOR.join(dict.fromkeys(names))
