"""What the message of a failed try teaches the next guess: one tiny model for each rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from demanding_models import (
    Album,
    AsksForStates,
    Boxes,
    Chooses,
    Counts,
    Ends,
    HandsOn,
    Indexes,
    Joins,
    Listens,
    Masks,
    Mono,
    Pads,
    Placed,
    Pyramid,
    Questions,
    Separated,
    Series,
    Shortens,
    Table,
    TakesNoIds,
    TakesStates,
    Unpacks,
    Windows,
    WithConfig,
    WritesIntoText,
)
from driftwalk.errors import ProbeError
from driftwalk.states import Probe
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

Tensor = torch.Tensor


def found(model: nn.Module) -> Probe:
    return make_probe(open_model(model.eval()))


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, tuple[int, ...]]]] = {
    "handed on under another name": (
        lambda: HandsOn(vocab_size=20, hidden_size=8),
        {"input_ids": (2, 16), "shown": (2, 16, 8)},
    ),
    "a mask, and what it is for": (
        lambda: Masks(vocab_size=20, hidden_size=8),
        {"seen_attention_mask": (2, 16), "seen_embeds": (2, 16, 8)},
    ),
    "an axis more, as there are too many indices": (Indexes, {"input_values": (2, 1, 16000)}),
    "as many frames as the other has": (Joins, {"input_features": (2, 50, 80)}),
    "images that are folded into rows": (
        lambda: Album(vocab_size=20, image_size=24),
        {"pixel_values": (2, 2, 3, 24, 24), "image_attention_mask": (2, 16, 2)},
    ),
    "states, as ids are not expected": (
        lambda: TakesStates(vocab_size=20, hidden_size=8),
        {"inputs_embeds": (2, 16, 8)},
    ),
    "states, as ids are to be None": (
        lambda: TakesNoIds(vocab_size=20, hidden_size=8),
        {"inputs_embeds": (2, 16, 8)},
    ),
    "states, as the message asks for them": (
        lambda: AsksForStates(vocab_size=20, hidden_size=8),
        {"inputs_embeds": (2, 16, 8)},
    ),
    "a text with room for features": (
        lambda: WritesIntoText(vocab_size=20, image_size=24),
        {"input_ids": (2, 36), "where_mask": (2, 36), "pixel_values": (2, 3, 24, 24)},
    ),
    "as many patches as positions": (Table, {"pixel_values": (2, 3, 24, 24)}),
    "whole windows": (
        lambda: Windows(image_size=32, patch_size=4, num_windows=3),
        {"pixel_values": (2, 3, 36, 36)},
    ),
    "sides that can be halved": (
        lambda: Pyramid(image_size=40, patch_size=4),
        {"pixel_values": (2, 3, 64, 64)},
    ),
    "sizes that a line names": (
        lambda: Unpacks(image_size=24, hidden_size=8),
        {"hidden_states": (2, 3, 24, 24)},
    ),
    "whole numbers as an index": (Chooses, {"x": (2, 16, 4), "order": (2, 16, 4)}),
    "whole numbers by name": (
        lambda: Counts(vocab_size=20),
        {"input_ids": (2, 16), "part_sizes": (2,)},
    ),
    "waves with channels": (Pads, {"input_values": (2, 1, 16000)}),
    "waves, though there are mel bins": (Listens, {"input_values": (2, 16000)}),
    "waves with one channel": (Mono, {"input_values": (2, 1, 16000)}),
    "what is padding in a series, and a column": (
        Series,
        {"past_values": (2, 64), "past_values_padding": (2, 64), "freq": (2, 1)},
    ),
    "a wave that is long enough": (Shortens, {"x": (2, 4096)}),
    "patches and their places": (
        Placed,
        {"pixel_values": (2, 16, 48), "pixel_position_ids": (2, 16, 2)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_message_leads_to_the_next_guess(name: str) -> None:
    make, shapes = CASES[name]
    inputs = found(make()).inputs
    assert {n: array.shape for n, array in inputs.items() if n in shapes} == shapes


@pytest.mark.parametrize(
    ("make", "token", "times"),
    [
        (lambda: Questions(vocab_size=500, question_token_id=7), 7, 1),
        (lambda: Separated(vocab_size=500, sep_token_id=9), 9, 3),
        (lambda: Ends(vocab_size=500, eos_token_id=3), 3, 1),
    ],
)
def test_an_id_that_a_message_calls_by_its_name(
    make: Callable[[], nn.Module], token: int, times: int
) -> None:
    model = make()
    model.table = nn.Embedding(500, 8)
    ids = found(model).inputs["input_ids"]
    assert (ids == token).sum(1).tolist() == [times, times]


def test_boxes_stay_in_the_range_that_a_message_states() -> None:
    boxes = found(Boxes(hidden_size=8)).inputs["boxes"]
    assert boxes.shape == (2, 16, 4)
    assert (boxes[..., 2:] >= boxes[..., :2]).all()
    assert len(np.unique(boxes)) > 8


def test_an_image_does_not_grow_to_windows_far_larger_than_itself() -> None:
    sides = []

    class Watched(Windows):
        def forward(self, pixel_values: Tensor) -> Tensor:
            sides.append(pixel_values.shape[-1])
            return super().forward(pixel_values)

    with pytest.raises(ProbeError, match="No default probe"):
        found(Watched(image_size=32, patch_size=4, num_windows=200))
    assert max(sides) < 4 * 200


def test_an_image_is_not_made_larger_without_end() -> None:
    values = []

    class NeverLargeEnough(WithConfig):
        main_input_name = "pixel_values"

        def forward(self, pixel_values: Tensor) -> Tensor:
            values.append(pixel_values.numel())
            raise ValueError("The image is too small.")

    with pytest.raises(ProbeError, match="too small"):
        found(NeverLargeEnough(image_size=64))
    assert len(values) > 2
    assert max(values) <= 1 << 24
