"""How strictly a layer is judged by what it introduced: as the kind of candidate it is of."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
from driftwalk.judge.blame import root_cause
from driftwalk.judge.calibrate import Calibration, calibrate
from driftwalk.judge.constants import YARDSTICKS
from driftwalk.judge.honest import ROOM, SAME, limits
from driftwalk.judge.sides import JudgedSide
from driftwalk.measure.norms import NORM_NAMES, ZERO, Norms, norms_of
from driftwalk.registry import create
from driftwalk_backends.demo import faulty_decoder
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

WIDE = 4096


@pytest.fixture(scope="module")
def known() -> Calibration:
    model = open_model("demo:decoder")
    with create("truth", model) as truth, create("torch:cpu:fp32", model) as yardstick:
        return calibrate(truth, yardstick, make_probe(model))


def errors(known: Calibration, factor: float, *, but: str = "") -> dict[str, Norms]:
    """The yardstick's own introduced errors times a factor; four times that at one point."""
    return {
        name: own.noise.scaled(4 * factor if name == but else factor)
        for name, own in known.own.items()
    }


def test_a_candidate_like_the_yardstick_is_held_to_k(known: Calibration) -> None:
    for given in (errors(known, 0.7), errors(known, 0.7, but="layer.3")):
        assert all(getattr(known.room(given), name) == 1.0 for name in NORM_NAMES)


def test_another_implementation_gets_what_its_typical_layer_needs_and_no_more(
    known: Calibration,
) -> None:
    for factor in (1.2, 1.4, 100.0):
        given = known.room(errors(known, factor))
        for name in NORM_NAMES:
            assert getattr(given, name) == pytest.approx(min(factor, getattr(ROOM, name)))


def test_a_copy_is_held_to_half_of_k_and_to_unrelated_roundoffs(known: Calibration) -> None:
    same = dict.fromkeys(known.own, ZERO) | {"layer.3": known.own["layer.3"].noise}
    room = known.room(same)
    assert room == SAME
    own, strict = known.own["layer.3"].noise, known.allowed_own("layer.3", room)
    usual = known.allowed_own("layer.3", Norms(*[1.0] * 10))
    for name in NORM_NAMES:
        assert getattr(strict, name) >= YARDSTICKS / 2 * getattr(own, name)
        assert getattr(strict, name) < getattr(usual, name)
    floor = known.own["layer.3"].size
    assert floor.spectral < floor.spread / 2


@pytest.mark.parametrize(("may_be_copy", "share"), [(True, 2.0), (False, 1.0)])
def test_another_attention_is_no_copy_however_few_layers_have_one(
    known: Calibration, may_be_copy: bool, share: float
) -> None:
    side = JudgedSide("candidate", known)
    for state in known.truth:
        side.meet(state)
    alone = dict.fromkeys(known.own, ZERO) | {
        "layer.3": known.own["layer.3"].noise.scaled(YARDSTICKS / 2)
    }
    side.judge_layers(alone, may_be_copy)
    judged = side.judged("layer.3")
    assert judged is not None
    room = Norms(*[1 / share] * 10)
    most = alone["layer.3"].over(known.allowed_own("layer.3", room))[0]
    assert judged.needed == pytest.approx(most, rel=0.1)


def test_the_middle_of_many_tokens_is_held_to_less_in_coarse_formats() -> None:
    half, single = 2.0**-8, 2.0**-24
    assert limits(single, 10_000, WIDE).token_middle == pytest.approx(YARDSTICKS, rel=1e-3)
    assert limits(half, 1, WIDE).token_middle == YARDSTICKS
    assert 1.5 < limits(half, 64, WIDE).token_middle < 2
    assert limits(half, 10_000, WIDE).token_worst == pytest.approx(YARDSTICKS, rel=1e-2)


def test_the_extremes_of_few_tokens_are_given_more_room() -> None:
    for roundoff in (2.0**-24, 2.0**-8):
        rooms = [limits(roundoff, rows, WIDE).peak for rows in (1, 2, 16, 1000)]
        assert rooms == sorted(rooms, reverse=True)
        assert rooms[0] == 5 * YARDSTICKS


def test_the_floor_in_the_last_norm_is_what_noise_of_that_shape_has() -> None:
    """The strongest pattern of independent roundoffs is near what the scale says."""
    rng = np.random.default_rng(0)
    for rows, width in ((64, 64), (40, 300), (500, 20)):
        noise = rng.choice([-1.0, 1.0], (rows, width))
        bound = norms_of(noise).spectral
        assert 0.9 * bound < np.linalg.norm(noise, 2) < 1.1 * bound


def test_a_fault_below_the_truth_s_noise_still_has_a_root_cause() -> None:
    """One layer differs by its own doing, and nothing is guilty against the truth."""
    report = driftwalk.verify("demo:decoder", candidate=faulty_decoder(3))
    assert all(layer.tolerance is not None for layer in report.layers)
    assert report.layer("layer.3").tolerance.by_own_doing
    assert root_cause({}, report.layers) == "layer.3"
    assert root_cause({}, report.layers[:4]) is None


class LaidOut(nn.Module):
    """Blocks that are given states by columns; of states by rows a kernel makes a little more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Transposing() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x.mT.contiguous().mT)
        return x


class Transposing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        other_kernel = x.is_contiguous() and x.dtype == torch.float32
        return x + torch.tanh(self.linear(x)) * (1 + 1e-4 * other_kernel)


def test_a_copy_that_gives_the_same_bits_is_not_judged_by_what_a_replay_makes_otherwise() -> None:
    model, probe = LaidOut(), {"x": np.random.default_rng(0).standard_normal((2, 6, 8), np.float32)}
    report = driftwalk.verify(model, copy.deepcopy(model), probe=probe)
    assert report.verdict == "pass", report.first_divergence
    wrong = copy.deepcopy(model)
    wrong.layers[1].linear.weight.data *= 1.01
    found = driftwalk.verify(model, wrong, probe=probe)
    assert found.root_cause.point.name == "layer.1"


@pytest.mark.parametrize("same_code", [True, False])
def test_another_runtime_is_no_copy_however_many_layers_it_computes_alike(
    known: Calibration, same_code: bool
) -> None:
    """Its convolutions may be bit by bit the same, and its norms another implementation."""
    side = JudgedSide("candidate", known)
    for state in known.truth:
        side.meet(state)
    alone = dict.fromkeys(known.own, ZERO)
    alone |= {"layer.3": known.own["layer.3"].noise.scaled(YARDSTICKS * 0.9)}
    side.judge_layers(alone, same_code=same_code)
    judged = side.judged("layer.3")
    assert judged is not None
    assert (judged.needed > 1) == same_code
    assert bool(side.changed_layers) == same_code
