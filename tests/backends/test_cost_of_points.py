"""What it costs to find the points of a model: one run of it, where that run tells all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import ModelOutput

import torch_nets
import zoo
from driftwalk_backends import crosscheck, watching
from driftwalk_backends.calls import call, quietly
from driftwalk_backends.layout import Layout
from driftwalk_backends.model_outputs import given_by, unasked
from driftwalk_backends.points import find_stacks
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from torch_nets import Basic, Block


class Between(nn.Module):
    """Something lies between any two blocks."""

    def __init__(self, depth: int = 5) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) * 0.5
        return x


class WritesInPlace(nn.Module):
    """What a block gave is written to by the next, and one output is a copy of what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        copies = []
        for block in self.blocks:
            x = block(x)
            copies.append(x.clone())
            x.mul_(2.0)
        return x, copies[1]


def layout_of(module: nn.Module, inputs: dict[str, Any]) -> tuple[Layout, int]:
    """The layout, and how often the model was run for it."""
    runs = 0

    def run(**extra: Any) -> Any:
        nonlocal runs
        runs += 1
        return call(module, inputs, **extra)

    with quietly(module):
        return crosscheck.find_layout(module.eval(), run), runs


def wide() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))}


def net(name: str) -> tuple[nn.Module, dict[str, Any]]:
    arrays = torch_nets.inputs(name)
    return torch_nets.build(name).eval(), {n: torch.from_numpy(a) for n, a in arrays.items()}


def of_transformers(name: str) -> tuple[nn.Module, dict[str, Any]]:
    module = zoo.build(name)
    probe = make_probe(open_model(module))
    return module, {n: torch.tensor(array) for n, array in probe.inputs.items()}


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "between": lambda: (Between().eval(), wide()),
    **{name: lambda name=name: net(name) for name in torch_nets.NETS},  # type: ignore[misc]
    **{
        name: lambda name=name: of_transformers(name)  # type: ignore[misc]
        for name in ("gpt2", "t5", "vit")
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_one_run_tells_what_another_would(name: str) -> None:
    module, inputs = MODELS[name]()
    layout, runs = layout_of(module, inputs)
    assert runs == 1
    wants = layout.confirmed != crosscheck.UNCHECKED
    with quietly(module):

        def run(**extra: Any) -> Any:
            return call(module, inputs, **extra)

        stacks, outputs, confirmed, notes = crosscheck._in_another_run(
            module, run, layout.stacks, wants, given_by(run())
        )
    assert layout.stacks == stacks
    assert (layout.outputs.makers, layout.outputs.same) == (outputs.makers, outputs.same)
    assert layout.confirmed == confirmed
    assert set(notes) <= set(layout.notes)


def test_a_model_that_writes_into_its_states_is_run_again() -> None:
    layout, runs = layout_of(WritesInPlace(), wide())
    assert runs == 2
    assert dict(layout.outputs.same) == {"output.1": "layer.1"}


class Copies(nn.Module):
    """An output is a copy of what a part gave, which is gone by the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        for letter in "abcdefghijklmnopqrst":
            self.add_module(f"part_{letter}", nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, *others = self.children()
        x = first(x)
        kept = x.clone()
        for part in others:
            x = part(x)
        return x.sum(-1), kept


def test_a_copy_of_a_part_that_is_gone_takes_another_run_to_know() -> None:
    layout, runs = layout_of(Copies(), wide())
    assert runs == 2
    assert dict(layout.outputs.same) == {"output.1": "layer.0"}


def test_operations_are_seen_between_blocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Counted(watching.Lineage):
        def __torch_dispatch__(self, func: Any, *rest: Any) -> Any:
            seen.append(func.__name__)
            return super().__torch_dispatch__(func, *rest)

    monkeypatch.setattr(watching, "Lineage", Counted)
    layout, _ = layout_of(Between(5), wide())
    assert len(layout.stacks[0].blocks) == 5
    assert seen == ["mul.Tensor"] * 5


def test_what_is_inside_of_blocks_does_not_stay_in_memory() -> None:
    module = nn.Sequential(*(Basic(4, 4, 1) for _ in range(6))).eval()
    x = torch.randn(1, 4, 6, 6)
    with torch.no_grad():
        watched = watching.watch(module, lambda: module(x))
    alive = {v.path for v in watched.visits.all() if any(g.object is not None for g in v.gives)}
    assert {"0", "1"} <= alive
    assert "0.conv1" not in alive
    assert "1.conv1" not in alive


def test_states_that_were_asked_for_are_no_outputs() -> None:
    module, inputs = of_transformers("gpt2")
    with quietly(module):
        plain = given_by(call(module, inputs))
        asked = call(module, inputs, output_hidden_states=True)
    assert asked.hidden_states
    taken_out = given_by(unasked(asked))
    assert list(taken_out.tensors) == list(plain.tensors)
    assert taken_out.skipped == plain.skipped


def test_a_tuple_that_is_there_in_any_case_is_compared() -> None:
    """Names do not tell: a pyramid's states are given to whoever calls, a window's are not."""

    @dataclass
    class Pyramid(ModelOutput):
        logits: torch.Tensor | None = None
        fpn_hidden_states: tuple[torch.Tensor, ...] | None = None
        window_hidden_states: tuple[torch.Tensor, ...] | None = None
        hidden_states: tuple[torch.Tensor, ...] | None = None

    class Model(GPT2LMHeadModel):
        def forward(self, input_ids: torch.Tensor, output_hidden_states: bool = False) -> Pyramid:
            made = self.transformer(input_ids, output_hidden_states=True).hidden_states
            asked = made if output_hidden_states else None
            always = tuple(state * 2 for state in made[:2])
            return Pyramid(self.lm_head(made[-1]), always, asked, asked)

    module = Model(GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=20)).eval()
    layout, runs = layout_of(module, {"input_ids": torch.arange(6)[None]})
    names = [name for name, _ in layout.outputs.makers]
    assert names == ["logits", "fpn_hidden_states.0", "fpn_hidden_states.1"]
    assert runs <= 3


def test_a_model_that_gives_its_states_unasked_is_also_run_plainly() -> None:
    module, inputs = of_transformers("gpt2")
    module.config.output_hidden_states = True
    layout, runs = layout_of(module, inputs)
    assert runs == 2
    assert layout.outputs.skipped == ("hidden_states",)


def test_every_activation_is_still_the_maker_of_an_output() -> None:
    module = nn.Sequential()
    module.add_module("linear", nn.Linear(8, 8))
    module.add_module("last", nn.Tanh())
    layout, _ = layout_of(module, {"input": torch.randn(2, 8)})
    assert dict(layout.outputs.makers) == {"output": "last"}


def test_stacks_are_found_in_what_was_watched_once() -> None:
    module = Between().eval()
    with torch.no_grad():
        watched = watching.watch(module, lambda: module(torch.randn(2, 8)))
    watched.visits.outputs = [watched.output]
    (stack,), notes = find_stacks(watched)
    assert stack.path == "blocks"
    assert not notes
