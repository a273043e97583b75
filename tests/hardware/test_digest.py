"""Digests and patterns: no flip escapes, and each is named; the same everywhere."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from driftwalk_backends.hardware.digest import ROW, as_text, digest, locate, mixed
from driftwalk_backends.hardware.inject import Injection
from driftwalk_backends.hardware.patterns import PATTERNS, raw, values

CPU = torch.device("cpu")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_one_flip_changes_both_sums_and_is_named(dtype: torch.dtype) -> None:
    drawn = random.Random(str(dtype))
    for _ in range(40):
        tensor = torch.randn(drawn.randint(1, 3 * ROW)).to(dtype)
        flip = Injection(
            element=drawn.randrange(tensor.numel()), bit=drawn.randrange(8 * dtype.itemsize)
        )
        found = flip.flipped(tensor)
        right, wrong = as_text([digest(tensor), digest(found)])
        assert right[:16] != wrong[:16]
        assert right[16:] != wrong[16:]
        count, flips = locate(tensor, found)
        assert (count, flips[0].element, flips[0].bits) == (1, flip.element, (flip.bit,))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_sign_is_a_bit_like_any_other(dtype: torch.dtype) -> None:
    top = 8 * dtype.itemsize - 1
    found = Injection(element=2, bit=top).flipped(torch.ones(4).to(dtype))
    assert found.double().tolist() == [1.0, 1.0, -1.0, 1.0]


def test_places_and_length_count() -> None:
    some = torch.randn(4, ROW)
    moved = some.flip(0)
    told = as_text([digest(x) for x in (some, moved, torch.zeros(3), torch.zeros(4))])
    assert len(set(told)) == 4


def test_how_a_tensor_lies_in_memory_does_not_count() -> None:
    base = torch.randn(7, 33)
    odd = torch.cat([torch.zeros(1), base.reshape(-1)])[1:].view(7, 33)  # starts in mid-word
    turned = base.t().contiguous().t()
    assert len({*as_text([digest(x) for x in (base, odd, turned)])}) == 1


def test_the_sums_are_those_of_the_formula() -> None:
    """Python's own whole numbers, word by word: what a device forms is no more and no less."""
    tensor = torch.randn(2 * ROW + 5, dtype=torch.float64)
    words = tensor.numpy().view(np.uint64).tolist()
    from driftwalk_backends.hardware.digest import _SEEDS, _first_rows, _tables

    tables, rows = _tables(CPU).tolist(), _first_rows(CPU).tolist()
    expected = ""
    for number in range(2):
        total = tensor.nbytes * _SEEDS[0]
        for place, word in enumerate(words):
            total += word * tables[number][place % ROW] * rows[number][place // ROW]
        expected += f"{total % 2**64:016x}"
    assert as_text([digest(tensor)]) == [expected]
    assert all(weight % 2 for weights in (*tables, *rows) for weight in weights)


def test_more_rows_than_are_kept_continue_the_same_numbers() -> None:
    from driftwalk_backends.hardware import digest as module

    whole = mixed(10, 3, CPU)
    assert torch.equal(whole[4:], mixed(6, 3, CPU, start=4))
    kept = module._odd_rows(CPU, 5, 3)
    made = torch.stack([mixed(3, seed, CPU, 5) | 1 for seed in module._SEEDS])
    assert torch.equal(kept, made)


def test_the_stream_is_splitmix64() -> None:
    """Against the same steps in whole numbers of Python: every machine makes these weights."""

    def step(place: int, seed: int) -> int:
        z = ((place + 1) * 0x9E3779B97F4A7C15 + seed * 0xD1342543DE82EF95 + 1) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    found = [value % 2**64 for value in mixed(50, 12345, CPU).tolist()]
    assert found == [step(place, 12345) for place in range(50)]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_patterns_are_finite_and_what_they_are_called(dtype: torch.dtype, pattern: str) -> None:
    found = values(pattern, (9, 16), dtype, CPU, 1).double()
    assert torch.isfinite(found).all()
    assert found.unique().numel() > 2
    tiny = torch.finfo(dtype).tiny
    assert (found.abs() < tiny).all() == (pattern == "denormals")


def test_raw_words() -> None:
    checker = raw(4, "checkerboard", CPU, 0).tolist()
    assert [value % 2**64 for value in checker] == [0x5555555555555555, 0xAAAAAAAAAAAAAAAA] * 2
    assert raw(65, "walking", CPU, 0)[64] == 1
    assert raw(100, "random", CPU, 1).unique().numel() == 100


def test_a_bad_injection_is_refused_by_name() -> None:
    from driftwalk.errors import UsageError

    with pytest.raises(UsageError, match="there is no 'layer'"):
        Injection.parse("layer=2")
    with pytest.raises(UsageError, match="'x' is not a number"):
        Injection.parse("state=layer.2,bit=x")
    read = Injection.parse("state=layer.2,element=5,bit=3,repeat=1")
    assert read == Injection("layer.2", 5, 3, 1)
    hits = [read.strikes("cpu", "any", s, r, None) for s in ("layer.2", "norm") for r in (0, 1)]
    assert hits == [False, True, False, False]


def test_probability_is_kept_and_seeded() -> None:
    often = Injection(probability=0.25, seed=3)
    struck = [often.strikes("cpu", "case", "out", repeat, None) for repeat in range(2000)]
    assert 420 < sum(struck) < 580
    assert struck == [often.strikes("cpu", "case", "out", repeat, None) for repeat in range(2000)]
