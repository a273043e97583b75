"""Casts that a runtime leaves out: what a layer in float may be off by, and no other."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftwalk.adapter import BackendInfo, Sink
from driftwalk.dtypes import FORMATS, Array
from driftwalk.judge.unrounded import added, unrounded
from driftwalk.mixture import UNROUNDED, Mixture
from driftwalk.states import Point, Probe, State, Trace

TYPES = {"embed": "fp32", "layer.0": "fp32", "layer.1": "fp16", "layer.2": "fp16", "norm": "fp32"}


class Doubles:
    """A truth, each of whose layers gives twice what it is given."""

    def replay(self, probe: Probe, states: dict[str, Array], sink: Sink) -> None:
        for before, name in pairwise(states):
            sink(State(Point(name), 2.0 * states[before].astype(np.float64)))


def trace(scale: float, seed: int = 0) -> Trace:
    """States whose layers double what they are given; those in half precision are rounded to it."""
    array = scale * np.random.default_rng(seed).standard_normal((2, 5, 8))
    states = []
    for number, (name, dtype) in enumerate(TYPES.items()):
        kind = np.float16 if dtype == "fp16" else np.float64
        states.append(State(Point(name), (array * 2**number).astype(kind)))
    info = BackendInfo("made", "made", "cpu", "fp16", dtypes=TYPES)
    return Trace(tuple(states), Probe({"input_ids": np.ones((2, 5), np.int64)}), info)


@given(st.floats(1e-2, 1e3), st.integers(0, 9))
def test_only_a_layer_in_float_after_one_in_half_precision_may_be_off(
    scale: float, seed: int
) -> None:
    """By twice half a last digit of what it is given at most, beside its own rounding."""
    made = trace(scale, seed)
    found = unrounded(Doubles(), made, Mixture("fp16", TYPES, casts=UNROUNDED))
    assert list(found) == ["norm"]
    ours = made["norm"] - 2.0 * made["layer.2"].astype(np.float64)
    off = np.abs(found["norm"] - ours)
    assert (off <= np.spacing(np.abs(made["layer.2"])).astype(np.float64) * 1.0001).all()
    assert off.max() > 0.1 * FORMATS["fp16"].roundoff * np.abs(made["layer.2"]).min()


def test_a_state_that_is_stored_coarser_than_it_was_made_counts_as_well() -> None:
    made = trace(1.0)
    mixture = Mixture("fp16", dict.fromkeys(TYPES, "fp32"), {"layer.0": "fp16"}, casts=UNROUNDED)
    assert list(unrounded(Doubles(), made, mixture)) == ["layer.1"]


@pytest.mark.parametrize(
    "mixture",
    [
        Mixture("fp16", TYPES),
        Mixture("fp16", casts=UNROUNDED),
        Mixture("fp16", {**TYPES, "norm": "fp16"}, casts=UNROUNDED),
    ],
    ids=["casts are kept", "one dtype", "half precision to the end"],
)
def test_nothing_is_allowed_where_no_cast_is_left_out(mixture: Mixture) -> None:
    assert unrounded(Doubles(), trace(1.0), mixture) == {}


def test_a_mixture_says_that_casts_are_left_out() -> None:
    info = replace(trace(1.0).backend, flags={"casts": UNROUNDED})
    mixture = Mixture.of(info)
    assert mixture.casts == UNROUNDED
    assert str(mixture).endswith("casts left out")
    assert str(mixture) != str(Mixture.of(trace(1.0).backend))


def test_both_kinds_of_jumps_are_added() -> None:
    one, other = np.array([1.0, 2.0]), np.array([0.5, 0.25])
    found = added({"a": one, "b": one}, {"b": other, "c": other})
    assert [found[name].tolist() for name in "abc"] == [[1, 2], [1.5, 2.25], [0.5, 0.25]]
