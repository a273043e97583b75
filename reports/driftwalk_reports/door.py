"""The door of every renderer: what is let in has no character that commands a terminal or a page.

A renderer is marked with `@renderer`; all texts of the documents it is given are then safe to
print, and it need not think of them again. What its format takes for markup is escaped by the
format itself: pages by Jinja's autoescape, Markdown by `Markdown` (marked.py).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from .numbers import clean

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def renderer(render: Callable[P, R]) -> Callable[P, R]:
    """A function from documents to text that gets them with safe texts only."""

    @wraps(render)
    def safely(*given: P.args, **options: P.kwargs) -> R:
        named: Any = {name: safe(value) for name, value in options.items()}
        return render(*map(safe, given), **named)  # type: ignore[arg-type]

    return safely


def safe(value: T) -> T:
    """The same data, with what is unsafe in its texts shown as escapes; itself where nothing is."""
    return typing.cast(T, _safe(value))


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        before = {name: getattr(value, name) for name in _with_text(type(value))}
        after = {name: _safe(item) for name, item in before.items()}
        changed = any(after[name] is not item for name, item in before.items())
        return dataclasses.replace(value, **after) if changed else value
    if isinstance(value, Mapping):
        made = {_safe(key): _safe(item) for key, item in value.items()}
        changed = any(key not in value or value[key] is not made[key] for key in made)
        return made if changed else value
    if isinstance(value, tuple | list):
        items = [_safe(item) for item in value]
        changed = any(new is not old for new, old in zip(items, value, strict=True))
        return tuple(items) if changed else value
    return value


@cache
def _with_text(kind: type) -> tuple[str, ...]:
    """The fields that may hold text; millions of numbers are not looked through."""
    hints = typing.get_type_hints(kind)
    return tuple(f.name for f in dataclasses.fields(kind) if _may_hold_text(hints[f.name]))


def _may_hold_text(hint: Any) -> bool:
    if hint in (int, float, bool, type(None), ...):
        return False
    inner = typing.get_args(hint)
    return any(map(_may_hold_text, inner)) if inner else True
