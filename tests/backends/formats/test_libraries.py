"""Weights that bitsandbytes and compressed-tensors hold: read as they are, caught where wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import driftwalk
from driftwalk_backends.formats.in_libraries import UnknownFormatError, unpacked
from driftwalk_backends.formats.in_torch import stored_in
from driftwalk_backends.formats.rounded import Grid

TABLE = (-1.0, -0.5, -0.1, 0.0, 0.2, 1.0)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 5), st.integers(1, 40), st.integers(0, 9))
def test_packed_numbers_are_unpacked(bits: int, rows: int, columns: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 1 << bits, (rows, columns), np.uint64)
    each = 32 // bits
    padded = np.pad(numbers, ((0, 0), (0, -columns % each))).reshape(rows, -1, each)
    words = (padded << np.arange(0, 32, bits, dtype=np.uint64)).sum(-1, dtype=np.uint64)
    held = torch.from_numpy(words.astype(np.uint32).view(np.int32).copy())
    assert np.array_equal(unpacked(held, bits, columns), numbers)


@given(st.floats(-2, 2))
def test_of_a_table_the_nearest_number_is_taken(value: float) -> None:
    grid = Grid("own", -1.0, 1.0, table=TABLE)
    (found,) = grid.nearest(np.array([value]))
    assert abs(found - value) == min(abs(one - value) for one in TABLE)
    assert abs(found - np.clip(value, -1, 1)) <= float(grid.spacing(np.array([found]))[0]) / 2
    assert grid.bits == 3


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=128,
        intermediate_size=256,
        vocab_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval()


def four_bits(model: LlamaForCausalLM, kind: str, nested: bool) -> nn.Module:
    bnb = pytest.importorskip("bitsandbytes")
    made = copy.deepcopy(model)
    for path, part in [*made.named_modules()]:
        if isinstance(part, nn.Linear) and path != "lm_head":
            size = part.in_features, part.out_features
            new = bnb.nn.Linear4bit(*size, bias=False, quant_type=kind, compress_statistics=nested)
            new.load_state_dict(part.state_dict())
            made.set_submodule(path, new.to("cpu"))
    return made


def in_bf16() -> bool:
    """Whether bitsandbytes multiplies by four bits in bf16 on this CPU, whatever it is given."""
    return bool(pytest.importorskip("bitsandbytes").functional.has_avx512bf16())


@pytest.fixture(scope="module")
def fitting(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The model in the dtype that bitsandbytes computes in here."""
    return copy.deepcopy(model).bfloat16() if in_bf16() else model


