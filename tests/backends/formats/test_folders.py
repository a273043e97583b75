"""Folders of GPTQ, AWQ and fp8 weights: read as they declare themselves, caught where wrong."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import driftwalk
import packed_folders as pack
from driftwalk_backends.formats.folders import words
from driftwalk_backends.formats.folders.declaring import declared_in
from driftwalk_backends.formats.folders.layouts import rounded
from driftwalk_backends.formats.folders.undeclared import _speaks_of
from driftwalk_backends.sources import as_saved, open_model

UP, DOWN = "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"
SHAPE = (64, 96)


@pytest.fixture(scope="module")
def model() -> tf.LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    return tf.LlamaForCausalLM(tf.LlamaConfig(**sizes, **heads)).eval()


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([2, 3, 4, 8]), st.integers(1, 3), st.integers(0, 99))
def test_what_was_packed_is_unpacked(bits: int, columns: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 1 << bits, (64, 8 * columns), generator=draw)
    assert np.array_equal(words.stream(pack.packed(numbers, bits).numpy(), bits), numbers)
    if bits == 4:
        assert np.array_equal(words.awq(pack.packed_awq(numbers).numpy()), numbers)


GPTQ: list[dict[str, Any]] = [
    {"bits": 2, "symmetric": False},
    {"bits": 3},
    {"bits": 4},
    {"bits": 4, "symmetric": False, "second": True},
    {"bits": 4, "order": True},
    {"bits": 8, "index": False, "size": 96},
]


@pytest.mark.parametrize("how", GPTQ, ids=str)
def test_a_stored_weight_of_gptq_is_its_numbers_times_its_steps(how: dict[str, Any]) -> None:
    weight = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    held = pack.gptq(**how)("layer", weight)
    form = "gptq_v2" if how.get("second") else "gptq"
    says = declared_in(pack.gptq_says(how["bits"], checkpoint_format=form), "here")
    assert says is not None
    one = rounded("layer", held, says)
    size = how.get("size", 32)
    of = held["g_idx"].long() if "g_idx" in held else torch.arange(96) // size
    numbers, steps, zeros = pack.grouped(weight, of, how["bits"], how.get("symmetric", True))
    plain = ((numbers - zeros[:, of]) * steps[:, of]).double().numpy()
    assert one.values == pytest.approx(plain, rel=1e-6)
    assert one.honest(weight.numpy()).is_right
    assert (one.order is not None) == bool(how.get("order"))
    assert form in one.grid.name
    turned = one.turned()
    assert turned.values == pytest.approx(plain.T, rel=1e-6)
    assert turned.honest(weight.T.numpy()).is_right


def test_a_last_group_may_be_shorter() -> None:
    weight = torch.randn(64, 96)
    says = declared_in(pack.gptq_says(4, 64), "here")
    assert says is not None
    one = rounded("layer", pack.gptq(size=64)("layer", weight), says)
    assert one.block == (1, 32)
    assert one.honest(weight.numpy()).is_right


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_auto_round_reads_the_same_numbers(bits: int) -> None:
    """An independent reader, where it is installed."""
    module = pytest.importorskip("auto_round_extension.torch.qlinear_torch_zp")
    weight = torch.randn(SHAPE)
    held = pack.gptq(bits, symmetric=False, order=True)("layer", weight)
    theirs = module.QuantLinear(bits, 32, 96, 64, bias=False, g_idx=True)
    for name, tensor in held.items():
        setattr(theirs, name, tensor.contiguous())
    says = declared_in(pack.gptq_says(bits), "here")
    assert says is not None
    made = theirs(torch.eye(96)).T.numpy()
    assert rounded("layer", held, says).values == pytest.approx(made, rel=1e-3, abs=1e-6)


def test_autoawq_reads_the_same_numbers() -> None:
    """An independent reader, where it is installed."""
    module = pytest.importorskip("awq.utils.packing_utils")
    weight = torch.randn(SHAPE)
    held = pack.awq()("layer", weight)
    made = module.dequantize_gemm(held["qweight"], held["qzeros"], held["scales"], 4, 32)
    says = declared_in(pack.AWQ_SAYS, "here")
    assert says is not None
    assert rounded("layer", held, says).values == pytest.approx(made.T.numpy(), rel=1e-3)


@pytest.fixture(scope="module")
def stored(model: tf.LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack.written(model, tmp_path_factory.mktemp("gptq"), *CLEAN["gptq"])


@pytest.fixture
def folder(stored: Path, tmp_path: Path) -> Path:
    """Of GPTQ weights, to be changed."""
    return Path(shutil.copytree(stored, tmp_path / "changed"))


CLEAN: dict[str, tuple[pack.Rounder, dict[str, Any]]] = {
    "gptq": (pack.gptq(order=True), pack.gptq_says(desc_act=True)),
    "gptq_v2, 3 bits": (
        pack.gptq(3, symmetric=False, second=True),
        pack.gptq_says(3, checkpoint_format="gptq_v2"),
    ),
    "awq": (pack.awq(), pack.AWQ_SAYS),
    "auto-round": (
        pack.gptq(),
        {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"},
    ),
    "fp8": (pack.fp8((32, 32)), pack.fp8_says((32, 32))),
    "fp8, fixed": (pack.fp8((128, 128), 0.01), pack.fp8_says((128, 128), "static")),
}


@pytest.mark.parametrize("kind", CLEAN)
def test_a_folder_passes_and_says_what_its_format_costs(
    model: tf.LlamaForCausalLM, kind: str, tmp_path: Path
) -> None:
    rounder, says = CLEAN[kind]
    report = driftwalk.verify(model, f"torch,folder={pack.written(model, tmp_path, rounder, says)}")
    assert report.verdict == "pass", report.reason
    assert report.candidate.dtype == "fp16"
    assert report.format is not None
    assert sum(one.weights for one in report.format.stored) == 14
    assert not report.format.wrong
    assert not report.format.own_way
    cost = report.format.layers["logits"]
    assert cost.relative_format > 1e-3
    if "fp8" in kind:
        assert "fp8" in report.format.stored[0].inputs


def test_gpt2_has_its_linear_layers_turned(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 64, "n_head": 2, "vocab_size": 64, "n_positions": 32}
    made = tf.GPT2LMHeadModel(tf.GPT2Config(**sizes)).eval()
    folder = pack.written(made, tmp_path, pack.gptq(order=True), pack.gptq_says())
    report = driftwalk.verify(made, f"torch,folder={folder}")
    assert report.verdict == "pass", report.reason
    assert report.format is not None
    assert not report.format.wrong


def test_scaled_channels_are_no_fault_of_awq(model: tf.LlamaForCausalLM, tmp_path: Path) -> None:
    scaled = pack.awq_scaled(model)
    folder = pack.written(scaled, tmp_path, pack.awq(), pack.AWQ_SAYS)
    report = driftwalk.verify(model, f"torch,folder={folder}")
    assert report.verdict == "pass", report.reason
    assert report.format is not None
    assert not report.format.wrong
    assert not report.format.own_way


def _norm_as_it_was(tensors: pack.Tensors, model: tf.LlamaForCausalLM) -> None:
    norm = model.model.layers[1].input_layernorm.weight
    tensors["model.layers.1.input_layernorm.weight"] = norm.detach().half().clone()


def _one_layer_as_it_was(tensors: pack.Tensors, model: tf.LlamaForCausalLM) -> None:
    path = "model.layers.1.self_attn.k_proj"
    stored = pack.awq()(path, model.get_submodule(path).weight.detach())
    tensors |= {f"{path}.{name}": one.contiguous() for name, one in stored.items()}


@pytest.mark.parametrize("change", [_norm_as_it_was, _one_layer_as_it_was])
def test_channels_that_are_scaled_on_one_side_only_are(
    model: tf.LlamaForCausalLM,
    change: Callable[[pack.Tensors, tf.LlamaForCausalLM], None],
    tmp_path: Path,
) -> None:
    folder = pack.written(pack.awq_scaled(model), tmp_path, pack.awq(), pack.AWQ_SAYS)
    pack.changed(folder, lambda tensors: change(tensors, model))
    report = driftwalk.verify(model, f"torch,folder={folder}")
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"


def _step(tensors: pack.Tensors) -> None:
    tensors[f"{UP}.scales"][0, 5] *= 1.3


def _neighbours(tensors: pack.Tensors) -> None:
    held = tensors[f"{UP}.qweight"]
    held[[0, 1]] = held[[1, 0]]


def _order(tensors: pack.Tensors) -> None:
    of = tensors[f"{DOWN}.g_idx"]
    tensors[f"{DOWN}.g_idx"] = torch.arange(len(of)).int() // 32


@pytest.mark.parametrize("change", [_step, _neighbours, _order])
def test_what_a_folder_stores_wrong_is_drift_of_its_layer(
    model: tf.LlamaForCausalLM, change: Callable[[pack.Tensors], None], folder: Path
) -> None:
    report = driftwalk.verify(model, f"torch,folder={pack.changed(folder, change)}")
    assert report.verdict == "drift"
    assert report.format is not None
    assert list(report.format.wrong) in ([UP], [DOWN])
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"


def test_zeros_of_the_other_convention_are_told(model: tf.LlamaForCausalLM, tmp_path: Path) -> None:
    says = pack.gptq_says(checkpoint_format="gptq_v2")
    folder = pack.written(model, tmp_path, pack.gptq(), says)
    report = driftwalk.verify(model, f"torch,folder={folder}")
    assert report.verdict == "drift"
    assert report.format is not None
    assert len(report.format.wrong) == 14


def test_as_the_model_a_folder_is_its_plain_numbers(
    model: tf.LlamaForCausalLM, folder: Path
) -> None:
    opened, saved = open_model(str(folder)), as_saved(str(folder))
    weight = opened.module.get_submodule(UP).weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight.half(), saved.get_submodule(UP).weight)
    report = driftwalk.verify(str(folder), "torch:cpu:bf16")
    assert report.verdict == "pass", report.reason
    assert any("(gptq)" in note for note in report.notes)


def test_transformers_reads_the_same_fp8_weights(
    model: tf.LlamaForCausalLM, tmp_path: Path
) -> None:
    """It makes plain numbers of them where there is no GPU."""
    folder = pack.written(model, tmp_path, *CLEAN["fp8"])
    pytest.importorskip("accelerate")
    theirs = tf.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = as_saved(str(folder))
    for path in (UP, DOWN):
        both = [one.get_submodule(path).weight.detach().float() for one in (theirs, ours)]
        assert both[0].numpy() == pytest.approx(both[1].numpy(), rel=2e-3, abs=1e-7)


def _with(name: str, make: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    def change(tensors: pack.Tensors) -> None:
        made = make(tensors.pop(name))
        if made is not None:
            tensors[name] = made.contiguous()

    return change


BAD = {
    "scales of another shape": (_with(f"{UP}.scales", lambda t: t[:, :8]), "up_proj.qweight"),
    "too few groups": (_with(f"{UP}.scales", lambda t: t[:1]), "up_proj.qzeros"),
    "qzeros of another shape": (_with(f"{UP}.qzeros", lambda t: t[:, :1]), "up_proj.qzeros"),
    "g_idx out of range": (_with(f"{UP}.g_idx", lambda t: t + 1), "names group 2"),
    "g_idx below zero": (_with(f"{UP}.g_idx", lambda t: t - 1), "names group -1"),
    "g_idx too short": (_with(f"{UP}.g_idx", lambda t: t[:32]), "g_idx' has 32 inputs"),
    "g_idx of floats": (_with(f"{UP}.g_idx", lambda t: t.float()), "expected whole numbers"),
    "no scales": (_with(f"{UP}.scales", lambda t: None), "up_proj.scales' is missing"),
    "no qweight": (_with(f"{UP}.qweight", lambda t: None), "belongs to no qweight"),
    "floats for words": (_with(f"{UP}.qweight", lambda t: t.float()), "expected a matrix of int32"),
    "another model's": (
        lambda tensors: tensors.update(
            {
                f"{UP}.{n}": tensors[f"{DOWN}.{n}"].clone()
                for n in ("qweight", "qzeros", "scales", "g_idx")
            }
        ),
        "of another size",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_tensors_that_do_not_fit_are_named(
    model: tf.LlamaForCausalLM, kind: str, folder: Path
) -> None:
    change, why = BAD[kind]
    pack.changed(folder, change)
    for taken, candidate in ((model, f"torch,folder={folder}"), (str(folder), "torch")):
        with pytest.raises(driftwalk.DriftwalkError, match=why):
            driftwalk.verify(taken, candidate)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (pack.gptq_says(5), "of 5 bits are not read"),
        (pack.gptq_says(True), "of True bits"),
        (pack.gptq_says(checkpoint_format="marlin"), "layout 'marlin'"),
        (pack.AWQ_SAYS | {"version": "gemv"}, "layout 'gemv'"),
        (pack.fp8_says((0, 128)), "weight_block_size"),
        (pack.fp8_says((128, 128), "sometimes"), "activation_scheme"),
        (pack.fp8_says((128, 128)), "no tensor of it is a weight_scale_inv"),
        ({"quant_method": "rot13\x1b[31m"}, r"quant_method 'rot13\\x1b"),
        ({"bits": 4}, "quant_method None"),
        ("x", "quantization_config of config.json is 'x'; expected a table"),
        ([1, 2], r"quantization_config of config.json is \[1, 2\]"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    model: tf.LlamaForCausalLM, says: Any, why: str, folder: Path
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": says}))
    for taken, candidate in ((model, f"torch,folder={folder}"), (str(folder), "torch")):
        with pytest.raises(driftwalk.DriftwalkError, match=why):
            driftwalk.verify(taken, candidate)


def test_a_layer_in_float_that_nothing_spares_is_drift(
    model: tf.LlamaForCausalLM, folder: Path
) -> None:
    path = "model.layers.1.mlp.down_proj"

    def in_float(tensors: pack.Tensors) -> None:
        for name in [name for name in tensors if name.startswith(f"{path}.")]:
            del tensors[name]
        tensors[f"{path}.weight"] = model.get_submodule(path).weight.detach().half()

    pack.changed(folder, in_float)
    report = driftwalk.verify(model, f"torch,folder={folder}")
    assert report.verdict == "drift"
    assert report.format is not None
    assert list(report.format.wrong) == [path]
    assert "stored in float" in report.format.wrong[path].sentence
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    report.save(folder / "report")

    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["modules_to_not_convert"] = ["layers.1.mlp.down_proj"]
    (folder / "config.json").write_text(json.dumps(config))
    report = driftwalk.verify(model, f"torch,folder={folder}")
    assert report.verdict == "pass", report.reason
    assert report.format is not None
    assert path in report.format.in_float


@pytest.mark.parametrize(
    ("pattern", "speaks"),
    [
        ("model.layers.1.mlp.down_proj", True),
        ("mlp.down_proj", True),
        ("-:model\\.layers\\.1\\..*down_proj", True),
        ("model.layers.0.*", False),
        ("lm_head", False),
        ("(a|b)+", True),  # of what cannot be read, nothing is accused
    ],
)
def test_which_modules_a_pattern_spares(pattern: str, speaks: bool) -> None:
    assert _speaks_of("model.layers.1.mlp.down_proj", pattern) is speaks


def test_pickled_weights_are_never_read(model: tf.LlamaForCausalLM, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(driftwalk.DriftwalkError, match="pickles are never read"):
        driftwalk.verify(model, f"torch,folder={folder}")
    assert "gptqmodel" not in sys.modules
