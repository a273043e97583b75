"""Where roundings tip over: a few numbers of a channel may, all of its tokens together may not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from driftwalk.adapter import BackendInfo, Sink
from driftwalk.judge.calibrate import Calibration
from driftwalk.judge.drill import Concentration, Introduced, introduced
from driftwalk.judge.honest import honest
from driftwalk.judge.parts import EitherWay, used_by_parts
from driftwalk.judge.pooling import pooled
from driftwalk.judge.sides import JudgedSide
from driftwalk.measure.norms import ZERO, Norms, Weights, channel_but_few
from driftwalk.mixture import Mixture
from driftwalk.states import Point, Probe, State, Trace

ROWS, TOKENS, WIDTH = 2, 16, 64
LOGITS = Point("logits", "")
FP16 = 2.0**-11


@pytest.fixture(scope="module")
def true() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, TOKENS, WIDTH))


def tipped(true: np.ndarray, seed: int) -> np.ndarray:
    """An honest run: four numbers of each of 24 tokens have tipped over, and none of the others."""
    rng = np.random.default_rng(seed)
    made = true + 1e-7 * rng.standard_normal(true.shape)
    flat = made.reshape(-1, WIDTH)
    for token in rng.permutation(len(flat))[:24]:
        flat[token, rng.permutation(WIDTH)[:4]] += 1e-2
    return made


@pytest.fixture(scope="module")
def calibration(true: np.ndarray) -> Calibration:
    known = honest(tipped(true, 1), true, None, 2.0**-24, [tipped(true, 2)], tips=True)
    probe = Probe({"input_ids": np.ones((ROWS, TOKENS), np.int64)})
    info = BackendInfo("truth", "truth", "cpu", "fp64")
    truth = Trace((State(LOGITS, true),), probe, info)
    return pooled(Calibration(truth, {"logits": known}, {}, Mixture("fp32")))


def used(calibration: Calibration, made: np.ndarray) -> float:
    error = calibration.error(State(LOGITS, made))
    assert error is not None
    return error.over(calibration.allowed("logits"))[0]


def test_one_number_may_tip_over_as_far_as_any(true: np.ndarray, calibration: Calibration) -> None:
    made = true.copy()
    made[0, 3, 7] += 0.3
    plain = replace(calibration.total["logits"], alone=1.0)
    strict = replace(calibration, total={"logits": plain})
    assert used(calibration, made) < 1 < used(strict, made)


def test_a_channel_that_is_off_in_all_tokens_is_no_number_that_tipped_over(
    true: np.ndarray, calibration: Calibration
) -> None:
    made = true.copy()
    made[..., 7] += 0.04 * np.sign(np.random.default_rng(3).standard_normal((ROWS, TOKENS)))
    known = calibration.total["logits"]
    lenient = known.noise.channel * known.alone
    raised = replace(known, noise=replace(known.noise, channel=lenient), alone=1.0)
    assert used(replace(calibration, total={"logits": raised}), made) < 1 < used(calibration, made)


def test_few_is_one_in_eight_of_the_tokens_that_count() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 12, 5)), rng.standard_normal((2, 12, 5))
    keep = np.ones((2, 12), bool)
    keep[1, 7:] = False
    tokens, channels = rng.uniform(0.1, 2, 19), rng.uniform(0.1, 2, 5)
    off = np.square((a - b)[keep] * tokens[:, None] * channels)
    expected = math.sqrt(np.sort(off, axis=0)[:-3].sum(0).max() / 19)
    found = channel_but_few(a, b, keep, Weights(tokens, channels))
    assert found == pytest.approx(expected, rel=1e-12)
    assert channel_but_few(a[:, :1], b[:, :1], None, Weights(np.ones(2), channels)) > 0
    one = a[:1, :1], b[:1, :1], None, Weights(np.ones(1), channels)
    assert channel_but_few(*one) == 0.0


def part(off: float, tipped: float = 0.0, share: float = 0.0) -> Introduced:
    """A part of a layer whose tokens are all off by so much, relatively; a share, by another."""
    together = math.sqrt((1 - share) * off**2 + share * tipped**2)
    middle, worst = tipped if share > 0.5 else off, tipped if share else off
    error = Norms(together, worst, token_middle=middle, token_worst=worst)
    scale = Norms(1.0, 1.0, token_middle=1.0)
    return Introduced(Point("layer.1.mlp.up", "mlp.up"), error, scale, Concentration(), 32)


@pytest.mark.parametrize(("roundoffs", "drifts"), [(0.6, False), (2.0, False), (6.6, True)])
def test_a_part_in_half_precision_is_held_to_the_yardsticks_own(
    roundoffs: float, drifts: bool
) -> None:
    found, own = ({"layer.1.mlp.up": part(times * FP16)} for times in (roundoffs, 0.6))
    assert (used_by_parts(found, FP16, True, own)["layer.1"] > 1) == drifts
    assert used_by_parts(found, FP16, True)["layer.1"] < 1
    assert used_by_parts(found, FP16, False, own)["layer.1"] < 1


def test_a_yardstick_that_is_exact_leaves_what_rounding_leaves() -> None:
    own = {"layer.1.mlp.up": replace(part(0.0), error=ZERO)}
    for times, drifts in ((0.3, False), (0.6, True)):
        found = {"layer.1.mlp.up": part(times * FP16)}
        assert (used_by_parts(found, FP16, True, own)["layer.1"] > 1) == drifts


def test_a_part_may_be_as_far_off_as_the_same_part_of_the_yardstick_and_no_other() -> None:
    noisy, quiet = "layer.1.mlp.down", "layer.1.mlp.up"
    own = {noisy: part(0.011), quiet: part(0.001)}
    for name, drifts in ((noisy, False), (quiet, True)):
        found = own | {name: part(0.015)}
        assert (used_by_parts(found, 2.0**-8, True, own)["layer.1"] > 1) == drifts
    assert used_by_parts({noisy: part(0.015)}, 2.0**-8, True)["layer.1"] > 1


@pytest.mark.parametrize(("off", "drifts"), [(0.009, False), (0.015, False), (0.019, True)])
def test_where_many_tip_over_in_a_part_it_is_held_to_the_noisiest_of_its_kind(
    off: float, drifts: bool
) -> None:
    """A whole layer of a graph that rounds everywhere: which of its roundings tips over is luck."""
    own = {"layer.0": part(0.009), "layer.1": part(0.001), "layer.2.mlp.up": part(0.1)}
    used = used_by_parts({"layer.1": part(off)}, 2.0**-24, False, own)
    assert (used["layer.1"] > 1) == drifts
    assert (used_by_parts({"layer.1": part(off)}, 2.0**-24, False)["layer.1"] > 1) == (off > 0.01)


@pytest.mark.parametrize("by_chance", [False, True])
def test_that_nothing_tipped_over_in_other_layers_says_nothing_of_one_in_which_it_did(
    true: np.ndarray, calibration: Calibration, by_chance: bool
) -> None:
    names = [f"layer.{number}" for number in range(4)]
    states = tuple(State(Point(name, name), true) for name in names)
    known = dict.fromkeys(names, calibration.total["logits"])
    truth = replace(calibration.truth, states=states)
    side = JudgedSide("candidate", replace(calibration, truth=truth, total=known, own=known))
    side.meet_all(truth)
    most = side.calibration.allowed_own("layer.2")
    for share in (0.9, 1.1):
        introduced = dict.fromkeys(names, ZERO) | {"layer.2": most.scaled(share)}
        side.judge_layers(introduced, by_chance=by_chance)
        found = side.judged("layer.2")
        assert found is not None
        assert found.by_own_doing
        if by_chance:
            assert found.needed == pytest.approx(share)
        else:
            assert found.needed > 1.5


@pytest.mark.parametrize(("share", "drifts"), [(0.4, False), (0.01, True)])
def test_where_many_tokens_tip_over_the_median_may_be_one_of_them(
    share: float, drifts: bool
) -> None:
    """In the same part of any layer; the other parts are held to what they are off."""
    noisy, other = "layer.0.attention.o_proj", "layer.1.attention.o_proj"
    quiet = "layer.1.mlp.fc1"
    own = {noisy: part(0.6 * FP16, 5 * FP16, share), other: part(0.6 * FP16)}
    own[quiet] = part(0.6 * FP16)
    found = own | {other: part(0.6 * FP16, 5 * FP16, 0.6)}
    assert (used_by_parts(found, FP16, True, own)["layer.1"] > 1) == drifts
    assert used_by_parts(own | {quiet: part(5 * FP16)}, FP16, True, own)["layer.1"] > 1


def test_a_head_is_a_part_where_it_is_the_only_product_outside_of_layers() -> None:
    layer, head = part(0.0), replace(part(0.001), point=Point("logits", "lm_head"))
    whole = replace(layer, point=Point("layer.1", "h.1"))
    found = {"layer.1": whole, "layer.1.mlp.up": layer, "logits": head}
    inside = ("h.1.mlp.up", "h.1.mlp.down")
    assert used_by_parts(found, 2.0**-24, products=(*inside, "lm_head"))["logits"] > 1
    own = {**found, "logits": replace(head, error=part(0.002).error)}
    limits = {"roundoff": FP16, "yardstick": own, "products": (*inside, "lm_head")}
    assert used_by_parts({**found, "logits": own["logits"]}, **limits)["logits"] < 1
    for others in (inside, (*inside, "lm_head", "transform"), (*inside, "pooler")):
        assert "logits" not in used_by_parts(found, 2.0**-24, products=others)


class Halves:
    """Its one block rounds its input, and half-way numbers to the even one, or to the other."""

    def __init__(self) -> None:
        self.otherwise = False

    @contextmanager
    def half_way_otherwise(self) -> Iterator[None]:
        self.otherwise = True
        yield
        self.otherwise = False

    def made(self, x: np.ndarray) -> np.ndarray:
        half_way = np.abs(x - np.trunc(x)) == 0.5
        return np.where(half_way & self.otherwise, 2 * x - np.rint(x), np.rint(x))

    def replay(self, probe: Probe, given: Mapping[str, np.ndarray], sink: Sink) -> None:
        sink(State(Point("layer.1", "h.1"), self.made(given["layer.0"])))


def test_each_token_is_compared_with_the_way_that_its_ties_went() -> None:
    given = np.random.default_rng(0).standard_normal((1, 12, 5))
    given[..., 0] = 0.5 + np.arange(12)
    truth = Halves()
    even = truth.made(given)
    with truth.half_way_otherwise():
        odd = truth.made(given)
    own = np.where(np.arange(12)[:, None] % 3 == 0, odd, even)
    probe = Probe({"input_ids": np.ones((1, 12), np.int64)})
    info = BackendInfo("side", "side", "cpu", "fp32")
    for off in (0.0, 0.25):
        states = (State(Point("layer.0", "h.0"), given), State(Point("layer.1", "h.1"), own + off))
        plain, either = (
            introduced(blocks, Trace(states, probe, info))["layer.1"].error.max_abs
            for blocks in (truth, EitherWay(truth))
        )
        assert either == off
        assert plain == 1 + off
