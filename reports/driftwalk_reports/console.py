"""Text for a terminal, made without one: the same whatever the environment says."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.text import Text


def plain_console(width: int | None = None, color: bool = False) -> Console:
    """An empty environment: COLUMNS, NO_COLOR or TERM must not change what a result looks like."""
    return Console(
        file=io.StringIO(),
        width=width or 100,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )


def printed(console: Console, parts: Iterable[RenderableType], last: Text) -> str:
    """All parts, and the sentence: one line however long, so that `tail -n 1` finds it."""
    with console.capture() as captured:
        for part in parts:
            console.print(part)
        console.print(last, soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"
