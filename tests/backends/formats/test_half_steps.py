"""Steps and weights in half precision: what rounding them does is no fault; what is more, is."""

from __future__ import annotations

import pytest
import torch

import packed_folders as pack
from driftwalk_backends.formats.folders.declaring import declared_in
from driftwalk_backends.formats.folders.layouts import rounded
from driftwalk_backends.formats.in_libraries import ROUNDOFFS

HALF = 0.501


@pytest.mark.parametrize("dtype", ROUNDOFFS)
def test_rounding_to_a_dtype_changes_a_number_by_so_much_at_most(dtype: torch.dtype) -> None:
    values = 1 + torch.arange(1 << 14).double() / (1 << 14)
    changed = ((values.to(dtype).double() - values) / values).abs().max()
    assert 0.9 * ROUNDOFFS[dtype] < changed <= ROUNDOFFS[dtype]


def test_numbers_may_be_rounded_by_steps_before_these_are_stored_in_half_precision() -> None:
    """As GPTQ's packers do: numbers by steps in float32, steps then in float16."""
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    steps = 2 * weight.abs().amax(1, keepdim=True) / 255
    numbers = (weight / steps + 128).round().clamp(0, 255).long()
    held = pack.gptq_tensors(numbers, steps, torch.full((64, 1), 128), torch.zeros(96).long(), 8)
    says = declared_in(pack.gptq_says(8, 96), "here")
    assert says is not None
    assert rounded("layer", held, says).honest(weight.numpy()).is_right
    held["scales"][0, 3] *= 1.02
    assert rounded("layer", held, says).honest(weight.numpy()).wrong_steps == 1


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("times", [1.0, 1.005, 1.01, 1.02, 1.05])
def test_a_step_is_wrong_where_a_number_is_more_than_half_of_it_off(
    bits: int, times: float
) -> None:
    """Told by the bits of the folder, read one at a time, as by the harness."""
    says = pack.gptq_says(bits)
    known = declared_in(says, "here")
    assert known is not None
    for seed in range(3):
        weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed))
        held = pack.gptq(bits, symmetric=False)("layer", weight)
        held["scales"][0, 3] *= times
        is_owed = pack.farthest(held, weight, says) > HALF
        found = rounded("layer", held, known).honest(weight.numpy())
        assert found.is_right != is_owed
        assert times > 1 or not is_owed
