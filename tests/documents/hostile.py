"""Hostile text in every text of a document: in all at once, or in one field of one class."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from driftwalk.document import Document
from driftwalk.errors import UsageError

NO_WORDS = ("Pairs", "codes")
"""Numbers, written as text; anything else in it is refused."""
ATTACKS = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(2)>\"'></title>--><svg onload=x>",
    "markdown": "`a` | b || **c** [d](http://e.example) <b> @all #1 https://e.example",
    "fence": "```\n# heading\n\n| a | b |\n|---|---|\n- list\n> quote",
    "characters": "=cmd|' /C calc'!A0 {{ 7*7 }}{% raw %}%(x)s{0}"
    "\x1b[5m\x1b]0;title\x07\x1b[2J\x9b31m\x08\r[bold]b[/bold]"
    "a\nb\r\nc\u2028d\u2029e\x00f\x85g\u202eabc\u202d\u2066\u2069\u200f\u061c\ud800\udfff\ufffe",
}
PARTS = ("\x1b[5m", "\x1b]", "\x07", "\x9b", "\x00", "\u202e", "\u2066", "\u2028", "\x85", "\ud800")
"""What must not stand in any rendered text."""

Change = Callable[[str], str]
Field = tuple[str, str]


def poisoned(document: Document, change: Change, only: Field | None = None) -> Document | None:
    """The document with its texts changed; None where it then contradicts itself."""
    try:
        made: Document = _changed(document, type(document), change, only, None)
    except UsageError:
        return None
    return made


_hints = functools.cache(typing.get_type_hints)


def text_fields(document: Document) -> list[Field]:
    """The fields that hold text: the class, and the name."""
    return list(dict.fromkeys(f for f in _texts(document, type(document), None) if f))


def _texts(value: Any, hint: Any, field: Field | None) -> Iterator[Field | None]:
    """The field of every text there is."""
    if isinstance(value, str) and not _fixed(hint):
        yield field
    elif dataclasses.is_dataclass(value):
        hints = _hints(type(value))
        for f in dataclasses.fields(value):
            yield from _texts(getattr(value, f.name), hints[f.name], (type(value).__name__, f.name))
    elif isinstance(value, Mapping):
        yield from (field for _ in value)
        for item in value.values():
            yield from _texts(item, _inner(hint), field)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _texts(item, _inner(hint), field)


def _changed(value: Any, hint: Any, change: Change, only: Field | None, field: Field | None) -> Any:
    ours = field != NO_WORDS and (only is None or only == field)
    if isinstance(value, str):
        return change(value) if ours and not _fixed(hint) else value
    if dataclasses.is_dataclass(value):
        hints = _hints(type(value))
        changes = {
            f.name: _changed(
                getattr(value, f.name), hints[f.name], change, only, (type(value).__name__, f.name)
            )
            for f in dataclasses.fields(value)
        }
        return type(value)(**changes)  # type: ignore[operator]
    if isinstance(value, Mapping):
        return {
            change(key) if ours else key: _changed(item, _inner(hint), change, only, field)
            for key, item in value.items()
        }
    if isinstance(value, tuple | list):
        return tuple(_changed(item, _inner(hint), change, only, field) for item in value)
    return value


def _inner(hint: Any) -> Any:
    """What is inside a container; where it does not matter, anything."""
    arguments = [one for one in typing.get_args(hint) if one not in (type(None), ...)]
    inner = arguments[-1] if arguments else str
    container = typing.get_origin(hint) in (tuple, dict, Mapping)
    return inner if container or not arguments else _inner(inner)


def _fixed(hint: Any) -> bool:
    """Whether only some words fit: such a text cannot come from outside."""
    return any(typing.get_origin(one) is Literal for one in (hint, *typing.get_args(hint)))
