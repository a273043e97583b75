"""A weight that packs itself in its first run is as it was afterwards; every run is the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
from driftwalk_backends.formats.in_libraries import UnknownFormatError, of_bitsandbytes
from driftwalk_backends.sources import open_model


@dataclass
class Note:
    """Whether a matrix is turned, and how it is scaled."""

    turned: bool = False
    scale: torch.Tensor = field(default_factory=lambda: torch.tensor(2.0))


class Packed(nn.Parameter):
    """A matrix of a class of its own."""


class Packs(nn.Module):
    """Turns its matrix in its first run, and notes that it did: bitsandbytes does it on some CPUs.

    The note is the module's as well as the weight's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight: Any = Packed(torch.randn(4, 8))
        self.weight.state = self.state = Note()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.weight.state
        if not state.turned:
            self.weight.data = self.weight.data.T.contiguous()
            state.turned, state.scale = True, state.scale * 1.5
        return x @ self.weight * state.scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.packs, self.last = Packs(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.packs(x))


def test_a_weight_that_packs_itself_in_its_first_run_is_as_it_was() -> None:
    torch.manual_seed(0)
    net = Net().eval()
    weight = net.packs.weight
    before = weight.data_ptr(), weight.state.scale
    probe = {"x": np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)}
    backend = driftwalk.backend("torch", open_model(net))
    first, second = (backend.run(probe)["output"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert weight.shape == (4, 8)
    assert weight.data_ptr() == before[0]
    assert not weight.state.turned
    assert weight.state.scale is before[1]


def test_four_bits_that_a_run_has_packed_anew_are_not_read() -> None:
    state = SimpleNamespace(shape=(2, 64), blocksize=64, packing_format_for_cpu=True)
    with pytest.raises(UnknownFormatError, match=r"up.weight was packed anew by its first run"):
        of_bitsandbytes("up", SimpleNamespace(quant_state=state))
