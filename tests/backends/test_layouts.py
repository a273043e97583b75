"""Blocks that hand the stream on in unusual ways are points all the same, or a note says not."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

WIDTH, DEPTH = 8, 5
LAYERS = [f"layer.{i}" for i in range(DEPTH)]


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.tanh(self.inner(x))


class Residual(Inner):
    def forward(self, x: torch.Tensor) -> Any:
        return x + super().forward(x)


class Placed(Inner):
    def forward(self, place: torch.Tensor, x: torch.Tensor) -> Any:  # type: ignore[override]
        return x + super().forward(x + place)


class AuxFirst(Inner):
    def forward(self, x: torch.Tensor) -> Any:
        made = super().forward(x)
        return made.mean((1, 2)), x + made


class AuxFirstAlike(Inner):
    def forward(self, x: torch.Tensor) -> Any:
        made = super().forward(x)
        return made, x + made


class Named(NamedTuple):
    x: torch.Tensor
    weight: torch.Tensor


class GivesNamed(Residual):
    def forward(self, x: torch.Tensor) -> Any:
        made = super().forward(x)
        return Named(made, made.mean())


@dataclass
class State:
    x: torch.Tensor
    step: int = 0


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    step: int = 0


class InDict(Residual):
    def forward(self, state: Any) -> Any:  # type: ignore[override]
        return {"step": state["step"] + 1, "x": super().forward(state["x"])}


class InDataclass(Residual):
    def forward(self, state: Any) -> Any:  # type: ignore[override]
        state.x, state.step = super().forward(state.x), state.step + 1
        return state


class InFrozen(Residual):
    def forward(self, state: Any) -> Any:  # type: ignore[override]
        return Frozen(super().forward(state.x), state.step + 1)


class InNamespace(Residual):
    def forward(self, state: Any) -> Any:  # type: ignore[override]
        return SimpleNamespace(x=super().forward(state.x))


class Net(nn.Module):
    """Embedding, blocks, norm, head; the way of the stream is the subclass's."""

    block: type[nn.Module] = Residual

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(self.block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.through(self.table(ids))))

    def through(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Scaled(Net):
    def through(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) * 0.9
        return x


class Outside(Net):
    block = Inner

    def through(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class InPlaceOutside(Outside):
    def through(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x += block(x)
        return x


class PreNormed(Net):
    """The norms are a list of their own, between the blocks."""

    block = Inner

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(DEPTH))

    def through(self, x: torch.Tensor) -> torch.Tensor:
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return x


class Transposed(Net):
    def through(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).transpose(0, 1).contiguous().transpose(0, 1)
            x = torch.cat([x[..., :4], x[..., 4:] + 0.1], -1)
        return x


class PlaceFirst(Net):
    block = Placed

    def through(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.linspace(0, 1, x.shape[1], dtype=x.dtype)[None, :, None].expand_as(x)
        for block in self.blocks:
            x = block(place, x)
        return x


class PlaceFirstScaled(Net):
    block = Placed

    def through(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.linspace(0, 1, x.shape[1], dtype=x.dtype)[None, :, None].expand_as(x)
        for block in self.blocks:
            x = block(place, x=x) * 0.9
        return x


class Second(Net):
    block = AuxFirst

    def through(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            _, x = block(x)
        return x


class SecondAlike(Second):
    block = AuxFirstAlike


class ByTuple(Net):
    block = GivesNamed

    def through(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).x
        return x


class ByDict(Net):
    block = InDict

    def through(self, x: torch.Tensor) -> torch.Tensor:
        state = {"x": x, "step": 0}
        for block in self.blocks:
            state = block(state)
        return state["x"]  # type: ignore[return-value]


class ByDataclass(Net):
    block = InDataclass

    def through(self, x: torch.Tensor) -> torch.Tensor:
        state = State(x)
        for block in self.blocks:
            state = block(state)
        return state.x


class ByFrozen(Net):
    block = InFrozen

    def through(self, x: torch.Tensor) -> torch.Tensor:
        state = Frozen(x)
        for block in self.blocks:
            state = block(state)
        return state.x


class ByNamespace(Net):
    block = InNamespace

    def through(self, x: torch.Tensor) -> torch.Tensor:
        state: Any = SimpleNamespace(x=x)
        for block in self.blocks:
            state = block(state)
        return state.x


NETS = [
    Scaled,
    Outside,
    InPlaceOutside,
    PreNormed,
    Transposed,
    PlaceFirst,
    PlaceFirstScaled,
    Second,
    SecondAlike,
    ByTuple,
    ByDict,
    ByDataclass,
    ByFrozen,
    ByNamespace,
]


@pytest.mark.parametrize("net", NETS)
def test_every_block_is_a_point_and_is_blamed_for_its_own(net: type[Net]) -> None:
    module = net()
    model = open_model(module)
    trace = driftwalk.backend("torch", model).trace(make_probe(model))
    names = [name for name in trace.names if ".out" not in name]
    assert names == ["embed", *LAYERS, "norm", "logits"]
    assert not model.notes
    assert driftwalk.verify(module, candidate=copy.deepcopy(module)).ok

    bad = copy.deepcopy(module)
    with torch.no_grad():
        bad.blocks[2].inner.weight *= 1.05
    report = driftwalk.verify(module, candidate=bad)
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == "layer.2"
    assert report.cause == "layer.2"


def test_what_lies_between_two_blocks_belongs_to_the_second() -> None:
    class Otherwise(Scaled):
        def through(self, x: torch.Tensor) -> torch.Tensor:
            for number, block in enumerate(self.blocks):
                x = block(x) * (0.8 if number == 1 else 0.9)
            return x

    assert driftwalk.verify(Scaled(), candidate=Otherwise()).cause == "layer.2"


class Apart(Net):
    """Each block works on the embedding by itself: a list, but no stack."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.ModuleList(Residual() for _ in range(2))

    def through(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.stack([block(x) for block in self.blocks]).sum(0)
        for block in self.more:
            x = block(x)
        return x


class Renamed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.steps = self.blocks
        del self.blocks

    def through(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.steps:
            x = block(x)
        return x


def test_blocks_of_a_list_that_is_no_stack_are_points() -> None:
    report = driftwalk.verify(Apart(), candidate=Apart())
    names = [row.point.name for row in report.layers]
    assert names[:5] == [f"blocks.layer.{i}" for i in range(5)]
    broken = Apart()
    with torch.no_grad():
        broken.blocks[3].inner.weight *= 1.05
    assert driftwalk.verify(Apart(), candidate=broken).cause == "blocks.layer.3"


def test_blocks_by_hand_hold_for_a_module_as_candidate() -> None:
    module = Apart()
    report = driftwalk.verify(module, candidate=copy.deepcopy(module), blocks="blocks")
    assert report.ok
    assert report.coverage.compared == DEPTH + 2
    report = driftwalk.verify(Net(), candidate=Renamed(), blocks="blocks")  # has no such list
    assert report.ok
    assert report.coverage.compared == DEPTH + 3


def test_a_stored_export_is_of_the_points_asked_for() -> None:
    """GPT-2's own code may be stored; its points depend on what the user names."""
    module = zoo.build("gpt2")
    both = [
        driftwalk.verify(module, candidate="onnxruntime", blocks=blocks, policy="dtype")
        for blocks in (None, "transformer.h.0")
    ]
    names = [[row.point.name for row in report.layers] for report in both]
    assert names[0] != names[1]
    assert all(report.ok for report in both), [report.coverage for report in both]


@pytest.fixture
def steered() -> nn.Module:
    """A model whose own recorders are there before the user's hooks."""
    module = zoo.build("llama")
    with torch.no_grad():
        module(input_ids=torch.arange(4)[None], output_hidden_states=True)
    module.model.layers[0].register_forward_hook(lambda block, args, output: output + 0.5)
    module.model.layers[1].register_forward_pre_hook(lambda block, args: (args[0] * 1.5, *args[1:]))
    module.model.layers[0].register_forward_pre_hook(lambda block, args: (args[0] * 1.5, *args[1:]))
    return module


def test_hooks_of_the_user_are_part_of_the_model(steered: nn.Module) -> None:
    model = open_model(steered)
    plain = zoo.build("llama")
    ours = driftwalk.backend("torch", model).trace(make_probe(model))
    theirs = driftwalk.backend("torch", plain).trace(ours.probe)
    np.testing.assert_array_equal(ours["embed"], theirs["embed"] * np.float32(1.5))
    assert driftwalk.verify(steered, candidate=copy.deepcopy(steered)).ok
    report = driftwalk.verify(steered, candidate=plain)
    assert report.cause == "embed"
    bad = copy.deepcopy(steered)
    with torch.no_grad():
        bad.model.layers[1].mlp.down_proj.weight *= 1.05
    assert driftwalk.verify(steered, candidate=bad).cause == "layer.1"


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_layer_that_is_missing_or_too_many_is_the_cause(name: str, gone: int) -> None:
    module = zoo.build(name)
    short = copy.deepcopy(module)
    stack = short.get_submodule("model.layers" if name == "llama" else "transformer.h")
    del stack[gone]
    report = driftwalk.verify(module, candidate=short)
    assert report.cause == f"layer.{gone}"
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == f"layer.{gone}"
    assert report.layer("layer.2").verdict == "missing"

    report = driftwalk.verify(short, candidate=module)
    assert report.cause == f"layer.{gone}"
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == f"layer.{gone}"
    assert report.layer("layer.2").verdict == "extra"
