"""States beyond a budget come back from a file, bit by bit as they were."""

from __future__ import annotations

import weakref
from contextlib import closing

import numpy as np
import pytest

from driftwalk.dtypes import FORMATS
from driftwalk.states import Point, State, read_only
from driftwalk.traces.spill import Spill, SpilledState


def states():
    rng = np.random.default_rng(0)
    for number, name in enumerate(["fp32", "fp16", "bf16", "fp64"]):
        array = rng.standard_normal((2, 3, 5 + number)).astype(FORMATS[name].dtype)
        yield State(Point(f"layer.{number}", "h"), read_only(array))
    yield State(Point("empty"), np.zeros((2, 0, 3), np.float32))
    yield State(Point("scalar"), np.array(3.5))
    yield State(Point("turned"), np.arange(6.0).reshape(2, 3).T)


def test_a_spilled_state_is_the_state_it_was():
    with closing(Spill(0)) as spill:
        for given in states():
            kept = spill.keep(given)
            assert kept.point == given.point
            assert kept.dtype == given.dtype
            assert kept.array.shape == given.array.shape
            assert kept.array.tobytes() == given.array.tobytes()
            assert not kept.array.flags.writeable


def test_only_what_exceeds_the_budget_is_spilled():
    one = State(Point("a"), np.ones(100))
    with closing(Spill(2 * one.array.nbytes)) as spill:
        kept = [spill.keep(one) for _ in range(4)]
        assert [isinstance(state, SpilledState) for state in kept] == [False, False, True, True]
        assert kept[0] is one


def test_an_output_that_is_the_last_state_comes_from_the_file_too():
    logits, other = np.ones((2, 3)), np.ones((2, 3))
    with closing(Spill(0)) as spill:
        spill.keep(State(Point("logits"), read_only(logits)))
        found = spill.outputs({"logits": read_only(logits), "other": other})
        assert not np.shares_memory(found["logits"], logits)
        assert found["logits"].tolist() == logits.tolist()
        assert found["other"] is other


def test_what_is_mapped_outlives_the_file():
    with closing(Spill(0)) as spill:
        array = spill.keep(State(Point("a"), np.arange(5.0))).array
    assert array.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="closed"):
        spill.keep(State(Point("b"), np.arange(5.0)))


def test_an_output_from_the_file_is_in_memory_only_while_it_is_looked_at():
    logits = np.ones((2, 3))
    with closing(Spill(0)) as spill:
        spill.keep(State(Point("logits"), read_only(logits)))
        found = spill.outputs({"logits": read_only(logits)})
        array = found["logits"]
        seen = weakref.ref(array)
        assert dict(found).keys() == {"logits"}
        assert len(found) == 1
        del array
        assert seen() is None
