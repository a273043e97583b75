"""Walking at a finer depth: the parts of each block are points, in the order they finish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.errors import UsageError
from driftwalk_backends.demo import decoder
from driftwalk_backends.depth import parts_of

IDS = np.arange(16).reshape(2, 8)


def probe(name: str) -> driftwalk.Probe:
    decoders = {"decoder_input_ids": IDS} if name in ("t5", "bart") else {}
    return driftwalk.Probe({"input_ids": IDS} | decoders)


def inside(name: str, depth: str, layer: str = "layer.1") -> list[str]:
    """What follows `layer.1.` in the names of a model's points."""
    trace = driftwalk.backend("torch", zoo.build(name), depth=depth).trace(probe(name))
    return [n.removeprefix(f"{layer}.") for n in trace.names if n.startswith(f"{layer}.")]


@pytest.mark.parametrize(
    ("name", "layer", "parts"),
    [
        ("gpt2", "layer.1", "ln_1 attn ln_2 mlp"),
        ("llama", "layer.1", "input_layernorm attn post_attention_layernorm mlp"),
        ("bert", "layer.1", "attn intermediate output"),
        ("t5", "encoder.layer.1", "attn mlp"),
        ("t5", "decoder.layer.1", "attn cross_attn mlp"),
        ("distilbert", "layer.1", "attn sa_layer_norm mlp output_layer_norm"),
        (
            "bart",
            "decoder.layer.1",
            "attn self_attn_layer_norm cross_attn encoder_attn_layer_norm fc1 activation_fn fc2 "
            "final_layer_norm",
        ),
    ],
)
def test_sublayers_have_canonical_names_in_order(name: str, layer: str, parts: str) -> None:
    assert inside(name, "sublayer", layer) == parts.split()


def test_modules_have_their_own_names_in_order_of_completion() -> None:
    expected = "ln_1 attn.c_attn attn.c_proj attn ln_2 mlp.c_fc mlp.act mlp.c_proj mlp"
    assert inside("gpt2", "module") == expected.split()


def test_a_drill_sees_what_is_made_between_modules() -> None:
    """Attention and the first residual sum; every other input is a module's output."""
    backend: Any = driftwalk.backend("torch", zoo.build("gpt2"))
    backend.look("module", "layer.1")
    names = backend.trace(probe("gpt2")).names
    assert [n for n in names if ":" in n] == ["layer.1.attn.c_proj:in", "layer.1.ln_2:in"]
    assert names.index("layer.1.attn.c_proj:in") + 1 == names.index("layer.1.attn.c_proj")


def test_a_finer_point_says_which_module_it_is() -> None:
    trace = driftwalk.backend("torch", zoo.build("llama"), depth="sublayer").trace(probe("llama"))
    state = trace.state("layer.2.attn")
    assert state is not None
    assert state.point.module == "model.layers.2.self_attn"


def test_the_blocks_are_points_at_every_depth() -> None:
    traces = [
        driftwalk.backend("torch", zoo.build("gpt2"), depth=depth).trace(probe("gpt2"))
        for depth in ("block", "sublayer", "module")
    ]
    for finer in traces[1:]:
        assert [n for n in finer.names if n in traces[0].names] == list(traces[0].names)
        for state in traces[0]:
            np.testing.assert_array_equal(finer[state.point.name], state.array)


