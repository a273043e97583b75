"""Frozen dataclasses to strict JSON and back: no NaN, no Infinity, nothing lost.

A field says by its type how it is written and what is allowed in it; the JSON Schemas are made of
the same types:

    Later[X]       may be absent: added after the first files of its schema version were written
    Sparse[X]      left out where it is empty or None
    Size, Share    a number that is never negative; one between 0 and 1
    Named("n")     written under another name than the attribute has
    Beside("n")    a dataclass whose fields stand beside this field's own; its `n` under its name
    Table[X]       many objects of one form, by columns (json_tables.py); a list is read, too

`WRITTEN`, on a class, names properties that are written beside the fields for readers without
Python: the name in JSON, and the property. They are computed again, not read.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

from .errors import UsageError
from .json_tables import from_table, to_table

T = TypeVar("T")

VERSION = "schema_version"


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a field may hold."""

    low: float
    high: float = math.inf


@dataclasses.dataclass(frozen=True)
class Named:
    name: str


@dataclasses.dataclass(frozen=True)
class Beside:
    name: str


LATER, SPARSE, TABLE = "later", "sparse", "table"
Later = Annotated[T, LATER]
Sparse = Annotated[T, LATER, SPARSE]
Table = Annotated[T, TABLE]
Size = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]


@dataclasses.dataclass(frozen=True)
class Written:
    """One field of a dataclass, as JSON has it."""

    name: str
    """Of the attribute."""
    key: str
    """In JSON."""
    type: Any
    """With its annotations."""
    sparse: bool
    later: bool
    table: bool
    beside: str
    """What stands under `key` of a dataclass whose other fields stand beside it; else empty."""
    needed: bool
    """Whether there is no default."""


@cache
def fields_of(kind: type) -> tuple[Written, ...]:
    """The fields of a dataclass, as JSON has them."""
    hints = typing.get_type_hints(kind, include_extras=True)
    written = []
    for f in dataclasses.fields(kind):
        hint = hints[f.name]
        marks = getattr(hint, "__metadata__", ())
        key = next((m.name for m in marks if isinstance(m, Named)), f.name)
        beside = next((m.name for m in marks if isinstance(m, Beside)), "")
        needed = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        sparse, later, table = (mark in marks for mark in (SPARSE, LATER, TABLE))
        written.append(Written(f.name, key, hint, sparse, later, table, beside, needed))
    return tuple(written)


def written_of(kind: type) -> Mapping[str, str]:
    """The properties that are written with a dataclass: the name in JSON, and the property."""
    return typing.cast(Mapping[str, str], getattr(kind, "WRITTEN", {}))


def encode(value: Any) -> Any:
    """Plain dicts, lists, strings and finite numbers; non-finite floats become strings."""
    if isinstance(value, float):  # most of what there is
        return value if math.isfinite(value) else str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [encode(item) for item in value]
    return value


def _encode_dataclass(value: Any) -> dict[str, Any]:
    data: dict[str, Any] = {}
    kind: type = type(value)
    for f in fields_of(kind):
        plain = encode(getattr(value, f.name))
        if f.table:
            plain = to_table(plain)
        if f.beside:
            data |= {f.key: plain[f.beside]} | {k: v for k, v in plain.items() if k != f.beside}
        elif not f.sparse or plain not in (None, "", [], {}):
            data[f.key] = plain
    for key, attribute in written_of(kind).items():
        data[key] = encode(getattr(value, attribute))
    return data


def decode(kind: type[T], data: Any, where: str = "result") -> T:
    """Rebuild `kind` from what `encode` made; unknown keys are ignored, lacking ones named."""
    return typing.cast(T, _decode(kind, data, where))


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        if TABLE in kind.__metadata__ and isinstance(data, dict):
            data = _rows(data, where)
        return _decode(arguments[0], data, where)
    if origin in (typing.Union, types.UnionType):
        (kind,) = (a for a in arguments if a is not type(None))
        return None if data is None else _decode(kind, data, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, data, where)
    if origin in (tuple, Sequence):
        kinds = arguments if origin is tuple else (*arguments, ...)
        return _decode_tuple(kinds, data, where)
    if origin in (dict, Mapping):
        _expect(isinstance(data, dict), where, "an object", data)
        return {k: _decode(arguments[1], v, f"{where}.{k}") for k, v in data.items()}
    return _decode_plain(kind, data, where)


def _rows(data: dict[str, Any], where: str) -> list[dict[str, Any]]:
    try:
        return from_table(data)
    except ValueError as error:
        raise UsageError(f"Not a driftwalk result: {where} is no table: {error}.") from None


def _decode_tuple(kinds: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    _expect(isinstance(data, list), where, "a list", data)
    if len(kinds) == 2 and kinds[1] is ...:
        kinds = (kinds[0],) * len(data)
    _expect(len(data) == len(kinds), where, f"{len(kinds)} items", data)
    items = enumerate(zip(kinds, data, strict=True))
    return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in items)


def _decode_plain(kind: Any, data: Any, where: str) -> Any:
    if typing.get_origin(kind) is typing.Literal:
        arguments = typing.get_args(kind)
        _expect(data in arguments, where, f"one of {', '.join(map(str, arguments))}", data)
        return data
    if kind is float:
        if data in ("nan", "inf", "-inf"):
            return float(data)
        _expect(isinstance(data, int | float) and not isinstance(data, bool), where, "number", data)
        try:
            return float(data)
        except OverflowError:  # an integer of 309 digits or more
            _expect(False, where, "a number that fits a float", data)
    if kind in (int, str, bool):
        fits = isinstance(data, kind) and not (kind is int and isinstance(data, bool))
        _expect(fits, where, f"{kind.__name__}", data)
    return data


def _decode_dataclass(kind: type, data: Any, where: str) -> Any:
    _expect(isinstance(data, dict), where, "an object", data)
    lacking = [repr(f.key) for f in fields_of(kind) if f.needed and f.key not in data]
    if lacking:
        raise UsageError(f"Not a driftwalk result: {where} lacks {', '.join(lacking)}.")
    values = {}
    for f in fields_of(kind):
        if f.key in data:
            stored = data | {f.beside: data[f.key]} if f.beside else data[f.key]
            values[f.name] = _decode(f.type, stored, f"{where}.{f.key}")
    return kind(**values)


def _expect(fits: bool, where: str, what: str, found: Any) -> None:
    if not fits:
        # Containers by name only: printing what is nested a thousand deep is an error of its own.
        kinds = {dict: "an object", list: "a list", type(None): "null"}
        shown = kinds.get(type(found)) or repr(str(found)[:60])
        raise UsageError(f"Not a driftwalk result: {where} should be {what}, found {shown}.")
