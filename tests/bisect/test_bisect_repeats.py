"""Flaky candidates: the right switch at the stated confidence, and steady ones at no great cost."""

from __future__ import annotations

import random

import pytest

from driftwalk.tasks.bisect.repeats import (
    Repeats,
    at_least,
    lower_bound,
    questions_for,
    searched,
)
from driftwalk.tasks.bisect.search import StoppedError

NAMES = [f"s{number}" for number in range(60)]


class Flaky:
    """Bad in a share of its runs where the guilty switches are all on."""

    def __init__(self, guilty: set[str], share: float, seed: int) -> None:
        self.guilty, self.share = guilty, share
        self.luck, self.runs = random.Random(seed), 0

    def __call__(self, off: frozenset[str]) -> bool:
        self.runs += 1
        return not self.guilty & off and self.luck.random() < self.share


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_the_right_switch_in_at_least_19_of_20_trials(share: float) -> None:
    right = 0
    for trial in range(100):
        guilty = NAMES[(7 * trial) % 60]
        repeats = Repeats(Flaky({guilty}, share, trial), questions_for(60))
        found = searched(NAMES, repeats)
        right += found.named == (guilty,)
        assert repeats.steady or abs(repeats.rate - share) < 0.45
    assert right >= 95


def test_two_that_only_together_cause_it_in_half_of_the_runs() -> None:
    right = 0
    for trial in range(20):
        pair = {NAMES[trial], NAMES[59 - trial]}
        repeats = Repeats(Flaky(pair, 0.5, trial), questions_for(60))
        right += set(searched(NAMES, repeats).named) == pair
    assert right >= 19


@pytest.mark.parametrize("guilty", NAMES[::7])
def test_a_steady_candidate_takes_at_most_12_runs_beyond_the_first_two(guilty: str) -> None:
    """The first two: the one that was verified, which is no run of the search, and all off."""
    oracle = Flaky({guilty}, 1.0, 0)
    repeats = Repeats(oracle, questions_for(60))
    found = searched(NAMES, repeats)
    assert found.cure == (guilty,)
    assert repeats.steady
    assert oracle.runs - 1 <= 12


def test_as_many_repeats_as_were_asked_for() -> None:
    oracle = Flaky({"s1"}, 1.0, 0)
    repeats = Repeats(oracle, questions_for(4), times=3)
    assert searched(NAMES[:4], repeats).cure == ("s1",)
    assert all(any(runs) or len(runs) == 3 for runs in repeats.seen.values())


def test_the_bound_holds_with_the_confidence() -> None:
    bound = lower_bound(10, 20, 0.025)
    assert bound == pytest.approx(0.2720, abs=1e-3)  # Clopper and Pearson, 10 of 20
    assert at_least(10, 20, bound) == pytest.approx(0.025, rel=1e-6)


def test_a_search_that_must_stop_in_between_gives_what_it_has() -> None:
    oracle = Flaky({"s1"}, 1.0, 0)

    def limited(off: frozenset[str]) -> bool:
        if oracle.runs == 9:
            raise StoppedError("9 runs")
        return oracle(off)

    found = searched(NAMES, Repeats(limited, questions_for(60)))
    assert found.why == "9 runs"
    assert "s1" in found.cure
