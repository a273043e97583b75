"""Choices are seen where computed numbers make them, and close ones tip over."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import zoo
from driftwalk.registry import create
from driftwalk_backends.choices import Recorded, Tipped, exchanged
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

SCORES = torch.tensor([[5.0, 3.0, 1.0, 0.9, -2.0]], dtype=torch.float64)
NOISE = torch.tensor([[0.1, -0.1, 0.1, -0.1, 0.1]], dtype=torch.float64)


def tipped(choose, scores=SCORES, noise=NOISE, reach=3.0):
    """What a choice gives plainly, and where close numbers have changed places."""
    with Recorded() as recorded:
        plain = choose(scores + noise)
    with Tipped(recorded.scores, reach) as mode:
        other = choose(scores.clone())
    return plain, other, mode.count


@pytest.mark.parametrize(
    "choose",
    [
        lambda s: s.topk(3).indices,
        lambda s: s.sort(descending=True).indices[:, :3],
        lambda s: s.argsort(descending=True)[:, :3],
        lambda s: (-s).topk(3, largest=False).indices,
    ],
    ids=["topk", "sort", "argsort", "smallest"],
)
def test_what_is_closer_than_its_noise_changes_places_and_nothing_else(choose):
    plain, other, count = tipped(choose)
    assert plain.tolist() == [[0, 1, 2]]
    assert other.tolist() == [[0, 1, 3]]
    assert count == 2


def test_a_choice_that_is_clear_does_not_tip_over():
    plain, other, count = tipped(lambda s: s.topk(2).indices)
    assert plain.tolist() == other.tolist()
    assert count == 2  # the third and the fourth, of which none was asked for
    assert tipped(lambda s: s.topk(3).indices, noise=0.001 * NOISE)[2] == 0


@pytest.mark.parametrize("best", [1, 2, 3, 4])
def test_of_a_chain_of_close_numbers_the_one_that_parts_the_best_tips_over(best):
    scores = torch.tensor([[1.0, 0.99, 0.98, 0.97, 0.96]], dtype=torch.float64)
    _, other, _ = tipped(lambda s: s.topk(best).indices, scores, NOISE * 0.1)
    assert set(other[0].tolist()) != set(range(best))


def test_a_row_of_numbers_next_to_equal_is_dealt_anew():
    scores = 1 + torch.linspace(0.01, 0, 32, dtype=torch.float64)[None]
    noise = 0.01 * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(16)[None]
    _, other, _ = tipped(lambda s: s.topk(8).indices, scores, noise)
    moved = (other[0] - torch.arange(8)).abs()
    assert moved.min() >= 8  # neighbours that change places would still be among the best


ROWS = st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=40)


@given(ROWS, st.floats(1e-3, 1.0), st.integers(0, 5))
def test_numbers_change_places_with_close_ones_and_each_is_still_there_once(row, noise, best):
    values = torch.tensor(sorted(row, reverse=True), dtype=torch.float64)
    room, noisy = torch.full_like(values, noise), torch.ones(len(row), dtype=torch.bool)
    places = exchanged(values, room, noisy, best)
    assert sorted(places.tolist()) == list(range(len(row)))
    # One that is left over changes places with a neighbour that has changed places before.
    assert ((values[places] - values).abs() <= 2 * noise).all()
    gaps = (values[:-1] - values[1:]).abs() <= noise
    stays = places == torch.arange(len(row))
    assert not (stays[:-1] & gaps).any()
    assert not (stays[1:] & gaps).any()


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (lambda s: s.argmax(), 3),
        (lambda s: s.max(-1).indices.item(), 3),
        (lambda s: (-s).argmin(-1).item(), 3),
    ],
    ids=["argmax of all", "max along an axis", "argmin"],
)
def test_the_second_best_is_chosen_where_it_is_as_good(choose, expected):
    scores = torch.tensor([[0.0, -1.0, 5.0, 4.95]], dtype=torch.float64)
    plain, other, _ = tipped(choose, scores, NOISE[:, :4])
    assert int(plain) == 2
    assert int(other) == expected


def test_a_threshold_tips_over_only_next_to_it():
    _, other, count = tipped(lambda s: s > 0.95)
    assert other.tolist() == [[True, True, False, True, False]]
    assert count == 2


def test_zeros_and_infinities_have_no_noise_and_tip_nothing():
    scores = torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf, 3.0]], dtype=torch.float64)
    plain, other, count = tipped(lambda s: s.topk(4).indices, scores, 0 * NOISE)
    assert plain.tolist() == other.tolist()
    assert count == 0
    assert tipped(lambda s: torch.relu(s) > 0, -SCORES.abs())[2] == 0


def test_equal_numbers_that_compete_for_the_last_places_tip_over_without_noise():
    """Which of them top-k takes is nowhere laid down; that argmax takes the first is."""
    scores, none = torch.full((1, 4), 0.5, dtype=torch.float64), torch.zeros(1, 4)
    plain, other, count = tipped(lambda s: s.topk(2).indices, scores, none)
    assert not set(plain[0].tolist()) & set(other[0].tolist())
    assert count == 2
    assert tipped(lambda s: (-s).topk(2, largest=False).indices, scores, none)[2] == 2
    assert tipped(lambda s: s.argmax(-1), scores, none)[2] == 0
    assert tipped(lambda s: s.topk(4).indices, scores, none)[2] == 0
    clear = torch.tensor([[0.5, 0.7, 0.5, 0.7]], dtype=torch.float64)
    assert tipped(lambda s: s.topk(2).indices, clear, none)[2] == 0
    _, other, count = tipped(lambda s: s.topk(3).indices, clear, none)
    assert {1, 3} < set(other[0].tolist())
    assert count == 1
    masked = torch.full((1, 4), -torch.inf, dtype=torch.float64)
    assert tipped(lambda s: s.topk(2).indices, masked, none)[2] == 0


def test_numbers_made_of_integers_and_constants_are_nobodys_choice():
    def masks(ids):
        mask = ids.to(torch.float64)
        later = torch.zeros(3, dtype=torch.float64)
        later[0] = 1.0
        return (1.0 - mask).argmax(-1), mask[:1] > 0.5, later > 0

    with Recorded() as recorded:
        masks(torch.tensor([1, 1, 0]))
    assert recorded.scores == {}


def test_a_constant_that_computed_numbers_are_written_into_is_none_any_more():
    with Recorded() as recorded:
        room = torch.zeros(1, 5, dtype=torch.float64)
        room[:, 1:] = SCORES[:, 1:]
        room.argmax(-1)
    assert len(recorded.scores) == 1


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "vit", "albert", "whisper"])
def test_a_model_without_choices_is_not_run_again(name):
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    with create("truth", model) as truth:
        truth.jittered(probe, 2.0**-9, lambda state: None)
        handed = []
        assert truth.tipped(probe, 1e9, handed.append) == 0
        assert not handed


class Twice(nn.Module):
    """One stack of blocks that encodes two inputs, one after the other."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.first = first

    def encode(self, x, layers):
        for layer in layers:
            x = x + torch.tanh(layer(x))
        return x

    def forward(self, x, y):
        short = None if not self.first else self.encode(y, self.layers[:2])
        long = self.encode(x, self.layers)
        short = self.encode(y, self.layers[:2]) if short is None else short
        return long.mean(1) + short.mean(1)


@pytest.mark.parametrize("first", [True, False], ids=["short one first", "long one first"])
def test_a_stack_that_runs_twice_is_walked_once(first):
    import driftwalk

    generator = torch.Generator().manual_seed(0)
    probe = {
        "x": torch.randn(2, 5, 8, generator=generator).numpy(),
        "y": torch.randn(2, 4, 8, generator=generator).numpy(),
    }
    module = Twice(first)
    clean = driftwalk.verify(module, "emulated:bf16", probe=probe)
    assert clean.ok, clean.reason
    names = [row.point.name for row in clean.layers]
    assert names[:4] == ["embed", "layer.0", "layer.1", "layer.2"]
    assert any("called 5 times" in note for note in clean.notes)
    wrong = Twice(first)
    wrong.layers[1].weight.data *= 0.5
    found = driftwalk.verify(module, driftwalk.backend("emulated:bf16", wrong), probe=probe)
    assert found.root_cause.point.name == "layer.1"
