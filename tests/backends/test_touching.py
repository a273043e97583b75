"""Which weights a run reads, however it comes by them: what is called unread may be NaN."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch
from torch import nn

from driftwalk_backends.touching import Touching

IDS = torch.tensor([[1, 3, 3, 7]])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bank = nn.Parameter(torch.randn(6, 8, 8))
        self.table = nn.Parameter(torch.randn(10, 8))
        self.linear = nn.Linear(8, 8)
        self.dead = nn.Linear(8, 8)
        self.eval()


class Mapped(Net):
    used: ClassVar = {"bank": 6}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda weight: torch.ones(8) @ weight)(self.bank)


class Functional(Net):
    used: ClassVar = {"linear.weight": 8, "linear.bias": 8}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        weights = {"weight": self.linear.weight * 2, "bias": self.linear.bias}
        return torch.func.functional_call(self.linear, weights, (torch.ones(2, 8),))


class Indexed(Net):
    used: ClassVar = {"table": 7, "bank": 2}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(10) == 4
        found = self.table[ids].sum((0, 1)) + self.table[mask].sum(0) + self.table[-1]
        found = found + self.table.index_select(0, torch.tensor([5])) + self.table[[6, 6]].sum(0)
        return found @ self.bank.mT[[2]].sum(0) + self.bank[3, :, 0]


class Views(Net):
    used: ClassVar = {"bank": 1, "table": 3}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        part = self.bank.flatten(0, 1).unbind(0)[8 * 4 + 1]
        ends = self.table.split([2, 8])[1][3:5].sum(0)
        return part + ends + self.table.as_strided((8,), (1,), 8)


class Foreign(Net):
    """Through numpy, a list, and another library's view of the same memory."""

    used: ClassVar = {"table": 10, "bank": 6, "linear.weight": 8}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = torch.from_numpy(self.table.detach().numpy()).sum(0)
        found = found + torch.tensor(self.bank.tolist()).sum((0, 1))
        return found + torch.from_dlpack(self.linear.weight.detach()).sum(0)


class ByFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight


class Custom(Net):
    used: ClassVar = {"linear.weight": 8}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = ByFunction.apply(torch.ones(2, 8), self.linear.weight)
        return found


class ShapeOnly(Net):
    used: ClassVar = {"linear.weight": 8, "linear.bias": 8}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        wide = torch.ones(2, self.table.shape[1], dtype=self.dead.weight.dtype)
        return self.linear(wide + torch.zeros_like(self.dead.weight).size(0))


class InPlace(Net):
    used: ClassVar = {"table": 10}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        view = self.table.data
        view *= 1.0
        return torch.ones(2)


class Scripted(Net):
    used: ClassVar = {"inside.weight": 8, "inside.bias": 8}

    def __init__(self) -> None:
        super().__init__()
        self.inside = torch.jit.trace(nn.Linear(8, 8), torch.ones(1, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inside(torch.ones(2, 8))
        return found


class Recurrent(Net):
    used: ClassVar = {"table": 3} | {
        f"rnn.{kind}_l{layer}": 32
        for layer in (0, 1)
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 8, 2, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.rnn(nn.functional.embedding(ids, self.table))[0]
        return found


SEEN = (Mapped, Functional, Indexed, Views, Foreign, Custom, ShapeOnly, InPlace, Recurrent)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("kind", [*SEEN, Scripted], ids=lambda kind: kind.__name__)
def test_exactly_what_is_read_is_called_read(kind: type[Net]) -> None:
    model = kind()
    with torch.no_grad():
        before, touching = model(IDS), Touching(model, {"ids": IDS})
        with touching:
            model(IDS)
        assert not touching.blind
        for weight in touching.weights:
            unread = torch.from_numpy(~weight.used)
            weight.parameter.data.view(len(unread), -1)[unread] = math.nan
        assert torch.equal(model(IDS), before)
    assert {w.name: int(w.used.sum()) for w in touching.weights if w.used.any()} == model.used


class InThread(Net):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.linear, torch.ones(2, 8)).result()


class Unseen(Net):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            found: torch.Tensor = self.linear(torch.ones(2, 8))
        return found


@pytest.mark.parametrize("kind", [InThread, Unseen], ids=lambda kind: kind.__name__)
def test_what_cannot_be_watched_is_not_called_unread(kind: type[Net]) -> None:
    model = kind()
    touching = Touching(model, {"ids": IDS})
    with torch.no_grad(), touching:
        model(IDS)
    assert "cannot be watched" in touching.blind


def test_nothing_stays_behind() -> None:
    model, other = Indexed(), Indexed()
    touching = Touching(model, {})
    with torch.no_grad(), touching:
        other(IDS)
    assert not any(weight.used.any() for weight in touching.weights), "another model's run"
    assert not nn.modules.module._global_forward_pre_hooks
    model(IDS)
    assert not any(weight.used.any() for weight in touching.weights), "watched no longer"