def compressed(model: LlamaForCausalLM, preset: str, folder: Path) -> Path:
    """A folder as llm-compressor writes it, steps by the largest number of each group."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        apply_quantization_config,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    made = copy.deepcopy(model)
    scheme = preset_name_to_scheme(preset.partition(",")[0], targets=["Linear"])
    if "fixed" in preset:
        scheme.input_activations.dynamic = False
        scheme.input_activations.strategy = "tensor"
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
    apply_quantization_config(made, config)
    for part in made.modules():
        own: Any = part
        if getattr(part, "quantization_scheme", None) is None:
            continue
        args, scale = own.quantization_scheme.weights, own.weight_scale
        high, wide = (1, 1) if scale.numel() == 1 else scale.shape
        apart = own.weight.reshape(high, len(own.weight) // high, wide, -1)
        step, zero = calculate_qparams(apart.amin((1, 3)), apart.amax((1, 3)), args)
        own.weight_scale.data = step.reshape(own.weight_scale.shape)
        if hasattr(own, "input_scale"):  # a fixed one, as a calibration finds it
            own.input_scale.data.fill_(0.02)
        if hasattr(own, "weight_zero_point"):
            shape, dtype = own.weight_zero_point.shape, own.weight_zero_point.dtype
            own.weight_zero_point.data = zero.reshape(shape).to(dtype)
    compressor = ModelCompressor.from_pretrained_model(made)
    compressor.compress_model(made)
    made.save_pretrained(folder)
    compressor.update_config(folder)
    return folder


@pytest.mark.parametrize(("kind", "nested"), [("nf4", False), ("nf4", True), ("fp4", False)])
def test_four_bits_of_bitsandbytes_are_what_it_computes_with(
    model: LlamaForCausalLM, fitting: LlamaForCausalLM, kind: str, nested: bool
) -> None:
    made = four_bits(model, kind, nested)
    for one in stored_in(made):
        part: Any = made.get_submodule(one.path)
        eye = torch.eye(part.in_features)
        assert one.values == pytest.approx(part(eye).detach().numpy().T, rel=1e-6, abs=1e-8)
    report = driftwalk.verify(fitting, four_bits(fitting, kind, nested))
    assert report.verdict == "pass", report.reason
    assert report.format is not None
    assert report.format.stored[0].kind == kind


def test_a_kernel_of_bitsandbytes_that_computes_in_bf16_is_drift_in_float32(
    model: LlamaForCausalLM,
) -> None:
    made = four_bits(model, "nf4", False)
    part: Any = made.get_submodule("model.layers.1.mlp.up_proj")
    before = part.weight.data_ptr(), part.weight.quant_state.absmax
    report = driftwalk.verify(model, made)
    assert report.verdict == ("drift" if in_bf16() else "pass"), report.reason
    assert report.format is not None
    assert not report.format.wrong
    assert (report.format.layers["logits"].relative_kernel > 1e-3) == in_bf16()
    after = part.weight.data_ptr(), part.weight.quant_state.absmax
    assert after[0] == before[0]
    assert after[1] is before[1]


def test_a_wrong_step_of_bitsandbytes_is_found(fitting: LlamaForCausalLM) -> None:
    made = four_bits(fitting, "nf4", False)
    state: Any = made.get_submodule("model.layers.1.mlp.up_proj").weight
    state.quant_state.absmax[7] *= 1.5
    report = driftwalk.verify(fitting, made)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"


def test_a_wrong_step_is_found_beside_a_block_of_next_to_nothing(
    fitting: LlamaForCausalLM,
) -> None:
    """Steps that are rounded themselves are off by much, relatively, where they are small."""
    own = copy.deepcopy(fitting)
    own.model.layers[1].mlp.up_proj.weight.data[0, :64] *= 1e-6
    made = four_bits(own, "nf4", True)
    assert driftwalk.verify(own, made).verdict == "pass"
    state: Any = made.get_submodule("model.layers.1.mlp.up_proj").weight
    state.quant_state.absmax[7] += 60
    report = driftwalk.verify(own, made)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"


@pytest.mark.parametrize(
    "preset",
    ["W8A8", "W8A16", "W4A16", "W4A16_ASYM", "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "W8A8, fixed"],
)
def test_a_folder_of_compressed_tensors_passes(
    model: LlamaForCausalLM, preset: str, tmp_path: Path
) -> None:
    folder = compressed(model, preset, tmp_path / "made")
    report = driftwalk.verify(model, f"torch,folder={folder}")
    assert report.verdict == "pass", report.reason
    assert report.format is not None
    assert sum(one.weights for one in report.format.stored) == 14
    assert not report.format.wrong
    inputs = report.format.stored[0].inputs
    assert ("fixed" in inputs) == (preset in ("FP8", "W8A8, fixed"))
    assert ("fp8" in inputs) == ("FP8" in preset)


def test_a_folder_of_compressed_tensors_with_a_wrong_step_is_drift(
    model: LlamaForCausalLM, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = compressed(model, "W4A16", tmp_path / "made")
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.layers.0.mlp.gate_proj.weight_scale"][5] *= 1.3
    save_file(tensors, file, metadata={"format": "pt"})
    report = driftwalk.verify(model, f"torch,folder={folder}")
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.0"


def grouped_by_index(weight: torch.Tensor, of: torch.Tensor, size: int) -> nn.Module:
    """A layer in int4 as compressed-tensors stored it while it had an order of activations."""
    order = torch.argsort(of, stable=True)
    groups = weight[:, order].reshape(len(weight), -1, size)
    step = groups.abs().amax(-1) / 7.5
    numbers = (groups / step[..., None]).round().clamp(-8, 7).reshape(weight.shape)
    numbers = numbers[:, torch.argsort(order)].long() + 8
    each = numbers.reshape(len(weight), -1, 8)
    words = (each << (4 * torch.arange(8))).sum(-1).numpy().astype(np.uint32)
    part: Any = nn.Module()
    args = SimpleNamespace(type="int", num_bits=4, strategy="group", group_size=size)
    part.quantization_scheme = SimpleNamespace(weights=args, input_activations=None)
    part.register_buffer("weight_packed", torch.from_numpy(words.view(np.int32).copy()))
    part.register_buffer("weight_scale", step)
    part.register_buffer("weight_shape", torch.tensor(weight.shape))
    part.register_buffer("weight_g_idx", of.int())
    return part  # type: ignore[no-any-return]


@given(st.integers(0, 99))
def test_columns_are_grouped_by_their_index(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(16, 64, generator=draw) * (1 + torch.arange(64) / 8)
    of = (torch.arange(64) // 16)[torch.randperm(64, generator=draw)]
    part = grouped_by_index(weight, of, 16)
    (one,) = stored_in(part)
    assert one.honest(weight.numpy()).is_right
    assert np.abs(one.values - weight.numpy()).max() < float(part.weight_scale.max())
    part.weight_g_idx = of.int().sort().values
    (lost,) = stored_in(part)
    assert not lost.honest(weight.numpy()).is_right
    part.weight_g_idx[0] = 3
    with pytest.raises(UnknownFormatError, match="groups of different sizes"):
        stored_in(part)


def test_llm_int8_is_what_it_computes_with() -> None:
    table = pytest.importorskip("benchmarks.llm_int8_table")
    pytest.importorskip("bitsandbytes")
    model = table.with_outliers(_small())
    made = table.eight_bits(model, torch.float32)
    for one in stored_in(made):
        part: Any = made.get_submodule(one.path)
        x = torch.randn(4, 6, part.in_features)
        x[1, 2, 3] = 9.0
        x[..., 7] *= 5
        values = torch.from_numpy(one.values)
        assert one.inputs is not None
        expected = one.inputs.rounded(x.double()) @ values.T
        off = (part(x).detach() - expected).abs().amax(-1)
        assert float((off < 2e-4).double().mean()) > 0.9  # one may tip over, half-way in fp16
    report = driftwalk.verify(model, made)
    assert report.verdict == "pass", report.reason
    assert report.format is not None
    assert report.format.stored[0].inputs.endswith("columns beyond 6 in float")


@pytest.mark.parametrize("fault", ["one scale x 1.02", "signed read as unsigned"])
def test_a_fault_in_llm_int8_is_found(fault: str) -> None:
    pytest.importorskip("bitsandbytes")
    from benchmarks import llm_int8_table as table

    model = table.with_outliers(_small())
    made = table.eight_bits(model, torch.float16)
    path = "model.layers.1.mlp.up_proj"
    table.FAULTS[fault][0](made.get_submodule(path))
    report = driftwalk.verify(model, made)
    assert report.verdict == "drift"
    assert report.format is not None
    assert list(report.format.wrong) == [path]


def test_columns_that_llm_int8_must_keep_are_missed_where_it_rounds_them() -> None:
    pytest.importorskip("bitsandbytes")
    from benchmarks import llm_int8_table as table

    model = table.with_outliers(_small())
    made = table.eight_bits(model, torch.float32)
    table.no_outliers(made.get_submodule("model.layers.1.mlp.up_proj"))
    report = driftwalk.verify(model, made)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert report.format is not None
    assert not report.format.wrong


def test_inputs_that_llm_int8_must_round_are_missed_in_half_precision_too() -> None:
    pytest.importorskip("bitsandbytes")
    from benchmarks import llm_int8_table as table

    model, path = table.with_outliers(_small()), "model.layers.1.self_attn.q_proj"
    made = table.eight_bits(model, torch.float16)
    table.float_weight(made.get_submodule(path))
    report = driftwalk.verify(model, made)
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert report.format is not None
    assert not report.format.wrong


@pytest.mark.parametrize("seed", [1, 2])
def test_what_attention_rounds_inside_tips_over_the_inputs_of_what_follows(seed: int) -> None:
    """In fp16, in half of the tokens: the median token of that part is one of them by chance."""
    pytest.importorskip("bitsandbytes")
    from benchmarks import llm_int8_table as table
    from benchmarks.quantised_matrix import tiny

    model = table.with_outliers(dict(tiny(seed))["ViT"].eval())
    report = driftwalk.verify(model, table.eight_bits(model, torch.float16))
    assert report.verdict == "pass", report.first_divergence


@pytest.mark.parametrize(
    ("name", "seed", "path"),
    [("BERT", 1, "bert.encoder.layer.1.intermediate.dense"), ("GPT-2", 1, "lm_head")],
)
def test_inputs_whose_largest_number_is_half_way_are_to_be_rounded_all_the_same(
    name: str, seed: int, path: str
) -> None:
    """torchao's kernel may round that one either way, in every row; all of a row it must round."""
    pytest.importorskip("torchao")
    from benchmarks.quantised_matrix import FAULTS, formats, tiny

    model, rounded = dict(tiny(seed))[name].eval(), formats()["int8, dynamic"]
    assert driftwalk.verify(model, rounded(copy.deepcopy(model))).verdict == "pass"
    made = rounded(copy.deepcopy(model))
    FAULTS["sums in fp16"][0](made, path)
    report = driftwalk.verify(model, made)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert path.startswith(report.root_cause.point.module)
    assert report.format is not None
    assert not report.format.wrong


