"""Frozen dataclasses to strict JSON and back: no NaN, no Infinity, nothing lost."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from .errors import UsageError

T = TypeVar("T")

VERSION = "schema_version"

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_text(document: Any) -> str:
    """Strict JSON: `allow_nan=False` raises if a non-finite number were left."""
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def versioned(data: Any, newest: int, what: str, key: str = VERSION) -> dict[str, Any]:
    """A document that says which version of its schema it has, and one that can be read here."""
    version = data.get(key) if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise UsageError(f"Not a driftwalk {what}: it has no {key}.")
    if version > newest:
        raise UsageError(
            f"This {what} has schema version {version}; this driftwalk reads up to {newest}. "
            "Upgrade driftwalk to read it."
        )
    found: dict[str, Any] = data
    return found


def encode(value: Any) -> Any:
    """Plain dicts, lists, strings and finite numbers; non-finite floats become strings."""
    if isinstance(value, float):  # most of what there is
        if math.isfinite(value):
            return value
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], data: Any, where: str = "result") -> T:
    """Rebuild `kind` from what `encode` made; unknown keys are ignored, lacking ones named."""
    return typing.cast(T, _decode(kind, data, where))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        (kind,) = (a for a in arguments if a is not type(None))
        return _decode(kind, data, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, data, where)
    if origin is tuple:
        return _decode_tuple(arguments, data, where)
    if origin is Sequence:
        return _decode_tuple((*arguments, ...), data, where)
    if origin in (dict, Mapping):
        _expect(isinstance(data, dict), where, "an object", data)
        return {k: _decode(arguments[1], v, f"{where}.{k}") for k, v in data.items()}
    return _decode_plain(kind, data, where)


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
        if isinstance(data, str) and data in _WORDS:
            return _WORDS[data]
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
    hints, values = _hints(kind), {}
    for f in dataclasses.fields(kind):
        if f.name in data:
            values[f.name] = _decode(hints[f.name], data[f.name], f"{where}.{f.name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise UsageError(f"Not a driftwalk result: {where} lacks {f.name!r}.")
    return kind(**values)


def _expect(fits: bool, where: str, what: str, found: Any) -> None:
    if not fits:
        # Containers by name only: printing what is nested a thousand deep is an error of its own.
        kinds = {dict: "an object", list: "a list", type(None): "null"}
        shown = kinds.get(type(found)) or repr(str(found)[:60])
        raise UsageError(f"Not a driftwalk result: {where} should be {what}, found {shown}.")
