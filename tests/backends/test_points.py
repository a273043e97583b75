"""Points: every architecture is read right, and what cannot be read is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.errors import BackendError
from driftwalk_backends.calls import call, inputs_for
from stacked import LAYERS, WIDTH, Block, Stacked, traced

CPU = torch.device("cpu")


def names_of(name: str) -> list[str]:
    """The canonical names an architecture of the zoo must have."""
    norm = ["norm"] if name in zoo.FINAL_NORM else []
    stack = ["embed", *(f"layer.{i}" for i in range(zoo.LAYERS)), *norm]
    if name in zoo.TWO_STACKS:
        stack = [f"{half}.{point}" for half in ("encoder", "decoder") for point in stack]
    return [*stack, "logits"]


@pytest.mark.parametrize("name", zoo.NAMES)
def test_an_architecture_is_read_as_its_own_hidden_states_say(name: str) -> None:
    module = zoo.build(name)
    trace, backend = traced(module)
    assert list(trace.names) == names_of(name)
    last = "normed" if name in zoo.NORMED else "raw"
    halves = ["encoder.", "decoder."] if name in zoo.TWO_STACKS else [""]
    assert backend.layout is not None
    assert backend.layout.confirmed == "; ".join(f"{h}hidden_states[-1] is {last}" for h in halves)

    # The same without driftwalk's own cross-check: ask the model, compare bit for bit.
    with torch.no_grad():
        output = call(module, inputs_for(module, trace.probe, CPU), output_hidden_states=True)
    for half in halves:
        own = output[f"{half.replace('.', '_')}hidden_states"]
        assert len(own) == zoo.LAYERS + 1
        points = ["embed", *(f"layer.{i}" for i in range(zoo.LAYERS - 1))]
        points.append("norm" if last == "normed" else f"layer.{zoo.LAYERS - 1}")
        for state, point in zip(own, points, strict=True):
            np.testing.assert_array_equal(state.numpy(), trace[half + point], err_msg=point)
    np.testing.assert_array_equal(output.logits.numpy(), trace["logits"])


@pytest.mark.parametrize("name", ["gpt2", "vit", "t5"])
def test_a_norm_point_is_the_norm_of_the_last_layer(name: str) -> None:
    module = zoo.build(name)
    trace, _ = traced(module)
    for state in trace:
        if state.point.name.endswith("norm"):
            raw = trace[state.point.name.replace("norm", f"layer.{zoo.LAYERS - 1}")]
            norm = module.get_submodule(state.point.module)
            with torch.no_grad():
                expected = norm(torch.from_numpy(raw.copy())).numpy()
            np.testing.assert_array_equal(expected, state.array)
            assert not np.array_equal(raw, state.array)


def test_albert_is_one_block_applied_three_times() -> None:
    trace, _ = traced(zoo.build("albert"))
    layers = [state for state in trace if state.point.name.startswith("layer.")]
    assert len(layers) == zoo.LAYERS
    assert len({state.point.module for state in layers}) == 1
    assert not np.array_equal(layers[0].array, layers[1].array)


def test_the_module_of_each_point_is_named() -> None:
    trace, _ = traced(zoo.build("gpt2"))
    assert [state.point.module for state in trace] == [
        "input of transformer.h.0",
        *(f"transformer.h.{i}" for i in range(zoo.LAYERS)),
        "transformer.ln_f",
        "lm_head",
    ]


class Attributes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, WIDTH)
        self.block1, self.block2, self.block3 = Block(), Block(), Block()
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.block3(self.block2(self.block1(self.table(ids)))))


def in_sequence() -> nn.Module:
    blocks = [Block() for _ in range(3)]
    return nn.Sequential(nn.Embedding(11, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5))


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (Stacked(), ["embed", *LAYERS, "norm", "logits"]),
        (in_sequence(), ["embed", *LAYERS, "norm", "logits"]),
        (Attributes(), ["embed", *LAYERS, "logits"]),
        (Stacked(nn.ModuleList([Block()])), ["embed", "layer.0", "norm", "logits"]),
    ],
    ids=["module list", "sequential", "attributes", "single block"],
)
def test_plain_modules(module: nn.Module, names: list[str]) -> None:
    trace, backend = traced(module)
    assert list(trace.names) == names
    assert backend.layout is not None
    assert backend.layout.confirmed == "unchecked"
    np.testing.assert_array_equal(trace["logits"], trace.outputs["output"])
    report = driftwalk.verify(module, candidate="torch", policy="dtype")
    assert report.ok
    assert all(seen.bit_identical for seen in report.observer.values())


def test_transformer_encoder_has_an_observer_effect_that_is_reported() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    module = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    mask = np.array([[False] * 4, [False] * 3 + [True]])
    rows = np.random.default_rng(0).standard_normal((2, 4, WIDTH), dtype=np.float32)
    probe = {"src": rows, "src_key_padding_mask": mask}
    report = driftwalk.verify(module, candidate="torch", probe=probe, policy="dtype")
    assert [layer.point.name for layer in report.layers] == ["embed", *LAYERS]
    seen = report.observer["candidate"]
    # Its fast path fuses a whole layer; a hook on a layer switches that off.
    assert seen.checked
    assert not seen.bit_identical
    assert 0 < seen.max_abs < 1e-5
    assert seen.within_tolerance
    assert report.ok

    strict = driftwalk.verify(module, candidate="torch", probe=probe, policy="fixed:0")
    assert strict.verdict == "unverified"
    assert "capturing states changed the reference's own output" in strict.reason


class TwoStreams(nn.Module):
    """Reversible-style: each block hands on two streams."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f, self.g = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a = a + self.f(b)
            return a, b + self.g(a)

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, WIDTH)
        self.pairs = nn.ModuleList(self.Pair() for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        a = b = self.table(ids)
        for pair in self.pairs:
            a, b = pair(a, b)
        return a + b


def test_a_second_stream_is_a_state_of_its_own() -> None:
    module = TwoStreams()
    trace, _ = traced(module)
    names = ["embed", "layer.0", "layer.0.out1", "layer.1", "layer.1.out1", "logits"]
    assert list(trace.names) == names
    np.testing.assert_array_equal(trace["layer.1"] + trace["layer.1.out1"], trace["logits"])


class InPlace(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += torch.tanh(self.inner(x))
        return x


def test_a_state_is_not_changed_by_a_later_in_place_op() -> None:
    module = Stacked(nn.ModuleList(InPlace() for _ in range(3)))
    trace, _ = traced(module)
    x = torch.from_numpy(trace["embed"].copy())
    with torch.no_grad():
        expected = module.table(torch.from_numpy(trace.probe.inputs["ids"].copy()))
        assert torch.equal(x, expected)
        for number, block in enumerate(module.blocks):
            x = x + torch.tanh(block.inner(x))
            np.testing.assert_array_equal(x.numpy(), trace[f"layer.{number}"])


def lying_gpt2() -> nn.Module:
    """Its hidden_states are not what its blocks gave."""
    module = zoo.build("gpt2")

    class Lying(type(module)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            if output.hidden_states:
                states = list(output.hidden_states)
                states[2] = states[2] * 1.5
                output.hidden_states = tuple(states)
            return output

    module.__class__ = Lying
    return module


@pytest.mark.parametrize("blocks", [None, "transformer.h"])
def test_hidden_states_that_contradict_the_capture_are_noted(blocks: str | None) -> None:
    """They confirm, and are no condition: the points are what the blocks gave."""
    _, backend = traced(lying_gpt2(), blocks=blocks)
    assert backend.layout is not None
    assert "hidden_states[1] is layer.0" in backend.layout.confirmed
    assert "hidden_states[2]" not in backend.layout.confirmed
    (note,) = backend.layout.notes
    assert "1 are no state that was captured (2, counted from 0)" in note
    assert "--blocks" in note


class Shrinking(Stacked):
    """As deep as its input is long."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks[: ids.shape[1]]:
            x = block(x)
        return self.head(self.ln(x))


def test_a_depth_that_depends_on_the_input_is_refused() -> None:
    backend = driftwalk.backend("torch", Shrinking())
    backend.trace(driftwalk.Probe({"ids": np.ones((1, 3), np.int64)}))
    with pytest.raises(BackendError, match="2 blocks ran, 3 were expected"):
        backend.trace(driftwalk.Probe({"ids": np.ones((1, 2), np.int64)}))
