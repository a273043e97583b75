"""What a probe exercised, as data: it is stored, comes back, and says what to add."""

from __future__ import annotations

from typing import Any

import pytest

from driftwalk.exercised import Exercised, Touched, exercised
from driftwalk.jsonable import decode, encode
from driftwalk.result import Coverage
from driftwalk.states import Probe

FOUND = Exercised(
    (
        Touched("embedding rows", "embed", 9, 100, False, "all ids"),
        Touched("window", "config.sliding_window", 8, 8, False, "a longer text"),
        Touched("padding", "none", 0, 1, False, "a shorter text"),
        Touched("batch", "rows", 1, 2, False, "a shorter text"),
    ),
    0.25,
)


def test_it_is_stored_and_comes_back() -> None:
    covered = Coverage(3, 3, exercised=FOUND)
    assert decode(Coverage, encode(covered)) == covered


def test_an_older_result_has_none() -> None:
    old = {"points": 3, "compared": 3, "missing": [], "extra": [], "allowed": []}
    assert decode(Coverage, old).exercised is None


def test_the_easiest_is_asked_for_first_and_once() -> None:
    assert FOUND.advice == ("a shorter text", "a longer text", "all ids")


@pytest.mark.parametrize(("length", "tried"), [(7, False), (8, False), (9, True)])
def test_a_window_must_be_shorter_than_the_probe(length: int, tried: bool) -> None:
    assert Touched("window", "", length, 8).tried == tried
    assert Touched("positions", "", length, 8).tried == (length >= 8)


class Knows:
    def __init__(self, found: Exercised | None) -> None:
        self.found = found

    def exercised_by(self, probe: Probe) -> Exercised | None:
        return self.found


class Runs:
    def __init__(self, found: Exercised | None) -> None:
        self.found, self.runs = found, 0

    def exercised(self, probe: Probe) -> Exercised | None:
        self.runs += 1
        return self.found


def test_a_backend_is_run_only_where_nothing_is_known() -> None:
    probe = Probe({"x": [1]})
    first, second = Runs(FOUND), Runs(FOUND)
    backends: tuple[Any, ...] = (object(), first, second)
    assert exercised(Knows(FOUND), backends, probe) is FOUND
    assert (first.runs, second.runs) == (0, 0)
    assert exercised(Knows(None), backends, probe) is FOUND
    assert (first.runs, second.runs) == (1, 0)
    assert exercised(object(), (object(),), probe) is None


def test_it_never_fails_a_run() -> None:
    class Breaks:
        def exercised(self, probe: Probe) -> Exercised | None:
            raise RuntimeError("out of memory")

    found = exercised(Knows(None), (Breaks(),), Probe({"x": [1]}))
    assert found == Exercised((), None, "RuntimeError: out of memory")
