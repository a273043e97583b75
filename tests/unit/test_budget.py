"""Sizes of memory, the watcher that keeps to one, and what is chosen to fit it."""

from __future__ import annotations

import cProfile
import re
import time
from contextlib import ExitStack
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftwalk import budget as module
from driftwalk.budget import Needs, anonymous_memory, in_words, kept, parse_size
from driftwalk.errors import BudgetError, UsageError
from driftwalk.memory_plan import Asked, choose, plans

MIB = 2**20
linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@given(st.integers(1, 10**6), st.sampled_from(sorted(UNITS)), st.booleans(), st.booleans())
def test_sizes_as_people_write_them(number, unit, spaced, lower):
    text = f"{number}{' ' if spaced else ''}{unit}"
    assert parse_size(text.lower() if lower else text) == number * UNITS[unit]


@given(st.integers(1, 2**60))
def test_bytes_and_what_is_printed_of_them(size):
    assert parse_size(size) == parse_size(str(size)) == size
    assert size <= parse_size(in_words(size)) < size + MIB


def test_parts_of_a_unit():
    assert parse_size("1.5GiB") == 1536 * MIB
    assert parse_size("0.25 MB") == 250_000


@given(st.text(max_size=8) | st.floats() | st.booleans() | st.none() | st.integers(max_value=0))
def test_nonsense_is_refused_by_name(text):
    if isinstance(text, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*([KMGT]?i?B)?\s*", text, re.I):
        return
    with pytest.raises(UsageError, match="budget="):
        parse_size(text)


@pytest.mark.parametrize("text", ["8", "1.5", "8G", "8 gigabytes", "-8GiB", "0GiB", "GiB", "8GiBs"])
def test_what_could_be_meant_otherwise(text):
    if text == "8":
        assert parse_size(text) == 8
        return
    with pytest.raises(UsageError, match=re.escape(repr(text))):
        parse_size(text)


def test_where_the_system_does_not_say(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_PAGES", tmp_path / "none")
    with pytest.raises(UsageError, match="on Linux only"), kept(2**50):
        pytest.fail("must not begin")


@linux
def test_less_than_is_taken_already():
    with pytest.raises(UsageError, match=r"1MiB is less than this process takes already"), kept(1):
        pytest.fail("must not begin")


@linux
def test_anonymous_memory_is_what_was_written():
    piece = bytes([1]) * MIB  # no copy of all of it: the heap might keep that
    before = anonymous_memory()
    # Fresh pages, whatever this process has freed before.
    with mmap(-1, 64 * MIB, MAP_PRIVATE | MAP_ANONYMOUS) as held:
        for _ in range(64):
            held.write(piece)
        taken = anonymous_memory() - before
    assert 60 * MIB < taken < 90 * MIB


def hog(until: int, held: list[np.ndarray]) -> None:
    """Take more and more memory, and let nobody stop it who raises an Exception."""
    for _ in range(until // MIB):
        try:
            held.append(np.ones(MIB, np.uint8))
            time.sleep(0.0005)
        except Exception:
            held.clear()


@linux
def test_a_run_over_its_budget_is_stopped_and_cleans_up():
    held: list[np.ndarray] = []
    cleaned: list[bool] = []
    over = pytest.raises(BudgetError, match=r"Stopped at \d+MiB.*more than the budget")
    with over as caught, kept(anonymous_memory() + 64 * MIB), ExitStack() as opened:
        opened.callback(cleaned.append, True)
        hog(1024 * MIB, held)
    assert caught.value.exit_code == 3
    assert cleaned
    assert 32 < len(held) < 512, "stopped soon after it was over"


@linux
def test_an_error_that_the_stop_was_made_into_is_told_by_its_cause():
    def wrapped() -> None:
        try:
            hog(1024 * MIB, [])
        except BaseException as error:
            raise RuntimeError("a library's own") from error

    with pytest.raises(BudgetError), kept(anonymous_memory() + 32 * MIB):
        wrapped()


@linux
def test_a_run_within_its_budget_is_left_alone():
    with kept(anonymous_memory() + 512 * MIB):
        hog(32 * MIB, [])
    with pytest.raises(ZeroDivisionError), kept(anonymous_memory() + 512 * MIB):
        raise ZeroDivisionError
    with kept(None):
        pass


NEEDS = Needs((4 * MIB, MIB, MIB), 40 * MIB, 30 * MIB, 2 * MIB)
COPIES = {False: {"weights of truth": 800 * MIB}, True: {"weights of truth": 3 * MIB}}


def ways(**asked):
    return list(plans(NEEDS, 300 * MIB, COPIES, Asked(calibrates=True, **asked)))


def test_the_fastest_way_that_fits_is_taken():
    all_ways = ways()
    assert [(w.lent, w.spilled, w.looks_inside) for w in all_ways] == [
        *((False, False, True), (True, False, True), (True, True, True)),
        *((False, False, False), (True, False, False), (True, True, False)),
    ]
    assert choose(all_ways, 2**40, []) is all_ways[0]
    for way in all_ways[:3]:
        assert choose(all_ways, way.total, []) is way
    assert all_ways[0].total > all_ways[1].total > all_ways[2].total > all_ways[5].total


def test_a_spilled_trace_is_counted_as_such():
    assert all(way.spilled for way in ways(spills=True))
    assert {way.looks_inside for way in ways(own_model=True)} == {True}


def test_models_that_choose_and_finer_sides_take_more():
    plain = ways()[0].total
    assert ways(finest=8)[0].total > plain
    branches = Needs(NEEDS.states, 0, NEEDS.activations, NEEDS.widest, chooses=True)
    without = Needs(NEEDS.states, 0, NEEDS.activations, NEEDS.widest)
    asked = Asked(calibrates=True)
    two = [next(plans(n, 0, COPIES, asked)).total for n in (branches, without)]
    assert two[0] - two[1] >= 16 * sum(NEEDS.states)


def test_a_refusal_names_what_would_do_and_that_does():
    all_ways = ways()
    with pytest.raises(UsageError) as caught:
        choose(all_ways, 400 * MIB, ["a shorter probe"])
    text = str(caught.value)
    least = int(re.search(r"The smallest budget that would do: (\d+)MiB", text)[1])
    assert all_ways[5].total <= least * MIB < all_ways[5].total + 18 * MIB
    assert choose(all_ways, least * MIB, []).total <= least * MIB
    for part in ("too small", "weights of truth 3MiB", "states", "float64", "a shorter probe"):
        assert part in text


def test_a_profiler_works_after_a_budget():
    with kept(anonymous_memory() + 1024 * MIB):
        pass
    with pytest.raises(BudgetError), kept(anonymous_memory() + 32 * MIB):
        hog(1024 * MIB, [])
    # A process of CPython 3.11 hangs here if somebody has taken an asynchronous error back.
    with cProfile.Profile() as profile:
        Path("a") / "b"
    assert profile.getstats()
