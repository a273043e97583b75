"""One weight of one part is changed: the walk names that part, and nothing before it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftwalk
from driftwalk_backends.demo import LAYERS, decoder, encoder, faulty_decoder

BLOCKS = {"decoder": "transformer.h", "encoder": "bert.encoder.layer"}
WEIGHTS = {
    "decoder": {"attention": "attn.c_attn", "mlp": "mlp.c_proj", "norm": "ln_2"},
    "encoder": {
        "attention": "attention.self.query",
        "mlp": "output.dense",
        "norm": "output.LayerNorm",
    },
}
MAKERS = {"decoder": decoder, "encoder": encoder}


def change(module: nn.Module, path: str) -> None:
    """One element of a weight, by a tenth of the largest."""
    weight = module.get_submodule(path).weight
    assert isinstance(weight, torch.Tensor)
    with torch.no_grad():
        weight[(3,) * weight.ndim] += 0.1 * weight.abs().max()


def first_divergence(good: nn.Module, bad: nn.Module, probe: object = None) -> str:
    report = driftwalk.verify(good, candidate=bad, probe=probe, policy="dtype")
    assert not report.ok
    assert report.verdict == "drift"
    assert report.first_divergence is not None
    index = report.first_divergence.index
    assert all(layer.metrics and layer.metrics.max_abs == 0 for layer in report.layers[:index])
    return report.first_divergence.point.name


@pytest.mark.parametrize("block", [0, LAYERS // 2, LAYERS - 1])
@pytest.mark.parametrize("part", ["attention", "mlp", "norm"])
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_a_changed_weight_is_placed_in_its_block(kind: str, part: str, block: int) -> None:
    bad = MAKERS[kind]()
    change(bad, f"{BLOCKS[kind]}.{block}.{WEIGHTS[kind][part]}")
    assert first_divergence(MAKERS[kind](), bad) == f"layer.{block}"


def test_the_built_in_fault_is_found() -> None:
    assert first_divergence(decoder(), faulty_decoder(4)) == "layer.4"


def untied() -> nn.Module:
    """The decoder with a head of its own; GPT-2 shares it with the embedding."""
    module = decoder()
    module.lm_head.weight = nn.Parameter(module.lm_head.weight.detach().clone())
    return module


@pytest.mark.parametrize(
    ("make", "path", "point"),
    [
        (untied, "transformer.wte", "embed"),
        (decoder, "transformer.wpe", "embed"),
        (decoder, "transformer.ln_f", "norm"),
        (untied, "lm_head", "logits"),
        (encoder, "bert.embeddings.word_embeddings", "embed"),
        (encoder, "bert.embeddings.LayerNorm", "embed"),
        (encoder, "cls.predictions.transform.dense", "logits"),
    ],
)
def test_a_fault_outside_the_blocks(make: object, path: str, point: str) -> None:
    bad = make()  # type: ignore[operator]
    change(bad, path)
    ids = torch.arange(12).reshape(2, 6).numpy()  # so that row 3 of the tables is used
    assert first_divergence(make(), bad, {"input_ids": ids}) == point  # type: ignore[operator]


def test_a_tied_head_shows_at_the_embedding_first() -> None:
    bad = decoder()
    change(bad, "lm_head")
    ids = torch.arange(12).reshape(2, 6).numpy()
    assert first_divergence(decoder(), bad, {"input_ids": ids}) == "embed"


def test_a_fault_behind_the_mask_is_not_a_fault() -> None:
    bad = decoder()
    bad.transformer.wte.weight.data[9] += 1.0
    bad.lm_head.weight = nn.Parameter(decoder().lm_head.weight.detach().clone())
    ids = torch.arange(12).reshape(2, 6)  # id 9 stands in row 1, at position 3
    mask = torch.ones_like(ids)
    seen = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    assert first_divergence(untied(), bad, seen) == "embed"
    mask[1, 3:] = 0
    hidden = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    assert driftwalk.verify(untied(), candidate=bad, probe=hidden, policy="dtype").ok
