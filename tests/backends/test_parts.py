"""The parts of a module, found quickly: what torch's own way gives, in its order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from driftwalk_backends.tensors import parts_of


class Odd(nn.Module):
    """A part that stands in two places, one that is no part, and one that is its own grandchild."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(2, 2)
        self.stack = nn.Sequential(nn.ReLU(), nn.Sequential(self.shared, nn.Tanh()), nn.ReLU())
        self.nothing = None
        self.register_module("missing", None)
        self.again = self.stack[1]
        self.stack[1].add_module("circle", self.stack)


def test_parts_stand_in_the_order_of_torch() -> None:
    for module in (Odd(), nn.Linear(1, 1), nn.TransformerEncoderLayer(8, 2)):
        found, known = parts_of(module), list(module.modules())
        assert [id(part) for part in found] == [id(part) for part in known]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_so_do_those_of_a_scripted_module() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())))
    assert len(parts_of(scripted)) == len(list(scripted.modules()))