class Twice(nn.Module):
    """A block that uses one of its parts two times, and another block's part."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.mix, self.shared = nn.Linear(8, 8), shared

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.shared(self.mix(self.mix(hidden)))


def test_each_call_of_a_part_is_a_point_of_its_own() -> None:
    torch.manual_seed(0)
    shared = nn.LayerNorm(8)
    model = nn.Sequential(Twice(shared), Twice(shared))
    given = driftwalk.Probe({"input": np.ones((2, 3, 8), np.float32)})
    trace = driftwalk.backend("torch", model, depth="module").trace(given)
    expected = [
        "embed",
        *("layer.0.mix", "layer.0.mix#2", "layer.0.shared", "layer.0"),
        *("layer.1.mix", "layer.1.mix#2", "layer.1.shared", "layer.1"),
    ]
    assert list(trace.names) == expected
    assert (trace["layer.0.mix"] != trace["layer.0.mix#2"]).any()
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in model.modules())


def test_a_block_applied_often_is_looked_into_once() -> None:
    """ALBERT has one block: inside layer.1 is what it computes the second time."""
    every = driftwalk.backend("torch", zoo.build("albert"), depth="module").trace(probe("albert"))
    backend: Any = driftwalk.backend("torch", zoo.build("albert"))
    backend.look("module", "layer.1")
    trace = backend.trace(probe("albert"))
    name = "albert_layers.0.ffn"
    assert [n for n in trace.names if n.endswith(name)] == [f"layer.1.{name}"]
    np.testing.assert_array_equal(trace[f"layer.1.{name}"], every[f"layer.1.{name}"])
    assert (every[f"layer.0.{name}"] != every[f"layer.1.{name}"]).any()


@pytest.mark.parametrize(
    ("candidate", "depth"), [("torch,attn=eager", "sublayer"), ("emulated:fp16", "module")]
)
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "albert", "mixtral"])
def test_clean_at_every_depth(name: str, candidate: str, depth: str) -> None:
    report = driftwalk.verify(
        zoo.build(name), candidate=candidate, policy="calibrated", depth=depth, blame=True
    )
    assert report.ok, report
    assert report.coverage.compared == report.coverage.points > 10
    assert (report.root_cause, report.culprit) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("depth", ["sublayer", "module"])
def test_onnx_runtime_at_every_depth(depth: str) -> None:
    report = driftwalk.verify(
        zoo.build("gpt2"), candidate="onnxruntime", policy="calibrated", depth=depth
    )
    assert report.ok, report
    assert report.coverage.compared == report.coverage.points > 15
    assert any(layer.point.name == "layer.2.mlp" for layer in report.layers)


@pytest.mark.parametrize(
    ("depth", "cause"),
    [("block", "layer.3"), ("sublayer", "layer.3.mlp"), ("module", "layer.3.mlp.c_fc")],
)
def test_the_root_cause_is_at_the_depth_of_the_run(depth: str, cause: str) -> None:
    bad: Any = decoder()
    bad.transformer.h[3].mlp.c_fc.weight.data[5, 3] += 0.5
    report = driftwalk.verify(decoder(), candidate=bad, policy="calibrated", depth=depth)
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == cause
    assert report.cause == cause
    assert report.culprit is not None
    assert report.culprit.module == "transformer.h.3.mlp.c_fc"


def test_a_depth_nobody_knows() -> None:
    with pytest.raises(UsageError, match="block, sublayer, module"):
        driftwalk.verify(decoder(), depth="atom")
    with pytest.raises(UsageError, match="block, sublayer, module"):
        driftwalk.backend("torch", decoder(), depth="op")


class Named(nn.Module):
    """A block whose parts are called as in other people's models."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def compound() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ({"attention": compound, "ffn": compound}, ["attn", "mlp"]),
        ({"attention": compound, "attn": nn.ReLU}, ["attention", "attn"]),
        ({"att_1": compound, "att_2": compound}, ["att_1", "att_2"]),
        ({"ffn": nn.ReLU, "drop": nn.Dropout, "same": nn.Identity}, ["ffn"]),
    ],
    ids=["canonical", "taken", "two of a kind", "single matrix"],
)
def test_a_name_is_canonical_only_where_it_is_certain(
    parts: dict[str, Callable[[], nn.Module]], names: list[str]
) -> None:
    block = Named(**{name: make() for name, make in parts.items()})
    assert [part.name for part in parts_of(block, "sublayer")] == names
