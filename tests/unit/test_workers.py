"""Work shared out among threads: in order, errors handed on, nothing shared out twice."""

from __future__ import annotations

from threading import get_ident
from time import sleep

import pytest

from driftwalk.workers import in_threads, sharers


def test_threads_keep_the_order_and_hand_errors_on():
    assert in_threads(lambda n: n * n, range(100)) == [n * n for n in range(100)]
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda n: 1 // (n - 50), range(100))


def test_work_inside_of_work_stays_in_its_thread():
    def inner(_: int) -> int:
        return len({get_ident(), *in_threads(lambda m: sleep(1e-4) or get_ident(), range(10))})

    assert set(in_threads(inner, range(20))) == {1}


def test_small_items_are_not_worth_a_thread():
    def threads(least: int) -> set[int]:
        return {*in_threads(lambda _: sleep(1e-3) or get_ident(), [4] * 40, lambda n: n, least)}

    assert threads(least=5) == {get_ident()}
    if sharers() > 1:
        assert len(threads(least=4)) > 1


@pytest.mark.skipif(sharers() < 2, reason="there is one core")
def test_what_is_much_larger_than_the_rest_has_all_threads_for_itself():
    def inner(_: int) -> int:
        return len({*in_threads(lambda m: sleep(1e-3) or get_ident(), range(100))})

    sizes = [1] * 10 + [1000]
    *small, large = in_threads(inner, sizes, lambda size: size)
    assert set(small) == {1}
    assert large > 1
