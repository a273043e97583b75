"""Repeats, majorities, verdicts: pure functions of digests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driftwalk.errors import UsageError
from driftwalk.majority import Vote, vote
from driftwalk.tasks.hardware.checks import between
from driftwalk.tasks.hardware.repeats import Findings, Tally
from driftwalk.tasks.hardware.result import DeviceResult, Flip, Round, worst_verdict
from driftwalk.tasks.hardware.work import LEVELS, MOST, Log, level_named


def told(expected: Any, found: Any, state: str) -> tuple[int, int, tuple[Flip, ...]]:
    """One element differs; what was expected and found are the values themselves."""
    flip = Flip(0, (0,), (1,), float(expected[state]), float(found[state]), "0", "1")
    return 1, 4, (flip,)


def run(*values: tuple[int, int], by_design: tuple[str, ...] = ()) -> Tally:
    """Repeats of two states, each a whole number."""
    tally = Tally("repeat", "model", told, by_design=by_design)
    for at, (first, second) in enumerate(values):
        states = {"layer.0": first, "layer.1": second}
        tally.add({name: str(value) for name, value in states.items()}, states, float(at), None)
    return tally


def test_all_the_same() -> None:
    tally = run((1, 2), (1, 2), (1, 2))
    assert tally.finish().verdict == "no fault found"
    assert tally.mismatches == []
    assert tally.digests == {"layer.0": "1", "layer.1": "2"}


@pytest.mark.parametrize("wrong", [0, 1, 2, 4])
def test_the_odd_repeat_is_named_wherever_it_stands(wrong: int) -> None:
    values = [(1, 2)] * 5
    values[wrong] = (9, 8)
    tally = run(*values)
    assert tally.finish().verdict == "fault"
    (found,) = tally.mismatches
    assert (found.repeat, found.state) == (wrong, "layer.0")
    assert (found.flips[0].expected, found.flips[0].found) == (1.0, 9.0)
    assert "1 later" in found.note
    assert tally.digests["layer.0"] == "1"


def test_two_different_repeats_before_two_agree() -> None:
    tally = run((5, 5), (1, 6), (1, 2), (1, 2))
    assert [(m.repeat, m.state) for m in tally.mismatches] == [(0, "layer.0"), (1, "layer.1")]


def test_no_two_agree() -> None:
    tally = run((1, 1), (2, 2), (3, 3))
    case = tally.finish()
    assert case.verdict == "fault"
    assert case.digest == ""
    assert "which one is right is not known" in tally.mismatches[0].note


def test_one_repeat_proves_nothing() -> None:
    assert run((1, 1)).finish().verdict == "not comparable"


def test_what_is_random_by_design_is_said_and_not_blamed() -> None:
    tally = run((1, 1), (1, 1), (1, 3), by_design=("scatter_add_cuda",))
    case = tally.finish()
    assert case.verdict == "not comparable"
    assert "scatter_add_cuda" in case.note
    findings = Findings("repeat")
    findings.take(tally)
    assert findings.summed_up("", 0.0).verdict == "not comparable"
    assert findings.mismatches == []


def test_thousands_of_mismatches_are_counted_and_not_kept() -> None:
    tally = run((1, 1), (1, 1), *((n, n) for n in range(2, 502)))
    assert len(tally.mismatches) + tally.unlisted == 500
    assert len(tally.mismatches) == 20
    assert tally.finish().note == "500 of 502 repeats differ"


def voters(*patterns: str) -> dict[str, dict[str, str]]:
    return {
        f"cuda:{number}": {"embed": "e", "layer.0": pattern[0], "layer.1": pattern[1]}
        for number, pattern in enumerate(patterns)
    }


def states(found: Vote) -> dict[str, list[str]]:
    """The outliers, and where each of them differs."""
    return {name: [ballot.name for ballot in lost] for name, lost in found.outliers.items()}


def test_the_outlier_is_named_by_majority() -> None:
    found = vote(voters("ab", "ab", "ax", "ab"))
    assert states(found) == {"cuda:2": ["layer.1"]}
    assert not found.undecided
    found = vote(voters("xy", "ab", "ab"))
    assert states(found) == {"cuda:0": ["layer.0", "layer.1"]}


def test_of_two_nobody_can_say_which() -> None:
    found = vote(voters("ab", "ax"))
    assert not found.outliers
    assert [ballot.name for ballot in found.undecided] == ["layer.1"]
    assert not found.unanimous


def test_half_is_no_majority_and_one_is_no_vote() -> None:
    torn = vote(voters("ab", "ab", "ax", "ax"))
    assert [ballot.name for ballot in torn.undecided] == ["layer.1"]
    assert not vote(voters("ab")).unanimous
    assert vote(voters("ab", "ab")).unanimous


def test_nothing_in_common_is_not_unanimous() -> None:
    assert not vote({"a": {"x": "1"}, "b": {"y": "1"}}).unanimous


def device(name: str, bits: str, model: str = "H200") -> DeviceResult:
    digests = {f"repeat | model fp32 | layer.{i}": bit for i, bit in enumerate(bits)}
    return DeviceResult(name, {"model": model}, (), digests)


def test_devices_of_one_model_are_held_against_each_other() -> None:
    same = between([device("cuda:0", "ab"), device("cuda:1", "ab")])
    assert same.verdict == "no fault found"
    odd = between([device("cuda:0", "ab"), device("cuda:1", "ax"), device("cuda:2", "ab")])
    assert odd.verdict == "fault"
    assert "odd one out is cuda:1" in odd.sentence
    assert odd.mismatches[0].state == "layer.1"
    two = between([device("cuda:0", "ab"), device("cuda:1", "ax")])
    assert two.verdict == "fault"
    assert "cannot be said which" in two.sentence


def test_devices_of_different_models_are_not_comparable() -> None:
    found = between([device("cuda:0", "ab"), device("cuda:1", "cd", "H100")])
    assert found.verdict == "not comparable"
    assert "only one of its kind" in found.sentence


def test_the_worst_verdict() -> None:
    assert worst_verdict([]) == "not comparable"
    assert worst_verdict(["not comparable", "no fault found"]) == "no fault found"
    assert worst_verdict(["no fault found", "fault", "not comparable"]) == "fault"


def test_levels() -> None:
    assert level_named("soak", 2.0).load_seconds == 120
    assert level_named("quick") is LEVELS["quick"]
    for name, minutes in (("quik", None), ("quick", 3.0), ("soak", 0.0), ("soak", float("nan"))):
        with pytest.raises(UsageError):
            level_named(name, minutes)


def test_the_log_stays_small_and_keeps_what_is_wrong() -> None:
    log = Log()
    fine = Round("load", "model", 0, 0.0, 0.1, True)
    for repeat in range(10 * MOST):
        log.note(replace(fine, repeat=repeat, ok=repeat % 997 != 5))
    assert len(log.rounds) <= MOST
    wrong = [done.repeat for done in log.rounds if not done.ok]
    assert wrong == [n for n in range(10 * MOST) if n % 997 == 5]
    assert [done.repeat for done in log.rounds] == sorted(done.repeat for done in log.rounds)


def test_a_log_of_faults_alone_stays_small_too() -> None:
    log = Log()
    for repeat in range(5 * MOST):
        log.note(Round("load", "model", repeat, 0.0, 0.1, False))
    assert len(log.rounds) <= MOST
