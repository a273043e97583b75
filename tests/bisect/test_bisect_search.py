"""The search for switches over simulated candidates: what it names, and what it costs."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftwalk.tasks.bisect.search import Ask, Cause, Found, StoppedError, search

NAMES = [f"s{number}" for number in range(60)]


class Asked:
    """A candidate that is bad where one of some sets is wholly on; counts its runs."""

    def __init__(self, *causes: set[str], universe: list[str] = NAMES) -> None:
        self.causes, self.universe, self.runs = causes, set(universe), 0

    def __call__(self, off: frozenset[str]) -> bool:
        self.runs += 1
        return any(not cause & off for cause in self.causes)


@pytest.mark.parametrize("guilty", ["s0", "s1", "s29", "s31", "s59"])
def test_one_of_sixty_in_a_few_runs(guilty: str) -> None:
    asked = Asked({guilty})
    found = search(NAMES, asked)
    assert found.cure == (guilty,)
    assert found.causes == (Cause(guilty, alone=True),)
    assert asked.runs <= 1 + 6 + 1 + 1  # all off, halving, it alone off, it alone on


@given(st.sets(st.sampled_from(NAMES), min_size=2, max_size=3))
def test_those_that_only_together_cause_it_are_all_named(both: set[str]) -> None:
    found = search(NAMES, Asked(both))
    assert len(found.cure) == 1
    assert set(found.named) == both
    assert not found.causes[0].alone


@given(st.sets(st.sampled_from(NAMES), min_size=2, max_size=4))
def test_those_that_each_cause_it_are_all_named(each: set[str]) -> None:
    asked = Asked(*({name} for name in each))
    found = search(NAMES, asked)
    assert set(found.cure) == each
    assert all(cause.alone for cause in found.causes)
    assert asked.runs <= 1 + len(each) * (math.ceil(math.log2(60)) + 3)


@given(st.lists(st.sets(st.sampled_from(NAMES[:12]), min_size=1, max_size=3), min_size=1))
def test_the_cure_is_a_cure_and_nothing_of_it_can_be_left_out(causes: list[set[str]]) -> None:
    asked = Asked(*causes)
    found = search(NAMES[:12], asked)
    cure = frozenset(found.cure)
    assert not asked(cure)
    assert all(asked(cure - {name}) for name in cure)
    for cause in found.causes:  # what is named together is enough to be bad, all others off
        on = {cause.switch, *cause.together}
        assert asked(frozenset(NAMES[:12]) - on)


@given(st.integers(0, 2**12 - 1), st.integers(0, 2**32 - 1))
def test_whatever_the_candidate_does_the_cure_was_seen_to_work(hidden: int, seed: int) -> None:
    """Turning more off may make it bad again: nothing is taken for granted."""
    names = NAMES[:8]
    luck = random.Random(f"{hidden} {seed}")
    answers: dict[frozenset[str], bool] = {frozenset(): True, frozenset(names): False}

    def ask(off: frozenset[str]) -> bool:
        return answers.setdefault(off, luck.random() < 0.5)

    found = search(names, ask)
    assert answers[frozenset(found.cure)] is False


def test_where_none_of_them_causes_it() -> None:
    asked = Asked(set())
    assert search(NAMES, asked) == Found(curable=False)
    assert asked.runs == 1


def test_a_part_is_named_in_place_of_the_whole() -> None:
    rules = [f"rule{number}" for number in range(20)]

    def bad(off: frozenset[str]) -> bool:
        return not {"s3", "rule7"} & off

    found = search(NAMES[:10], bad, parts={"s3": rules})
    assert found.cure == ("rule7",)
    assert found.causes == (Cause("rule7", alone=True),)


def test_a_part_of_a_partner_is_named_in_place_of_the_whole() -> None:
    rules = [f"rule{number}" for number in range(20)]

    def bad(off: frozenset[str]) -> bool:
        return "s1" not in off and not {"s3", "rule7"} & off

    (cause,) = search(NAMES[:10], bad, parts={"s3": rules}).causes
    assert (cause.switch, cause.together) == ("s1", ("rule7",))


def test_a_whole_that_is_more_than_its_parts_is_named_itself() -> None:
    found = search(NAMES[:10], Asked({"s3"}), parts={"s3": ["rule1", "rule2"]})
    assert found.cure == ("s3",)


def test_what_a_switch_needs_is_left_on_when_it_is_asked_alone() -> None:
    found = search(
        ["fusion", "other", "level"],
        Asked({"fusion", "level"}),
        needs={"fusion": ("level",), "other": ("level",)},
    )
    assert found.causes == (Cause("fusion", alone=True),)


def test_stopped_early_it_gives_the_least_that_was_seen_to_help() -> None:
    def stopping(ask: Ask, after: int) -> Ask:
        runs = 0

        def one(off: frozenset[str]) -> bool:
            nonlocal runs
            runs += 1
            if runs > after:
                raise StoppedError("no runs left")
            return ask(off)

        return one

    found = search(NAMES, stopping(Asked({"s10"}), 3))
    assert found.why == "no runs left"
    assert "s10" in found.cure
    assert len(found.cure) < 60
    assert search(NAMES, stopping(Asked({"s10"}), 0)).cure == ()
