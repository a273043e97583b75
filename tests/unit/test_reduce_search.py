"""The search of `reduce` on simulated subjects: it knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftwalk.tasks.reduce.search import Allowance, Search, SpentError, fewest, least

NUMBERS = st.integers(1, 40)


@given(NUMBERS, st.data())
def test_fewest_ends_with_the_very_items_that_are_needed(many: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, many - 1), min_size=1))
    last = list(range(many))
    for kept in fewest(range(many), lambda items: needed <= set(items)):
        assert needed <= set(kept)
        assert len(kept) < len(last)
        last = kept
    assert last == sorted(needed)


@given(NUMBERS, st.integers(0, 2**32))
def test_whatever_fewest_gives_was_seen_to_hold_and_can_lose_no_item(many: int, seed: int) -> None:
    """Of an oracle that is neither monotone nor in any other way well-behaved."""

    def holds(items: Sequence[int]) -> bool:
        return bool(items) and hash((seed, *items)) % 3 > 0

    last = list(range(many))
    for kept in fewest(range(many), holds):
        assert holds(kept)
        last = kept
    assert not any(holds([*last[:i], *last[i + 1 :]]) for i in range(len(last)))


@given(NUMBERS, st.data())
def test_least_finds_where_it_begins_to_hold(most: int, data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, most))
    asked: list[int] = []
    assert least(most, lambda n: asked.append(n) is None and n >= limit) == limit
    assert len(asked) <= 8


@given(NUMBERS, st.integers(0, 2**32))
def test_least_is_what_was_seen_to_hold_or_all(most: int, seed: int) -> None:
    found = least(most, lambda n: hash((seed, n)) % 2 == 0)
    assert found == most or hash((seed, found)) % 2 == 0


@dataclass(frozen=True)
class Form:
    """What a simulated subject shows."""

    end: int
    nodes: tuple[int, ...]
    longest: int
    drift: int
    """Which drift it is: another number is another one."""
    plain: bool = False
    share: float = 1.0
    ratio: float = 50.0

    @property
    def size(self) -> tuple[int, int, int]:
        return len(self.nodes), self.longest, self.longest


class Simulated:
    """Nodes in a row, some of which are needed; what lacks one of them shows another drift."""

    def __init__(self, needed: frozenset[int], shortest: int) -> None:
        self.needed, self.shortest = needed, shortest
        self.asked = 0

    def _same(self, form: Form) -> Form | None:
        self.asked += 1
        whole = self.needed <= set(form.nodes) and form.end >= max(self.needed)
        drift = 1 if whole and form.longest >= self.shortest else 2
        return replace(form, drift=drift) if drift == 1 else None

    def ends(self, state: Form) -> list[str]:
        return [str(node) for node in state.nodes if node < state.end]

    def ending(self, state: Form, end: str) -> Form | None:
        nodes = tuple(n for n in state.nodes if n <= int(end))
        return self._same(replace(state, end=int(end), nodes=nodes))

    def guess(self, state: Form) -> list[int]:
        return []

    def parts(self, state: Form) -> list[int]:
        return list(state.nodes)

    def keeping(self, state: Form, parts: Sequence[int]) -> Form | None:
        return self._same(replace(state, nodes=tuple(parts)))

    def idle(self, state: Form) -> list[int]:
        return []

    def passing(self, state: Form, part: int) -> Form | None:
        return None

    def lengths(self, state: Form) -> list[int]:
        return [state.longest]

    def shortened(self, state: Form, length: int, size: int) -> Form | None:
        return self._same(replace(state, longest=size))

    def plainer(self, state: Form) -> list[str]:
        return ["random all", "rounded to 1 digits"]

    def made_plain(self, state: Form, how: str) -> Form | None:
        return self._same(replace(state, plain=True))


FORMS = st.tuples(
    st.frozensets(st.integers(0, 30), min_size=1), st.integers(1, 60), st.integers(0, 120)
)


@given(FORMS)
def test_a_search_ends_with_what_is_needed_and_never_with_another_drift(
    form: tuple[frozenset[int], int, int],
) -> None:
    needed, shortest, runs = form
    begin = Form(30, tuple(range(31)), 60, 1)
    told: list[Form] = []
    search = Search(
        Simulated(needed, shortest), begin, Allowance(runs), lambda _, f: told.append(f)
    )
    finished = search.run()
    assert search.finished == finished
    assert all(one.drift == 1 for one in [search.state, *told])
    assert needed <= set(search.state.nodes)
    if finished:
        assert set(search.state.nodes) == needed
        assert search.state.longest == shortest
        assert search.state.plain


@given(FORMS)
def test_a_search_that_goes_on_from_an_earlier_one_ends_as_one_that_was_never_stopped(
    form: tuple[frozenset[int], int, int],
) -> None:
    needed, shortest, runs = form
    begin = Form(30, tuple(range(31)), 60, 1)
    subject = Simulated(needed, shortest)
    whole = Search(subject, begin, Allowance())
    whole.run()
    asked = subject.asked
    first = Search(subject, begin, Allowance(runs))
    first.run()
    subject.asked = 0
    second = Search(subject, begin, Allowance(), answers=first.asked)
    assert second.run()
    assert second.state == whole.state
    assert second.asked == whole.asked
    assert second.allowance.runs == len(whole.asked) - len(first.asked)
    assert subject.asked <= asked - first.asked.count("0")


def test_answers_of_another_search_are_not_believed_once_one_is_wrong() -> None:
    subject = Simulated(frozenset({3}), 1)
    search = Search(subject, Form(30, tuple(range(31)), 60, 1), Allowance(), answers="1" * 50)
    assert search.run()
    assert search.state.nodes == (3,)


def test_what_was_found_is_kept_when_somebody_stops_the_search() -> None:
    class Stopped(Simulated):
        def keeping(self, state: Form, parts: Sequence[int]) -> Form | None:
            raise KeyboardInterrupt

    search = Search(Stopped(frozenset({3, 5}), 1), Form(30, tuple(range(31)), 60, 1), Allowance())
    assert not search.run()
    assert search.state.nodes == tuple(range(6))


def test_of_ends_that_are_the_cause_of_a_part_the_largest_is_taken() -> None:
    class Shared(Simulated):
        def ending(self, state: Form, end: str) -> Form | None:
            share = {"3": 0.3, "7": 0.6, "9": 0.5}.get(end)
            nodes = tuple(range(int(end) + 1))
            made = replace(state, end=int(end), nodes=nodes, share=share or 0.0)
            return made if share else None

    search = Search(Shared(frozenset({3}), 1), Form(30, tuple(range(31)), 4, 1), Allowance())
    search._end_earlier()
    assert (search.state.end, search.state.share) == (7, 0.6)


def test_an_allowance_ends_by_its_clock_too() -> None:
    now = [0.0]
    allowance = Allowance(minutes=1, clock=lambda: now[0])
    allowance.take()
    now[0] = 60.0
    with pytest.raises(SpentError):
        allowance.take()
    assert allowance.runs == 1


@pytest.mark.parametrize(
    ("long", "power", "left"), [(1000, 1, 63), (400, 1, 50), (60, 1, 30), (1000, 2, 317)]
)
def test_a_drift_may_fade_with_its_axis_until_that_is_short_and_if_faster_to_a_tenth(
    long: int, power: int, left: int
) -> None:
    class Fading(Simulated):
        def shortened(self, state: Form, length: int, size: int) -> Form | None:
            return replace(state, longest=size, ratio=long * (size / long) ** power)

    begin = Form(30, (1,), long, 1, ratio=float(long))
    search = Search(Fading(frozenset({1}), 1), begin, Allowance())
    search.run()
    assert search.state.longest == left


def test_parts_that_hand_on_what_they_take_are_left_out() -> None:
    class Idle(Simulated):
        def idle(self, state: Form) -> list[int]:
            return [2, 3]

        def passing(self, state: Form, part: int) -> Form | None:
            return replace(state, nodes=tuple(n for n in state.nodes if n != part))

    search = Search(Idle(frozenset({1, 2, 3}), 1), Form(3, (0, 1, 2, 3), 4, 1), Allowance())
    search._fewer_parts()
    search._no_idle_parts()
    assert search.state.nodes == (1,)


def test_where_halving_ends_above_what_is_short_some_odd_lengths_are_tried() -> None:
    class Odd(Simulated):
        def shortened(self, state: Form, length: int, size: int) -> Form | None:
            return replace(state, longest=size) if size in (50, 250) else None

    search = Search(Odd(frozenset({1}), 1), Form(30, (1,), 500, 1), Allowance())
    search.run()
    assert search.state.longest == 50
