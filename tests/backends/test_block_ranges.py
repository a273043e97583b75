"""Ranges of blocks, one after the other, give what the model gives in one run, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import zoo
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.registry import create
from driftwalk.states import State, same_bits
from driftwalk_backends.block_ranges import Blocks, run_range, split
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

FEW = ["gpt2", "t5", "albert", "mixtral"]
OTHERS = ["torch:cpu:fp64", "emulated:bf16", "truth"]


def chained(backend: Any, probe: Any, count: int, how: str = "stream", **more: Any) -> Any:
    """The states of all ranges, one after the other, and what the last of them gave."""
    with backend.at_work(probe) as (module, _, layout):
        pass
    blocks = Blocks.of(layout)
    states: list[State] = []
    handed: Any = {}
    made = None
    for some in blocks.cut(module, count):

        def run(sink: Any) -> Any:
            return getattr(backend, how)(probe, sink=sink, **more)

        handed, made = run_range(backend, run, blocks, some, handed, states.append)
    return states, made


def assert_same_states(states: list[State], others: Any) -> None:
    assert [state.point for state in states] == [state.point for state in others]
    for one, other in zip(states, others, strict=True):
        assert same_bits({"": one.array}, {"": other.array}), one.point.name


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.data())
def test_a_row_is_cut_into_pieces_that_follow_each_other(sizes, data):
    count = data.draw(st.integers(1, len(sizes)))
    pieces = split(sizes, count)
    assert len(pieces) == count
    assert all(len(piece) for piece in pieces)
    assert [number for piece in pieces for number in piece] == list(range(len(sizes)))


def test_pieces_are_about_equally_large():
    assert split([1] * 8, 2) == (range(4), range(4, 8))
    assert split([6, 1, 1, 1, 1, 1, 1], 2) == (range(1), range(1, 7)), "by bytes, not by number"
    assert split([1, 1, 1, 1, 8], 3) == (range(3), range(3, 4), range(4, 5))


@pytest.mark.parametrize(
    ("name", "spec"),
    [*((name, "torch") for name in zoo.NAMES), *((n, spec) for n in FEW for spec in OTHERS)],
)
def test_ranges_give_what_one_run_gives(name, spec):
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    with create(spec, model) as backend:
        whole = backend.trace(probe)
        for count in {2, len(Blocks.of(backend.layout).calls)}:
            states, outputs = chained(backend, probe, count)
            assert_same_states(states, whole)
            assert same_bits(outputs, whole.outputs)
        assert same_bits(backend.run(probe), whole.outputs), "nothing is left behind"


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_a_replay_and_a_look_inside_are_the_same_in_ranges(name):
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    with create("torch", model) as backend, create("emulated:bf16", model) as other:
        backend.look("module")
        given = {s.point.name: s.array.astype(np.float32) for s in other.trace(probe)}
        whole: list[State] = []
        backend.replay(probe, given, whole.append)
        states, _ = chained(backend, probe, 2, "replay", given=given)
        assert_same_states(states, whole)
        backend.share(True)
        states, _ = chained(backend, probe, 2)
        assert_same_states(states, backend.trace(probe))


def test_a_range_reads_no_weight_of_other_blocks():
    """Filled with NaN, they would show."""
    model = open_model(zoo.build("llama"))
    probe = make_probe(model)
    with create("torch", model) as backend:
        whole = backend.trace(probe)
        blocks = Blocks.of(backend.layout)
        module = model.module
        first, second = blocks.cut(module, 2)
        own = [blocks.needs(module, some) for some in (first, second)]
        assert own[0] != own[1]
        assert own[0] | own[1] == {
            n for n, _ in (*module.named_parameters(), *module.named_buffers())
        }
        kept = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
        states: list[State] = []
        handed: Any = {}
        for some, names in zip((first, second), own, strict=True):
            with torch.no_grad():
                for name, tensor in module.named_parameters():
                    tensor.copy_(kept[name]) if name in names else tensor.fill_(torch.nan)

            def run(sink: Any) -> Any:
                return backend.stream(probe, sink)

            handed, _ = run_range(backend, run, blocks, some, handed, states.append)
        assert_same_states(states, whole)


class Net(nn.Module):
    """Blocks in a row; the last may also take what the first gave."""

    def __init__(self, skip: bool = False, lost: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(lost and i == 2) for i in range(4))
        self.skip = skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = None
        for block in self.blocks:
            x = block(x)
            first = x if first is None else first
        return x + first if self.skip else x


class Block(nn.Module):
    def __init__(self, lost: bool) -> None:
        super().__init__()
        self.map = nn.Linear(8, 8)
        self.lost = lost

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = x + self.map(x)
        return torch.where(made > 0, made, torch.nan) if self.lost else made


PROBE = {"x": np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)}


def test_a_model_that_takes_more_from_earlier_blocks_is_refused():
    model, message = open_model(Net(skip=True)), r"layer\.2 to layer\.3 cannot run on their own"
    with create("torch", model) as backend, pytest.raises(BackendError, match=message):
        chained(backend, make_probe(model, PROBE), 2)


def test_a_model_that_gives_nan_itself_is_not():
    model = open_model(Net(lost=True))
    with create("torch", model) as backend:
        probe = make_probe(model, PROBE)
        whole = backend.trace(probe)
        assert np.isnan(whole["layer.3"]).any()
        assert_same_states(chained(backend, probe, 2)[0], whole)


def test_what_cannot_be_cut_is_refused():
    model, message = open_model(Net()), "ranges=5: the model has 4 blocks"
    with create("torch", model) as backend, pytest.raises(UsageError, match=message):
        chained(backend, make_probe(model, PROBE), 5)
    model, message = open_model(nn.Linear(8, 8)), "this model has none"
    with create("torch", model) as backend, pytest.raises(UsageError, match=message):
        chained(backend, make_probe(model, {"input": PROBE["x"]}), 2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("torch,ranges=0", "a whole number, 1 or more"),
        ("torch,ranges=2,compile=inductor", "runs eagerly"),
        ("torch:cuda:fp16,ranges=2", "on the CPUs of nodes"),
        ("onnxruntime,ranges=2", "has no option 'ranges'"),
        ("emulated:bf16,ranges=2,tf32=on", "has no option 'tf32'"),
    ],
)
def test_a_bad_option_is_a_usage_error(spec, message):
    with pytest.raises(UsageError, match=message):
        create(spec, open_model("demo:decoder"))


def test_a_model_that_only_this_process_has_is_refused():
    with pytest.raises(UsageError, match="exists in this process only"):
        create("torch,ranges=2", open_model(Net()))


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr("driftwalk_backends.ranged.installed", lambda: False)
    with pytest.raises(BackendUnavailable, match=r"pip install 'driftwalk\[ray\]'"):
        create("torch,ranges=2", open_model("demo:decoder"))
