"""Tables in JSON: nothing is lost, and what is no table is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftwalk.errors import UsageError
from driftwalk.json_tables import Line, from_table, to_table, to_text
from driftwalk.jsonable import Sparse, Table, decode, encode

keys = st.sampled_from(["a", "b", "c.d", "e"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["a", "b", "e"])


@given(st.lists(st.dictionaries(names, values, min_size=1), max_size=5))
def test_rows_come_back_as_they_were(rows):
    if any(rows) and len(rows) > 1 and not set.intersection(*(set(row) for row in rows)):
        rows = [{"first": number, **row} for number, row in enumerate(rows)]
    table = to_table(rows)
    stored = json.loads(to_text(table))
    back = from_table(stored) if isinstance(stored, dict) else stored
    assert repr(sorted_in(back)) == repr(sorted_in(rows))


def sorted_in(value):
    """With keys in one order: a table keeps them, and not their order."""
    if isinstance(value, dict):
        return {key: sorted_in(value[key]) for key in sorted(value)}
    return [sorted_in(item) for item in value] if isinstance(value, list) else value


def test_what_all_rows_have_stands_once_and_a_zero_keeps_its_sign():
    rows = [{"n": n, "x": {"y": 1.5, "z": z}} for n, z in enumerate((0.0, -0.0))]
    table = to_table(rows)
    assert table == {"columns": {"n": [0, 1], "x.z": [0.0, -0.0]}, "same": {"x.y": 1.5}}
    back = from_table(json.loads(to_text(table)))
    assert [math.copysign(1, row["x"]["z"]) for row in back] == [1, -1]


def test_a_line_is_one_line_whatever_it_holds():
    text = to_text({"a": Line([1, '"x"\n', {"b": [2]}]), "c": [3, 4]})
    assert text.splitlines()[1] == ' "a": [1, "\\"x\\"\\n", {"b": [2]}],'
    assert json.loads(text) == {"a": [1, '"x"\n', {"b": [2]}], "c": [3, 4]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_text(Line([math.nan]))


@dataclass(frozen=True)
class Row:
    number: int
    note: Sparse[str] = ""


@dataclass(frozen=True)
class Rows:
    rows: Table[tuple[Row, ...]]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_tables_and_lists_are_read(count):
    made = Rows(tuple(Row(number, "x" * (number == 1)) for number in range(count)))
    data = json.loads(to_text(encode(made)))
    assert isinstance(data["rows"], dict) is (count > 1)
    assert decode(Rows, data) == made
    assert decode(Rows, {"rows": [encode(row) for row in made.rows]}) == made


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"columns": {}},
        {"columns": {"number": 3}},
        {"columns": {"number": [1, 2], "note": ["a"]}},
        {"columns": [1]},
        {"columns": {"number": [1]}, "same": [1]},
        {"columns": {"number": [1]}, "some": {"note": {"1": "a"}}},
        {"columns": {"number": [1]}, "some": {"note": {"-1": "a"}}},
        {"columns": {"number": [1]}, "some": {"note": {"9" * 5000: "a"}}},
        {"columns": {"number": [1], "number.x": [1]}},
        {"columns": {"note": ["a"]}},
    ],
)
def test_what_is_no_table_is_refused(table):
    with pytest.raises(UsageError, match="Not a driftwalk result"):
        decode(Rows, {"rows": table})
