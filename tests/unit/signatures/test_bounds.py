"""The bounds hold: on random differences far more often than they promise, on facts always."""

from __future__ import annotations

import math

import numpy as np
import pytest

from driftwalk.dtypes import FORMATS
from driftwalk.judge.constants import SIGNATURE_CHANCE
from driftwalk.signatures.bounds import difference, interval, needed, needed_l2
from driftwalk.signatures.data import Signature
from driftwalk.signatures.make import COUNT, VARIANCE, places, weights
from driftwalk.states import BackendInfo, Point, Probe, State, Trace
from driftwalk.tolerance import Tolerance


def signed(array: np.ndarray, seed: int = 0, **inputs: np.ndarray):
    probe = Probe(inputs or {"input_ids": np.zeros((1, 2), np.int64)})
    made = Trace((State(Point("layer.0"), array),), probe, BackendInfo("a", "a", "cpu", "fp32"))
    return Signature.of(made, seed).states[0]


def test_the_stream_never_changes() -> None:
    """Signatures in git outlive versions of numpy: these numbers are part of the format."""
    drawn = weights(3, 5, 7).astype(int)
    assert drawn[0, :16].tolist() == [-2, 1, -1, 1, 3, 1, -2, 2, 1, 1, 1, 0, 0, 1, 0, 2]
    assert weights(4, 5, 7).tolist() == drawn[1:].tolist()
    assert places(1000, 7).tolist()[:6] == [922, 410, 403, 900, 128, 854]


def test_weights_have_mean_zero_and_the_variance_they_say() -> None:
    drawn = weights(0, 20_000, 1)
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.var() - VARIANCE) < 0.02
    together = drawn.T @ drawn / len(drawn)
    assert abs(together - VARIANCE * np.eye(COUNT)).max() < 0.1, "columns do not depend on others"


def test_the_interval_is_chernoffs() -> None:
    low, high = interval(64, 1e-6)
    for x in (low, high):
        assert (x * math.exp(1 - x)) ** 32 == pytest.approx(1e-6)
    assert 0 < low < 1 < high
    assert interval(64, 1e-3)[0] > low
    assert interval(256, 1e-6)[1] < high


KINDS = {
    "broad": lambda rng, n: rng.standard_normal(n),
    "one element": lambda rng, n: np.eye(1, n, int(rng.integers(n)))[0] * 3,
    "two elements": lambda rng, n: np.isin(np.arange(n), rng.integers(n, size=2)) * 1.0,
    "a stripe": lambda rng, n: (np.arange(n) % 16 == 3) * 1.0,
    "constant": lambda rng, n: np.ones(n),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_true_lies_within_the_bounds(kind: str) -> None:
    estimates = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        r = rng.standard_normal((2, 8, 16)).astype(np.float32)
        d = (10.0 ** rng.uniform(-6, 1)) * KINDS[kind](rng, r.size).reshape(r.shape)
        c = (r + d).astype(np.float32)
        true, size = c.astype(np.float64) - r, np.abs(r.astype(np.float64))
        ours, theirs = signed(r, seed), signed(c, seed)
        found, samples = difference(ours, theirs, True)
        l2, most = float(np.linalg.norm(true)), float(np.abs(true).max())
        assert found.l2_low <= l2 <= found.l2_high
        assert found.max_abs_low <= most <= found.max_abs_high
        estimates.append((found.l2 / l2) ** 2 if l2 else 1.0)
        for room in (Tolerance(1e-3, 1e-2), Tolerance(1e-3), Tolerance(0.0, 0.5)):
            with np.errstate(divide="ignore"):
                true_need = (np.abs(true) / (room.atol + room.rtol * size)).max()
            low, high = needed(ours, found, samples, room, 1.0)
            assert low <= true_need * (1 + 1e-9)
            assert high >= true_need * (1 - 1e-9)
        low, high = needed_l2(ours, found, 1e-3)
        true_need = l2 / (1e-3 * np.linalg.norm(r.astype(np.float64)))
        assert low <= true_need * (1 + 1e-9)
        assert high >= true_need * (1 - 1e-9)
    assert np.mean(estimates) == pytest.approx(1, abs=0.12), "the estimate is unbiased"


def test_a_bound_that_cannot_hold_would_be_seen() -> None:
    """With intervals of no width, the test above fails: its data reach both ends."""
    ratios = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        d = rng.standard_normal(256)
        y = d @ weights(0, 256, seed) / math.sqrt(VARIANCE * COUNT)
        ratios.append(float(y @ y / (d @ d)))
    low, high = interval()
    assert min(ratios) < 0.75
    assert max(ratios) > 1.3
    assert low < min(ratios)
    assert max(ratios) < high
    assert SIGNATURE_CHANCE == 1e-6


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "tf32"])
def test_every_dtype(name: str) -> None:
    r = np.random.default_rng(0).standard_normal((1, 4, 8)).astype(FORMATS[name].dtype)
    one = signed(r)
    assert one.dtype == name
    assert difference(one, signed(r.copy()), True)[0].exact
    c = r.copy()
    c[0, 1, 2] += np.asarray(1, r.dtype)
    found, _ = difference(one, signed(c), True)
    true = abs(float(c[0, 1, 2]) - float(r[0, 1, 2]))
    assert not found.exact
    assert found.l2_low <= true <= found.l2_high


@pytest.mark.parametrize("size", [1e-300, 1e-40, 1.0, 1e150, 1e300])
def test_any_magnitude(size: float) -> None:
    r = np.random.default_rng(1).standard_normal((1, 4, 8)) * size
    one, other = signed(r), signed(r * (1 + 1e-6))
    assert one.moments.rms == pytest.approx(math.sqrt(np.mean((r / size) ** 2)) * size)
    found, _ = difference(one, other, True)
    true = float(np.linalg.norm(r / size * 1e-6))
    assert found.l2_low / size <= true * (1 + 1e-6)
    assert found.l2_high / size >= true * (1 - 1e-6)
    assert found.l2_high / size < 3 * true


def test_what_is_lost_by_rounding_is_within_the_bounds() -> None:
    """Beside an outlier, small elements fall below the unit: the projections cannot see them."""
    r = np.random.default_rng(3).standard_normal((1, 4, 8)) * 1e-9
    r[0, 0, 0] = 1e9
    c = r.copy()
    c[0, 1:] += 1e-7
    ours, theirs = signed(r), signed(c)
    assert ours.projections == theirs.projections
    found, _ = difference(ours, theirs, True)
    assert found.l2_low <= np.linalg.norm(c - r) <= found.l2_high
    assert found.max_abs_low <= 1e-7 * (1 + 1e-9) <= found.max_abs_high


def test_without_a_common_seed_only_facts_are_left() -> None:
    r = np.random.default_rng(2).standard_normal((1, 4, 8))
    found, _ = difference(signed(r, 0), signed(r + 1e-3, 1), False)
    assert math.isnan(found.l2)
    assert found.max_abs_high >= 1e-3
    assert found.max_abs_low == pytest.approx(1e-3), "extremes and quantiles moved by that much"
