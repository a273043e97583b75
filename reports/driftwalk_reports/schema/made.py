"""JSON Schemas made of the dataclasses: what is written, which fields must be there, in words.

A field is required unless its type says `Later` or `Sparse` (driftwalk/jsonable.py). Descriptions
are the docstrings of classes and fields.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from driftwalk.document import KINDS
from driftwalk.jsonable import TABLE, Range, fields_of, written_of

Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": 0},
    types.NoneType: {"type": "null"},
}


_TABLE: Schema = {
    "description": "Objects of one form, by columns: each value of a row stands in a column under "
    "its keys with dots between, in `same` where all rows have it, or in `some` by row.",
    "type": "object",
    "additionalProperties": False,
    "required": ["columns"],
    "properties": {
        "columns": {"type": "object", "additionalProperties": {"type": "array"}},
        "same": {"type": "object"},
        "some": {"type": "object", "additionalProperties": {"type": "object"}},
    },
}


def schema_of(kind: str) -> Schema:
    """The JSON Schema (2020-12) of one kind of result."""
    known = KINDS[kind]
    defs: dict[str, Schema] = {}
    body = _object(known.type, defs)
    head = {key: {"const": kind if key == "kind" else known.version} for key in known.head}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:driftwalk:{kind}:{known.version}",
        "title": f"driftwalk {known.formats['json'][0]}, version {known.version}",
        **body,
        "required": [*(known.head if known.always is None else known.always), *body["required"]],
        "properties": head | body["properties"],
        "$defs": dict(sorted(defs.items())),
    }


def _object(kind: type, defs: dict[str, Schema]) -> Schema:
    """A dataclass: its fields, and the properties that are written with it."""
    properties, required = {}, []
    for key, needed, told in _keys(kind, defs):
        properties[key] = told
        required += [key] if needed else []
    described = {"description": inspect.cleandoc(kind.__doc__)} if kind.__doc__ else {}
    strict = {"type": "object", "additionalProperties": False}
    return {**described, **strict, "required": required, "properties": properties}


def _keys(kind: type, defs: dict[str, Schema]) -> Iterator[tuple[str, bool, Schema]]:
    """What is written of a dataclass: the key, whether it is always there, what it is."""
    words, written = _words(kind), written_of(kind)
    for f in fields_of(kind):
        told = {"description": words[f.name]} if f.name in words else {}
        if f.beside:  # what was read with the dataclass stands beside its name
            inner = {key: (needed, one) for key, needed, one in _keys(_bare(f.type), defs)}
            yield (f.key, *inner.pop(f.beside))
            yield from ((key, needed, one) for key, (needed, one) in inner.items())
        elif f.key not in written:
            options = [one for one in _options(f.type) if not (f.sparse and one is types.NoneType)]
            yield f.key, not f.later, told | _either([_schema(one, defs) for one in options])
    for key, name in written.items():
        getter = getattr(kind, name).fget
        said = {"description": inspect.cleandoc(getter.__doc__)} if getter.__doc__ else {}
        yield key, True, said | _schema(typing.get_type_hints(getter)["return"], defs)


def _options(hint: Any) -> tuple[Any, ...]:
    """A type, or each of a union's."""
    bare = _bare(hint)
    union = typing.get_origin(bare) in (typing.Union, types.UnionType)
    return typing.get_args(bare) if union else (hint,)


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _schema(hint: Any, defs: dict[str, Schema]) -> Schema:
    """One type: a number, a name, a list, a mapping, or a reference to a dataclass."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        limits = next((mark for mark in hint.__metadata__ if isinstance(mark, Range)), None)
        if TABLE in hint.__metadata__:
            defs["table"] = _TABLE
            return {"anyOf": [_schema(arguments[0], defs), {"$ref": "#/$defs/table"}]}
        return _number(limits, defs) if limits else _schema(arguments[0], defs)
    if len(_options(hint)) > 1:
        return _either([_schema(one, defs) for one in arguments])
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], defs)}
    if origin is Sequence or (origin is tuple and arguments[1:] == (...,)):
        return {"type": "array", "items": _schema(arguments[0], defs)}
    if origin is tuple:
        items = [_schema(one, defs) for one in arguments]
        ends = {"minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "prefixItems": items, **ends}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        name = hint.__name__
        if name not in defs:
            defs[name] = {}  # a dataclass may hold itself
            defs[name] = _object(hint, defs)
        return {"$ref": f"#/$defs/{name}"}
    return _number(Range(-math.inf), defs) if hint is float else dict(_PLAIN[hint])


def _number(limits: Range, defs: dict[str, Schema]) -> Schema:
    """A number, or the name of one that JSON cannot write."""
    if limits.high < math.inf:
        return {"type": "number", "minimum": limits.low, "maximum": limits.high}
    if limits.low == 0:
        defs["size"] = {"anyOf": [{"type": "number", "minimum": 0}, {"enum": ["nan", "inf"]}]}
        return {"$ref": "#/$defs/size"}
    defs["number"] = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
    return {"$ref": "#/$defs/number"}


def _either(options: list[Schema]) -> Schema:
    """One of several; a choice among words stays one list, with null where that is one."""
    if len(options) == 1:
        return options[0]
    if all("enum" in one or one == {"type": "null"} for one in options):
        return {"enum": [word for one in options for word in one.get("enum", [None])]}
    return {"anyOf": options}


@cache
def _words(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass, and of those it inherits."""
    found: dict[str, str] = {}
    for base in reversed([one for one in kind.__mro__ if dataclasses.is_dataclass(one)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            text = ast.get_docstring(ast.Module([below], [])) if field else None
            if text and isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found[field.target.id] = " ".join(text.split())
    return found
