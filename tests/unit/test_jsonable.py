"""Dataclasses to strict JSON and back, with nothing lost and nothing let in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.errors import UsageError
from driftwalk.jsonable import decode, encode

some = settings(max_examples=100, deadline=None)


@dataclass(frozen=True)
class Leaf:
    number: float
    count: int
    word: str
    maybe: float | None = None


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    pair: tuple[int, str]
    named: Mapping[str, Leaf]
    rows: tuple[tuple[float | None, ...], ...]
    kind: Literal["oak", "elm"]
    flag: bool
    free: Any = None


leaves = st.builds(Leaf, st.floats(), st.integers(), st.text(), st.none() | st.floats())
trees = st.builds(
    Tree,
    st.lists(leaves, max_size=3).map(tuple),
    st.tuples(st.integers(), st.text()),
    st.dictionaries(st.text(), leaves, max_size=3),
    st.lists(st.lists(st.none() | st.floats(), max_size=3).map(tuple), max_size=3).map(tuple),
    st.sampled_from(["oak", "elm"]),
    st.booleans(),
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def strict(text: str) -> Any:
    """Parse as RFC 8259 has it: NaN and Infinity are no JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@some
@given(tree=trees)
def test_what_goes_out_comes_back(tree):
    text = json.dumps(encode(tree), allow_nan=False)
    # repr, since a NaN does not equal itself and -0.0 equals 0.0
    assert repr(decode(Tree, strict(text))) == repr(tree)


@pytest.mark.parametrize(
    ("value", "word"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_nonfinite_numbers_are_words(value, word):
    assert encode((value, {"x": [value]})) == [word, {"x": [word]}]
    assert repr(decode(Leaf, {"number": word, "count": 1, "word": word}).number) == repr(value)
    assert decode(Leaf, {"number": 1, "count": 1, "word": word}).word == word


def test_a_whole_number_where_a_float_stands_becomes_a_float():
    assert isinstance(decode(Leaf, {"number": 3, "count": 3, "word": ""}).number, float)


def test_unknown_keys_are_ignored_and_defaults_filled_in():
    found = decode(Leaf, {"number": 1.0, "count": 2, "word": "x", "from_the_future": [1]})
    assert found == Leaf(1.0, 2, "x", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": "one"}, "result.number should be number, found 'one'"),
        ({"number": True}, "result.number should be number, found 'True'"),
        ({"number": None}, "result.number should be number, found null"),
        ({"number": 10**400}, "result.number should be a number that fits a float"),
        ({"count": 1.0}, "result.count should be int, found '1.0'"),
        ({"count": True}, "result.count should be int"),
        ({"word": 5}, "result.word should be str, found '5'"),
        ({"word": ["a"]}, "result.word should be str, found a list"),
        ({"maybe": {}}, "result.maybe should be number, found an object"),
    ],
)
def test_a_value_of_another_kind_is_named_with_its_place(change, message):
    with pytest.raises(UsageError, match=message):
        decode(Leaf, {"number": 1.0, "count": 2, "word": "x"} | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"leaves": {}}, "result.leaves should be a list, found an object"),
        ({"leaves": [{"number": 1}]}, r"result.leaves\[0\] lacks 'count'"),
        ({"pair": [1]}, "result.pair should be 2 items"),
        ({"pair": ["a", 1]}, r"result.pair\[0\] should be int"),
        ({"named": []}, "result.named should be an object"),
        ({"named": {"a": 1}}, "result.named.a should be an object"),
        ({"rows": [[None, "x"]]}, r"result.rows\[0\]\[1\] should be number"),
        ({"kind": "fir"}, "result.kind should be one of oak, elm"),
        ({"kind": ["oak"]}, "result.kind should be one of oak, elm"),
        ({"flag": 1}, "result.flag should be bool"),
    ],
)
def test_containers_are_checked_to_the_bottom(change, message):
    good = encode(Tree((), (1, "a"), {}, (), "oak", True))
    with pytest.raises(UsageError, match=message):
        decode(Tree, good | change)


@some
@given(data=json_values)
def test_any_other_json_is_refused_by_name(data):
    with pytest.raises(UsageError, match=r"^Not a driftwalk result: "):
        decode(Tree, data)


def test_what_is_nested_too_deep_to_print_is_still_refused_by_name():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UsageError, match="found a list"):
        decode(Leaf, {"number": deep, "count": 1, "word": ""})
