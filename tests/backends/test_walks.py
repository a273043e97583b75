"""Models without a stack, stacks that run again, and what a user names: points all the same."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
from driftwalk.errors import ModelError
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from stacked import LAYERS, WIDTH, Stacked, traced


class NoStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 16)
        self.second = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def test_a_model_without_a_stack_is_walked_over_its_modules() -> None:
    trace, backend = traced(NoStack())
    assert [(state.point.name, state.point.module) for state in trace] == [
        ("layer.0", "first"),
        ("logits", "second"),
    ]
    assert backend.layout is not None
    (note,) = backend.layout.notes
    assert "No stack of repeated blocks was found that is most of the model" in note
    assert "1 parts, from first to first" in note
    assert "blocks='path.to.stack'" in note


class OneModule(nn.Module):
    """Nothing inside can be hooked."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.weight)


def test_a_model_without_parts_is_compared_at_its_outputs() -> None:
    module, probe = OneModule(), {"x": np.ones((2, 3, WIDTH), np.float32)}
    report = driftwalk.verify(module, candidate="emulated:bf16", probe=probe)
    assert report.ok
    assert [layer.point.name for layer in report.layers] == ["logits"]
    assert any("Its outputs alone are compared" in note for note in report.notes)
    broken = OneModule()
    with torch.no_grad():
        broken.weight[3] += 0.01
    report = driftwalk.verify(module, candidate=broken, probe=probe)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "logits"


class Siamese(nn.Module):
    """The same blocks and the same norm for two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Stacked()

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.net(left) - self.net(right)


def test_every_run_of_a_stack_has_points_of_its_own() -> None:
    probe = {"left": np.array([[1, 2, 3]]), "right": np.array([[4, 5, 6]])}
    model = open_model(Siamese())
    trace = driftwalk.backend("torch", model).trace(make_probe(model, probe))
    first, names = ["embed", *LAYERS, "norm"], list(trace.names)
    assert [name for name in names if "head" not in name] == [
        *first,
        *(f"{name}@2" for name in first),
        "logits",
    ]
    assert not np.array_equal(trace["layer.2"], trace["layer.2@2"])
    report = driftwalk.verify(Siamese(), candidate="onnxruntime", probe=probe)
    assert report.ok

    class Late(nn.Module):
        """Wrong in the second run alone."""

        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block, self.calls = block, 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.block(x) * (1.001 if self.calls == 2 else 1.0)

    broken = Siamese()
    broken.net.blocks[1] = Late(broken.net.blocks[1])
    report = driftwalk.verify(Siamese(), candidate=broken, probe=probe)
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1@2"


class SharedNorm(Stacked):
    """Uses its final norm again, for something else."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(self.ln(x) * 3))


def test_a_final_norm_that_is_used_twice_is_one_point() -> None:
    trace, _ = traced(SharedNorm())
    assert list(trace.names) == ["embed", *LAYERS, "norm", "logits"]


class Hourglass(nn.Module):
    """Blocks that change the shape: no stack by itself, one by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)])
        self.idle = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = torch.relu(step(x))
        return x


def test_a_stack_is_named_by_hand() -> None:
    trace, _ = traced(Hourglass())
    assert list(trace.names) == ["layer.0", "layer.1", "logits"]
    trace, _ = traced(Hourglass(), blocks="steps")
    assert list(trace.names) == ["embed", "layer.0", "layer.1", "logits"]
    report = driftwalk.verify(
        Hourglass(), candidate="torch:cpu:fp64", blocks="steps", policy="dtype"
    )
    assert report.ok


@pytest.mark.parametrize(
    ("blocks", "names"),
    [
        ("blocks.1", ["layer.0"]),
        ("blocks.*.inner", LAYERS),
        ("blocks.*", LAYERS),
        ("ln", ["layer.0"]),
        ("table, blocks.[01].inner", LAYERS),
        ("blocks, ln", ["embed", *LAYERS, "norm", "ln.layer.0"]),
    ],
)
def test_whatever_is_named_is_a_point(blocks: str, names: list[str]) -> None:
    trace, _ = traced(Stacked(), blocks=blocks)
    assert list(trace.names) == [*names, "logits"]
    assert driftwalk.verify(Stacked(), candidate=Stacked(), blocks=blocks).ok


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ("stepz", "blocks='stepz': no such module. Lists of modules in it: steps"),
        ("idle", "blocks='idle': in a run of the model nothing of it was called"),
    ],
)
def test_a_wrong_stack_by_hand_is_refused(blocks: str, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        traced(Hourglass(), blocks=blocks)
    assert says in str(caught.value)


class Unit(nn.Module):
    """A convolution-like part: something with a part of its own."""

    def __init__(self, wide: int, into: int) -> None:
        super().__init__()
        self.inner = nn.Linear(wide, into)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x))


class FirstUnit(Unit):
    """Another class than those that follow it, as in an audio model's feature extractor."""


class Front(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList([FirstUnit(8, 4), Unit(4, 6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in self.units:
            x = unit(x)
        return x


class Fronted(nn.Module):
    """Large blocks after a small list of units, which stands in a module or in the model itself."""

    def __init__(self, wrapped: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        front = Front()
        self.front, self.units = (front, None) if wrapped else (None, front.units)
        self.widen = nn.Linear(6, 32)
        self.layers = nn.ModuleList(Unit(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in (self.front,) if self.units is None else self.units:
            x = unit(x)
        x = self.widen(x)
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_small_list_of_units_before_the_blocks_is_walked(wrapped: bool) -> None:
    module, at = Fronted(wrapped), "front.units.1.inner" if wrapped else "units.1.inner"
    wrong = copy.deepcopy(module)
    with torch.no_grad():
        wrong.get_submodule(at).weight *= 1.05
    report = driftwalk.verify(module, wrong, probe={"x": np.ones((1, 5, 8), np.float32)})
    assert report.verdict == "drift"
    assert report.culprit is not None
    assert report.culprit.module == at


class Stage(nn.Module):
    """Holds what makes a stage's states of those before it, and its blocks; is never called."""

    def __init__(self, wide: int, into: int) -> None:
        super().__init__()
        self.enter = Unit(wide, into)
        self.blocks = nn.ModuleList(Unit(into, into) for _ in range(2))


class Staged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stages = nn.ModuleList(Stage(wide, wide + 8) for wide in (8, 16, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage.enter(x)
            for block in stage.blocks:
                x = x + block(x)
        return x


def test_what_a_stage_does_before_its_blocks_is_a_part() -> None:
    module = Staged()
    wrong = copy.deepcopy(module)
    with torch.no_grad():
        wrong.stages[1].enter.inner.weight *= 1.05
    probe = {"x": np.random.default_rng(0).standard_normal((1, 5, 8)).astype(np.float32)}
    report = driftwalk.verify(module, wrong, probe=probe)
    assert report.root_cause is not None
    assert report.root_cause.point.module.startswith("stages.1.enter")
    assert driftwalk.verify(module, "emulated:bf16", probe=probe).ok
