"""A GGUF file as a model: the weights that it declares, or why it is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import driftwalk
from cli.program import invoke
from driftwalk.errors import ModelError
from driftwalk_backends.gguf.header import read_header
from driftwalk_backends.gguf.source import check_sizes, numbers_of
from driftwalk_backends.sources import open_model
from gguf_files import Weights, tiny, write

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

IDS = {"input_ids": (np.arange(24).reshape(2, 12) * 13) % 320}
UINT32 = 4


def logits(module: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return module(input_ids=torch.from_numpy(IDS["input_ids"])).logits.numpy()


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_file_of_float32_is_the_model_it_was_made_of(tmp_path: Path, kind: str) -> None:
    model = tiny(kind)
    found = open_model(f"gguf:{write(tmp_path / 'm.gguf', model)}")
    assert np.array_equal(logits(found.module), logits(model))
    assert found.source == "GGUF file"


@pytest.mark.parametrize("block", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_blocks_are_made_plain_numbers(tmp_path: Path, block: str) -> None:
    model = tiny()
    path = write(tmp_path / "m.gguf", model, block)
    found = open_model(path)
    header = read_header(path)
    own = found.module.model.layers[1].mlp.down_proj.weight.detach().numpy()
    assert np.array_equal(own, numbers_of(header.tensors["blk.1.ffn_down.weight"], path))
    off = np.abs(own - model.model.layers[1].mlp.down_proj.weight.detach().numpy()).max()
    assert 0 < off < 0.2 * np.abs(own).max()


def test_a_file_is_verified_as_any_model(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny(), "Q8_0")
    report = driftwalk.verify(str(path), candidate="emulated:bf16", probe=IDS)
    assert report.verdict == "pass"
    assert [row.point.name for row in report.layers][:2] == ["embed", "layer.0"]


def test_rotary_frequencies_of_its_own_are_used(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)

    def add(weights: Weights) -> None:
        weights["rope_freqs.weight"] = factors

    model = tiny()
    found = open_model(write(tmp_path / "m.gguf", model, change=add))
    assert not np.allclose(logits(found.module), logits(model))
    model.model.rotary_emb.inv_freq /= torch.from_numpy(factors)
    assert np.array_equal(logits(found.module), logits(model))


@pytest.mark.parametrize(
    ("key", "size"),
    [
        ("block_count", 4),
        ("block_count", 0),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("attention.layer_norm_rms_epsilon", -1.0),
        ("rope.freq_base", float("inf")),
        ("block_count", 10**9),
        ("embedding_length", 2**31),
        ("vocab_size", 2**31),
        ("context_length", 2**31),
    ],
)
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, key: str, size: float) -> None:
    header = read_header(write(tmp_path / "m.gguf", tiny()))
    changed = {**header.metadata, f"llama.{key}": size}
    check_sizes(header)
    with pytest.raises(ModelError, match=key):
        check_sizes(type(header)(header.path, 3, changed, header.lengths, header.tensors))


def test_sizes_that_multiply_to_too_much_are_refused(tmp_path: Path) -> None:
    """Each is the size of an axis; a model of them would have a thousand times the numbers."""

    def thin(weights: Weights) -> None:
        for name in [n for n in weights if n.endswith("weight") and weights[n].ndim == 2]:
            weights[name] = np.zeros((1, 32), np.float32)
        weights["token_embd.weight"] = np.zeros((1, 20000), np.float32)

    model = tiny()
    model.config.hidden_size = 20000
    path = write(tmp_path / "m.gguf", model, change=thin)
    with pytest.raises(ModelError, match=r"has 3,.* weights, and its tensors have"):
        open_model(path)


def test_a_weight_that_is_missing_is_named(tmp_path: Path) -> None:
    def drop(weights: Weights) -> None:
        del weights["blk.1.ffn_up.weight"]

    path = write(tmp_path / "m.gguf", tiny(), change=drop)
    invoke("verify", str(path)).refused(3, "1 are missing", "layers.1.mlp.up_proj.weight")


def test_a_model_that_transformers_lacks_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny())
    raw = path.read_bytes().replace(b"llama", b"lemma")
    path.write_bytes(raw)
    invoke("verify", str(path)).refused(3, "cannot load m.gguf", "'lemma'")


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny())
    path.write_bytes(path.read_bytes()[:-40_000])
    invoke("verify", f"gguf:{path}").refused(3, "'m.gguf' is not read", "is cut off")


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny())
    invoke("verify", str(path), "--prompt", "hello").refused(3, "tokenizer", "token ids")


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_what_a_file_costs_is_told_without_llama_cpp(tmp_path: Path, kind: str) -> None:
    model = tiny()
    path = write(tmp_path / "m.gguf", model, kind)
    report = driftwalk.verify(model, candidate=f"gguf:{path}", probe=IDS)
    assert report.verdict == "pass", report
    assert report.format is not None
    assert not report.format.wrong
    cost = report.format.layers["layer.2"]
    assert cost.format > 1e-4 * cost.scale
    assert cost.kernel < 1e-5 * cost.scale


def test_a_weight_that_is_none_of_the_models_is_told(tmp_path: Path) -> None:
    def roll(weights: Weights) -> None:
        weights["blk.1.attn_k.weight"] = np.roll(weights["blk.1.attn_k.weight"], 64, 0)

    model = tiny()
    path = write(tmp_path / "m.gguf", model, "Q8_0", roll)
    report = driftwalk.verify(model, candidate=f"gguf:{path}", probe=IDS)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert report.format is not None
    assert list(report.format.wrong) == ["model.layers.1.self_attn.k_proj"]


def test_a_spec_of_a_file_takes_nothing_else(tmp_path: Path) -> None:
    invoke("verify", "demo:decoder", "-c", "gguf").refused(2, "no GGUF file", "gguf:model.gguf")
    invoke("verify", "demo:decoder", "-c", "gguf:no.gguf").refused(2, "there is no file 'no.gguf'")
    invoke("verify", "demo:decoder", "-c", "gguf,attn=eager").refused(2, "no option 'attn'")