def _small() -> LlamaForCausalLM:
    torch.manual_seed(1)
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, vocab_size=128)).eval()


def _half(model: LlamaForCausalLM) -> nn.Module:
    return copy.deepcopy(model).half()


def _changed(model: LlamaForCausalLM) -> nn.Module:
    made = copy.deepcopy(model)
    made.model.layers[1].mlp.up_proj.weight.data[3] *= 1.1
    return made


@pytest.mark.parametrize(
    ("change", "verdict", "dtype"), [(_half, "pass", "fp16"), (_changed, "drift", "fp32")]
)
def test_another_folder_runs_in_the_model_s_place(
    model: LlamaForCausalLM,
    change: Callable[[LlamaForCausalLM], nn.Module],
    verdict: str,
    dtype: str,
    tmp_path: Path,
) -> None:
    change(model).save_pretrained(tmp_path)  # type: ignore[operator]
    report = driftwalk.verify(model, f"torch,folder={tmp_path}")
    assert report.verdict == verdict, report.reason
    assert report.candidate.dtype == dtype


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("torch,folder=nowhere", "There is no folder"),
        ("torch:cpu:bf16,folder=nowhere", "as it was saved"),
        ("torch,folder=nowhere,compile=eager", "do not go together"),
        ("emulated:bf16,folder=nowhere", "folder"),
    ],
)
def test_what_a_folder_cannot_be_is_said(model: LlamaForCausalLM, spec: str, why: str) -> None:
    with pytest.raises(driftwalk.DriftwalkError, match=why):
        driftwalk.verify(model, spec)
