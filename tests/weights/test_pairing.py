"""Which weight is which: by name, by the end of a name, by content; and never by a guess."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from driftwalk.dtypes import dtype_name
from driftwalk.tasks.weights.pairing import Pair, pair
from driftwalk.tasks.weights.run import change, without_partner
from driftwalk.weight_source import SourceKind, Stored, WeightSource

RNG = np.random.default_rng(0)


def noise(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def source(
    arrays: dict[str, Any], kind: SourceKind = "files", ties: dict[str, str] | None = None
) -> WeightSource:
    stored = {n: Stored(a.shape, dtype_name(a), lambda a=a: a) for n, a in arrays.items()}
    return WeightSource("here", kind, stored, ties or {})


def names(a: WeightSource, b: WeightSource) -> dict[str, str]:
    return {one.name: one.other for one in pair(a, b)}


def test_by_name_and_by_the_end_of_a_name() -> None:
    w, v = noise(4, 4), noise(4, 4)
    a = source({"h.0.w": w, "h.1.w": v})
    assert names(a, source({"model.h.1.w": w, "model.h.0.w": v})) == {
        "h.0.w": "model.h.0.w",
        "h.1.w": "model.h.1.w",
    }, "content does not outweigh a name"
    assert names(source({"model.h.0.w": w}), source({"h.0.w": v})) == {"model.h.0.w": "h.0.w"}
    twice = source({"x.h.0.w": noise(4, 4), "y.h.0.w": noise(4, 4)})
    assert names(source({"h.0.w": w}), twice) == {}, "which of two is not known"


def test_by_content_straight_and_transposed() -> None:
    w, v, square = noise(40, 30), noise(40, 30), noise(30, 30)
    a = source({"w": w, "v": v, "square": square})
    b = source({"1": np.ascontiguousarray(v.T), "2": w.astype(np.float16), "3": square.T.copy()})
    found = pair(a, b)
    assert found == (
        Pair("w", "2", "content", False),
        Pair("v", "1", "content", True),
        Pair("square", "3", "content", True),
    )
    changes = [change(one, a, b) for one in found]
    assert [one.verdict for one in changes] == ["cast", "same", "same"]
    assert [one.turned for one in changes] == [False, True, True]


@pytest.mark.parametrize("what", ["entry", "row", "factor", "noise"])
def test_a_changed_one_is_found_by_what_is_left_of_it(what: str) -> None:
    w, v = noise(40, 40), noise(40, 40)
    b = w.T.copy()
    if what == "entry":
        b[7, 11] += 5
    elif what == "row":
        b[7] = noise(40)
    else:
        b = b * 1.5 if what == "factor" else b + 0.01 * noise(40, 40)
    a, other = source({"w": w, "v": v}), source({"1": v, "2": b.astype(np.float32)}, "graph")
    found = pair(a, other)
    assert [(one.name, one.other, one.turned) for one in found] == [
        ("w", "2", True),
        ("v", "1", False),
    ]
    made = change(found[0], a, other)
    places = {"entry": "[11, 7]", "row": "[:, 7]"}
    assert (made.verdict, made.place) == ("differs", places.get(what, ""))


def test_what_is_like_nothing_has_no_partner() -> None:
    a, b = source({"w": noise(40, 40)}), source({"1": noise(40, 40), "2": noise(40, 40)})
    assert pair(a, b) == ()
    assert pair(a, source({"1": noise(40, 40)})) == (), "nor because it is the only one left"


def test_two_that_are_as_near_are_both_no_partner() -> None:
    w = noise(40, 40)
    one, other = w.copy(), w.copy()
    one[:10], other[-10:] = noise(10, 40), noise(10, 40)
    assert pair(source({"w": w}), source({"1": one, "2": other})) == ()
    assert names(source({"w": w}), source({"1": one, "2": noise(40, 40)})) == {"w": "1"}


def test_constants_say_nothing_unless_they_are_equal() -> None:
    """All-one norms of a graph are merged by exporters; one that was changed is nobody's."""
    ones, changed = np.ones(4096, np.float32), np.ones(4096, np.float32)
    changed[1234] = 2
    a = source({f"norm.{i}": ones for i in range(3)})
    merged = source({"c": changed, "one": ones}, "graph")
    assert set(names(a, merged).values()) == {"one"}
    assert pair(a, source({"c": changed}, "graph")) == ()
    # Files have one for each.
    assert names(a, source({f"n{i}": ones for i in range(3)})) == {
        f"norm.{i}": f"n{i}" for i in range(3)
    }


def test_one_sided_weights_are_missing_and_extra() -> None:
    w = noise(4, 4)
    a, b = source({"w": w, "old": noise(3, 3)}), source({"w": w, "new": noise(5, 5)})
    assert [(one.name, one.other, one.verdict) for one in without_partner(pair(a, b), a, b)] == [
        ("old", "", "missing"),
        ("", "new", "extra"),
    ]
    graph = source({"w": w, "new": noise(5, 5)}, "graph")
    (absent,) = without_partner(pair(a, graph), a, graph)
    assert (absent.name, absent.verdict, absent.ok) == ("old", "absent", True)


def test_a_tied_weight_may_be_stored_once() -> None:
    w = noise(4, 4)
    a = source({"embed": w, "head": w}, "module", {"head": "embed"})
    b = source({"embed": w})
    assert without_partner(pair(a, b), a, b) == []
    assert without_partner(pair(b, a), b, a) == []


def test_tied_on_one_side_only() -> None:
    w = noise(4, 4)
    a = source({"embed": w, "head": w}, "module", {"head": "embed"})
    b = source({"embed": w, "head": w.copy()}, "module")
    assert [change(one, a, b).tied for one in pair(a, b)] == ["", "reference"]
    assert [change(one, b, a).tied for one in pair(b, a)] == ["", "candidate"]


def test_nothing_is_read_before_it_is_needed() -> None:
    def fail() -> Any:
        raise AssertionError("read")

    stored = {"w": Stored((1 << 20, 1 << 20), "fp32", fail)}
    a = WeightSource("here", "files", stored)
    assert len(pair(a, a)) == 1
