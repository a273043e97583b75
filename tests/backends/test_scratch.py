"""Memory that is used again: nothing that an operation gave is ever written to."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk_backends import scratch


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(scratch, "LEAST", 1)
    scratch.free()
    yield
    scratch.free()


def weights(count=4, shape=(6, 10)):
    torch.manual_seed(0)
    return [torch.randn(shape).bfloat16() for _ in range(count)]


FREED = """
import re
from pathlib import Path
from driftwalk.budget import trim

def resident():
    line = re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())
    return int(line[1]) / 1024

trim()
made = [bytes([1]) * 100_000 for _ in range(1000)]
kept = made[::10]
made.clear()
held = resident()
trim()
print(held, resident())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_what_was_freed_between_states_goes_back():
    command = [sys.executable, "-c", FREED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    held, after = map(float, done.stdout.split())
    assert after < held - 20, "90 MB were freed between what is kept"


def test_the_next_operation_has_the_same_memory():
    seen = set()

    def look(weight):
        numbers = scratch.cast(weight, torch.float64)
        seen.add(numbers.data_ptr())
        return numbers.sum()

    for weight in weights():
        got = scratch.run(lambda w=weight: look(w))
        assert got == weight.double().sum()
    assert len(seen) == 1


def test_what_is_given_back_as_it_is_stays_what_it_is():
    one, other = weights(2)
    kept = scratch.run(lambda: scratch.cast(one, torch.float64)[2:])
    scratch.run(lambda: scratch.cast(other, torch.float64).sum())
    torch.testing.assert_close(kept, one.double()[2:], rtol=0, atol=0)


def test_an_operation_inside_of_another_leaves_its_numbers_alone():
    one, other, third = weights(3)

    def outer():
        mine = scratch.cast(one, torch.float64)
        for weight in (other, third):
            scratch.run(lambda w=weight: scratch.cast(w, torch.float64).sum())
        return mine.sum(), mine.clone()

    total, copy = scratch.run(outer)
    assert total == one.double().sum()
    torch.testing.assert_close(copy, one.double(), rtol=0, atol=0)


def test_an_operation_that_fails_gives_its_memory_back():
    (one,) = weights(1)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            scratch.run(lambda: scratch.cast(one, torch.float64) @ torch.zeros(3, 3))
    assert scratch._scratch.taken == 0


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 9),
            st.integers(1, 9),
            st.booleans(),
            st.sampled_from([torch.float32, torch.float64]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_casts_are_those_of_torch_and_lie_alike(shapes):
    torch.manual_seed(len(shapes))
    given_ = [torch.randn(n, m).bfloat16() for n, m, _, _ in shapes]
    given_ = [w.t() if turned else w for w, (_, _, turned, _) in zip(given_, shapes, strict=True)]

    def check():
        made = [scratch.cast(w, d) for w, (*_, d) in zip(given_, shapes, strict=True)]
        for ours, weight, (*_, dtype) in zip(made, given_, shapes, strict=True):
            theirs = weight.to(dtype)
            assert ours.stride() == theirs.stride()
            assert ours.dtype == dtype
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)

    scratch.run(check)
