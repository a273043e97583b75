"""TOML that people write: every key is known, every value has its type, or the message says so."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ..errors import UsageError, nearest

V = TypeVar("V")
D = TypeVar("D")

_KINDS: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
    datetime: "a date with a time",
    date: "a date",
}


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says; a file that is none is the caller's mistake, and said so."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} is not TOML: {error}.") from None


@dataclass(frozen=True)
class Table:
    """One table of a file, read key by key."""

    data: Mapping[str, Any]
    file: Path
    where: str = ""
    """Which table it is, as a reader finds it."""

    def refuse(self, text: str) -> NoReturn:
        """A mistake in this table: the file and the place come first."""
        place = f" {self.where}:" if self.where else ""
        raise UsageError(f"{self.file}:{place} {text}")

    def allow(self, known: Collection[str], needed: Collection[str] = ()) -> Table:
        """The same table, which has no key but these, and all that are needed."""
        for key in self.data:
            if key not in known:
                self.refuse(f"unknown key {key!r}. {nearest(key, known)}")
        for key in needed:
            if key not in self.data:
                self.refuse(f"{key!r} is missing.")
        return self

    def typed(self, key: str, kind: type[V], default: D) -> V | D:
        """A value that is of this kind."""
        if key not in self.data:
            return default
        value = self.data[key]
        if _kind(value) is not kind:
            self.refuse(f"{key!r} should be {_KINDS[kind]}, found {_shown(value)}.")
        return value  # type: ignore[no-any-return]

    def text(self, key: str, default: D) -> str | D:
        """One that is not empty."""
        value = self.typed(key, str, default)
        if key in self.data and not self.data[key].strip():
            self.refuse(f"{key!r} is empty.")
        return value

    def whole(self, key: str, least: int, default: D) -> int | D:
        value = self.typed(key, int, default)
        if key in self.data and self.data[key] < least:
            self.refuse(f"{key!r} should be {least} or more, found {value}.")
        return value

    def number(self, key: str) -> float:
        value = self.data.get(key)
        if _kind(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
            self.refuse(f"{key!r} should be a finite number, found {_shown(value)}.")
        return float(value)  # type: ignore[arg-type]

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        for item in self.typed(key, list, []):
            if _kind(item) is not str or not item.strip():
                self.refuse(f"{key!r} should be a list of texts, found {_shown(item)} in it.")
        return tuple(self.data.get(key, default))

    def table(self, key: str) -> Table:
        """A table below this one; an empty one where there is none."""
        return Table(self.typed(key, dict, {}), self.file, self._below(key))

    def tables(self, key: str) -> list[Table]:
        """An array of tables, which a reader counts from 1."""
        items = self.typed(key, list, [])
        for item in items:
            if _kind(item) is not dict:
                self.refuse(f"{key!r} should be an array of tables, found {_shown(item)} in it.")
        where = self._below(key)
        return [Table(item, self.file, f"{where}, entry {n}") for n, item in enumerate(items, 1)]

    def _below(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key


def _kind(value: Any) -> type:
    """The TOML type: true is no number, and a date with a time is no date."""
    return next((kind for kind in (bool, datetime, date) if isinstance(value, kind)), type(value))


def _shown(value: Any) -> str:
    kind = _kind(value)
    if value is None:
        return "nothing"
    if kind in (list, dict):
        return _KINDS[kind]
    text = str(value).lower() if kind is bool else repr(value) if kind is str else str(value)
    return f"{_KINDS.get(kind, kind.__name__)} ({text[:60]})"
