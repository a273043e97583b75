"""The search for parts to restore: it reaches what can be reached, and keeps nothing idle."""

from __future__ import annotations

import math
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.tasks.repair.search import Loss, search

SIZES = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=6)


def sum_of(losses: list[float]) -> tuple[dict[str, int], Loss]:
    """Parts whose losses add; each takes a byte more than the one before."""
    names = [f"p{i}" for i in range(len(losses))]
    each = dict(zip(names, losses, strict=True))

    def loss(restored: frozenset[str]) -> float:
        return math.fsum(size for name, size in each.items() if name not in restored)

    return {name: 1 + i for i, name in enumerate(names)}, loss


@settings(max_examples=100, deadline=None)
@given(losses=SIZES, share=st.floats(0.0, 1.2))
def test_of_losses_that_add_the_fewest_parts_are_chosen(losses: list[float], share: float) -> None:
    sizes, loss = sum_of(losses)
    goal = share * loss(frozenset())
    found = search(sizes, loss, goal)
    assert found.loss <= goal
    assert found.loss == loss(frozenset(found.chosen))
    for part in found.chosen:
        assert loss(frozenset(found.chosen) - {part}) > goal, "it could be left out"
    fewer = combinations(sizes, max(0, len(found.chosen) - 1))
    assert not found.chosen or all(loss(frozenset(some)) > goal for some in fewer)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), parts=st.integers(1, 5), goal=st.floats(0.0, 1.0))
def test_any_loss_at_all_ends_with_what_was_measured(
    data: st.DataObject, parts: int, goal: float
) -> None:
    names = [f"p{i}" for i in range(parts)]
    known = {
        frozenset(some): data.draw(st.floats(0.0, 2.0) | st.just(math.nan))
        for count in range(parts + 1)
        for some in combinations(names, count)
    }
    known[frozenset(names)] = 0.0
    asked: list[frozenset[str]] = []

    def loss(restored: frozenset[str]) -> float:
        asked.append(restored)
        return known[restored]

    found = search(dict.fromkeys(names, 1), loss, goal)
    assert found.loss <= goal, "with all of them nothing is lost"
    assert len(asked) == len(set(asked)) == found.runs, "nothing is measured twice"
    assert sorted(found.ranking) == sorted(names)
    assert [step.bytes for step in found.steps] == list(range(1, len(found.steps) + 1))


def test_two_parts_that_help_only_together_are_both_found() -> None:
    def loss(restored: frozenset[str]) -> float:
        return 0.0 if {"a", "b"} <= restored else 1.0

    assert set(search({"a": 1, "b": 1, "c": 1}, loss, 0.5).chosen) == {"a", "b"}


def test_what_is_good_enough_is_left_alone() -> None:
    sizes, loss = sum_of([1.0, 2.0])
    found = search(sizes, loss, 3.0)
    assert found.chosen == ()
    assert found.steps == ()
    assert found.ranking == ("p1", "p0")
