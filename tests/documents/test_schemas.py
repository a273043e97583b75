"""The JSON Schemas: made of the dataclasses, committed, valid, and as exact as by hand."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

from documents.stored import DATA, STORED, name_of
from driftwalk.document import KINDS, load, to_dict
from driftwalk.json_tables import to_text
from driftwalk_reports.schema import load_schema
from driftwalk_reports.schema.made import schema_of

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_committed_is_what_the_dataclasses_say(kind: str) -> None:
    committed = load_schema(KINDS[kind].version, kind)
    jsonschema.Draft202012Validator.check_schema(committed)
    made = json.loads(to_text(schema_of(kind)))
    assert made == committed, "run `python -m driftwalk_reports.schema`"


def dataclasses_in(hint: Any, seen: set[type]) -> set[type]:
    """All that a dataclass is made of."""
    if is_dataclass(hint) and isinstance(hint, type) and hint not in seen:
        seen.add(hint)
        names = [f.name for f in fields(hint)]
        for inner in (get_type_hints(hint)[name] for name in names):
            dataclasses_in(inner, seen)
    for inner in get_args(hint):
        dataclasses_in(inner, seen)
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_parts_of_a_result_have_one_name(kind: str) -> None:
    """A schema calls them by the names of their classes."""
    names = [one.__name__ for one in dataclasses_in(KINDS[kind].type, set())]
    assert len(names) == len(set(names))


def resolved(schema: Any, whole: Any) -> Any:
    while "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def options(schema: Any, whole: Any) -> list[Any]:
    """What a value may be, each apart; `type: [a, b]` is two options."""
    schema = resolved(schema, whole)
    if "anyOf" in schema:
        return [one for part in schema["anyOf"] for one in options(part, whole)]
    if isinstance(schema.get("type"), list):
        plain = [one for one in schema["type"] if one != "null"]
        return [*(schema | {"type": one} for one in plain), {"type": "null"}]
    if None in schema.get("enum", ()):
        return [{"enum": [w for w in schema["enum"] if w is not None]}, {"type": "null"}]
    return [schema]


def differences(old: Any, new: Any, olds: Any, news: Any, path: str = "$") -> list[str]:
    """Where one schema asks for other fields, words or types than the other."""
    before = {_label(one): one for one in options(old, olds)}
    after = {_label(one): one for one in options(new, news)}
    if before.keys() != after.keys():
        return [f"{path}: {sorted(before)} became {sorted(after)}"]
    found = []
    for label, one in before.items():
        other = after[label]
        found += [f"{path}: minimum"] if one.get("minimum") != other.get("minimum") else []
        if sorted(one.get("required", [])) != sorted(other.get("required", [])):
            found.append(f"{path}: {set(one['required']) ^ set(other['required'])}")
        for name, inner in one.get("properties", {}).items():
            there = other["properties"].get(name)
            found += (
                differences(inner, there, olds, news, f"{path}.{name}")
                if there
                else [f"{path}.{name} is gone"]
            )
        for key in ("items", "additionalProperties"):
            if isinstance(one.get(key), dict) and isinstance(other.get(key), dict):
                found += differences(one[key], other[key], olds, news, f"{path}.{key}")
            elif key == "additionalProperties" and one.get(key) != other.get(key):
                found.append(f"{path}: other keys are {other.get(key)}, were {one.get(key)}")
    return found


def _label(schema: Any) -> str:
    if "enum" in schema or "const" in schema:
        return str(sorted(schema.get("enum", [schema.get("const")]), key=str))
    return str(schema.get("type"))


def test_result_json_is_held_to_what_was_written_by_hand() -> None:
    old = json.loads((DATA / "handwritten.result.v1.schema.json").read_text("utf-8"))
    assert differences(old, load_schema(), old, load_schema()) == []


def test_a_difference_would_be_found() -> None:
    old = load_schema()
    for change in ("required", "properties"):
        new = copy.deepcopy(old)
        layer = new["$defs"]["LayerDrift"]
        layer[change] = layer[change][1:] if change == "required" else {}
        assert differences(old, new, old, new) or differences(old, new, old, new | {"x": 1})
    new = copy.deepcopy(old)
    new["properties"]["verdict"]["enum"].append("fine")
    assert differences(old, new, old, new)


@pytest.mark.parametrize("path", STORED, ids=name_of)
def test_a_schema_refuses_what_is_damaged(path: Any) -> None:
    """One key more, one less, and a number for a text, wherever there is an object at the top."""
    document = load(path)
    schema = jsonschema.Draft202012Validator(load_schema(kind=document.kind))
    data = to_dict(document)
    assert schema.is_valid(data)
    assert not schema.is_valid(data | {"surprise": 1})
    assert not schema.is_valid(data | {"created": 5})
    assert not schema.is_valid(data | {"tool": {"name": "driftwalk"}})
    assert not schema.is_valid({key: value for key, value in data.items() if key != "command"})
