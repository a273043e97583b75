"""What comes from a GPU is what was there, whatever its size and its layout."""

from __future__ import annotations

import pytest
import torch

from driftwalk_backends.fetching import PIECE, fetched

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SIZES = [(0,), (3,), (513, 1025), (PIECE // 4 - 1,), (PIECE // 4 + 1,), (5, PIECE // 4)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", SIZES)
def test_every_bit_arrives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randint(-(2**31), 2**31, shape, device="cuda").to(dtype)
    assert torch.equal(fetched(tensor), tensor.cpu())


def test_columns_and_parts_of_a_tensor_arrive_in_order() -> None:
    tensor = torch.randn(1500, 2500, device="cuda")
    for one in (tensor.T, tensor[:, ::2], tensor[7:], tensor.expand(2, -1, -1)):
        assert torch.equal(fetched(one), one.cpu())


def test_what_is_computed_later_does_not_show() -> None:
    tensor = torch.ones(4096, 4096, device="cuda", dtype=torch.float64)
    kept = fetched(tensor)
    tensor.mul_(2)
    torch.cuda.synchronize()
    assert bool((kept == 1).all())
