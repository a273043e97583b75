"""Exported programs as candidates: run as they are, looked at layer by layer, refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401 - has the operations registered
from transformers import LlamaConfig, LlamaForCausalLM

import driftwalk
import exported_programs as programs
from driftwalk_backends.programs.nested import nested
from driftwalk_backends.programs.roundings import in_float

IDS = torch.arange(24).reshape(2, 12)
GIVEN = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
PROBE = {name: value.numpy() for name, value in GIVEN.items()}


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=3,
        hidden_size=64,
        intermediate_size=128,
        vocab_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def program(model: LlamaForCausalLM) -> fx.GraphModule:
    return programs.exported(model, GIVEN)


def test_its_modules_compute_what_it_does_bit_by_bit(program: fx.GraphModule) -> None:
    made = nested(program)
    whole = program(**GIVEN).logits
    seen: list[torch.Tensor] = []
    block = made.get_submodule("model.layers.1")
    block.register_forward_hook(lambda _, args, output: seen.extend((args[0], output)))
    assert torch.equal(made(**GIVEN).logits, whole)
    assert [tuple(one.shape) for one in seen] == [(2, 12, 64)] * 2


def test_a_program_passes_with_all_of_the_models_points(
    model: LlamaForCausalLM, program: fx.GraphModule
) -> None:
    report = driftwalk.verify(model, program, probe=PROBE)
    assert report.verdict == "pass", report.notes
    names = ["embed", "layer.0", "layer.1", "layer.2", "norm", "logits"]
    assert [layer.point.name for layer in report.layers] == names
    assert report.format is None


def test_an_operation_that_was_changed_is_found_in_its_layer(
    model: LlamaForCausalLM, program: fx.GraphModule
) -> None:
    wrong = programs.copied(program)
    node = [n for n in wrong.graph.nodes if "silu" in str(n.target)][1]
    node.target = torch.ops.aten.gelu.default
    wrong.recompile()
    report = driftwalk.verify(model, wrong, probe=PROBE)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert report.culprit is not None
    assert report.culprit.module.startswith("model.layers.1.mlp")


def test_inputs_of_another_size_than_it_was_exported_for_are_refused(
    model: LlamaForCausalLM, program: fx.GraphModule
) -> None:
    other = {name: value[:, :5] for name, value in PROBE.items()}
    with pytest.raises(driftwalk.DriftwalkError, match=r"input_ids of size \[2, 12\]"):
        driftwalk.verify(model, program, probe=other)


def test_a_size_that_may_be_any_is_not_held_to_one(model: LlamaForCausalLM) -> None:
    size = torch.export.Dim("size", min=4, max=64)
    shapes = {name: {1: size} for name in GIVEN}
    made = programs.exported(model, GIVEN, dynamic_shapes=shapes)
    shorter = {name: value[:, :7] for name, value in PROBE.items()}
    assert driftwalk.verify(model, made, probe=shorter).verdict == "pass"


def test_an_exported_program_object_is_taken_as_its_module(model: LlamaForCausalLM) -> None:
    made = torch.export.export(model, (), dict(GIVEN), strict=False)
    assert driftwalk.verify(model, made, probe=PROBE).verdict == "pass"


def test_a_rounding_that_is_not_known_is_refused_by_name(
    model: LlamaForCausalLM, program: fx.GraphModule
) -> None:
    other = programs.copied(program)
    node = next(n for n in other.graph.nodes if "linear" in str(n.target))
    unknown = torch.ops.quantized_decomposed.fake_quant_per_channel.default
    with other.graph.inserting_before(node):
        rounded = other.graph.call_function(unknown, (node.args[1], 1.0, 0, 0, -128, 127))
    node.args = (node.args[0], rounded, *node.args[2:])
    with pytest.raises(driftwalk.DriftwalkError, match="fake_quant_per_channel"):
        driftwalk.verify(model, other, probe=PROBE)


@given(st.integers(0, 2**31), st.sampled_from(["tensor", "channel", "token", "chosen"]))
@settings(max_examples=40, deadline=None)
def test_roundings_in_float_are_the_operations_themselves(seed: int, way: str) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 7, generator=draw)
    ops: Any = torch.ops.quantized_decomposed
    step, zero = 0.013, 3
    steps, zeros = torch.rand(5, generator=draw) + 0.01, torch.arange(5)
    rest = (-128, 127, torch.int8)
    if way == "tensor":
        pair = ops.quantize_per_tensor.default, ops.dequantize_per_tensor.default
        given: tuple[Any, ...] = (step, zero, *rest)
    elif way == "channel":
        pair = ops.quantize_per_channel.default, ops.dequantize_per_channel.default
        given = (steps, zeros, 0, *rest)
    elif way == "token":
        pair = ops.quantize_per_token.default, ops.dequantize_per_token.default
        chosen = ops.choose_qparams_per_token_asymmetric.default
        mine = in_float(chosen, (x.double(), torch.int8), {}, torch.float64)
        theirs = chosen(x, torch.int8)
        torch.testing.assert_close(mine[0], theirs[0].double(), rtol=1e-5, atol=0)
        assert torch.equal(mine[1], theirs[1].double())
        given = (theirs[0].float(), theirs[1], *rest)
    else:
        pair = ops.quantize_per_tensor.tensor, ops.dequantize_per_tensor.tensor
        chosen = ops.choose_qparams.tensor
        asked = (-128, 127, 1e-6, torch.int8)
        mine = in_float(chosen, (x.double(), *asked), {}, torch.float64)
        theirs = chosen(x, *asked)
        torch.testing.assert_close(mine[0].reshape(-1), theirs[0].double(), rtol=1e-5, atol=0)
        assert torch.equal(mine[1].reshape(-1), theirs[1].double())
        given = (*theirs, *rest)
    numbers = pair[0](x, *given)
    rounded = in_float(pair[0], (x.double(), *given), {}, torch.float64)
    tipped = (rounded - numbers.double()).abs()
    assert float(tipped.max()) <= 1
    assert int(tipped.count_nonzero()) <= 1
    more = (torch.float32,) if way == "token" else ()
    read = in_float(pair[1], (numbers, *given, *more), {}, torch.float64)
    torch.testing.assert_close(read, pair[1](numbers, *given, *more).double(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("by_name", [False, True])
def test_inputs_are_given_as_the_program_was_exported_with_them(by_name: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    x = torch.randn(2, 3, 8)
    args, kwargs = ((), {"input": x}) if by_name else ((x,), {})
    program = torch.export.export(model, args, kwargs).module()
    assert driftwalk.verify(model, program, probe={"input": x}).verdict == "pass"
