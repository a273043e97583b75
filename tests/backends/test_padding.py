"""Masks of one's own: padding is what does nothing, whatever the mask calls it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.dtypes import Array
from driftwalk.errors import ProbeError
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

WIDTH, ROWS, LENGTH = 8, 2, 6
IDS = np.random.default_rng(0).integers(1, 11, (ROWS, LENGTH))
PADDING = np.zeros((ROWS, LENGTH), bool)
PADDING[0, 4:] = True
LEAST = np.finfo(np.float32).min


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / WIDTH**0.5 + bias, -1)
        x = x + weights @ v
        return x + torch.tanh(self.mlp(x))


class Masked(nn.Module):
    """Attention with a mask that is read in one of many ways."""

    def __init__(self, reading: str, causal: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reading, self.causal = reading, causal
        self.table = nn.Embedding(11, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 11)

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        dtype = self.head.weight.dtype
        if self.reading == "inverted":
            bias = (attention_mask != 0)[:, None, :] * -1e9
        elif self.reading == "kept":
            bias = (attention_mask == 0)[:, None, :] * -1e9
        elif self.reading == "added":
            bias = attention_mask.reshape(len(ids), -1, ids.shape[1])
        else:
            bias = torch.zeros(len(ids), 1, ids.shape[1])
        bias = bias.to(dtype).clamp(min=torch.finfo(dtype).min)
        if self.causal:
            size = ids.shape[1]
            bias = bias + torch.full((size, size), -1e9, dtype=dtype).triu(1)
        x = self.table(ids) + self.place.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, bias)
        return self.head(x)


MASKS: dict[str, tuple[str, Array]] = {
    "inverted": ("inverted", PADDING.astype(np.int64)),
    "inverted bool": ("inverted", PADDING),
    "kept": ("kept", (~PADDING).astype(np.int64)),
    "kept float": ("kept", (~PADDING).astype(np.float32)),
    "minus infinity": ("added", np.where(PADDING, -np.inf, 0).astype(np.float32)),
    "minus ten thousand": ("added", np.where(PADDING, -10000, 0).astype(np.float32)),
    "four axes": ("added", np.where(PADDING, LEAST, 0).astype(np.float32)[:, None, None, :]),
    "square": (
        "added",
        np.repeat(np.where(PADDING, LEAST, 0).astype(np.float32)[:, None, None, :], LENGTH, 2),
    ),
}


def kept(module: nn.Module, inputs: dict[str, Any], point: str = "layer.0") -> Array | None:
    probe = make_probe(open_model(module), inputs)
    return probe.keep(point, (ROWS, LENGTH, WIDTH))


@pytest.mark.parametrize("name", MASKS)
def test_padding_is_found_by_what_it_does(name: str) -> None:
    reading, mask = MASKS[name]
    module = Masked(reading)
    probe = {"ids": IDS, "attention_mask": mask}
    found = kept(module, probe)
    assert found is not None
    np.testing.assert_array_equal(found, ~PADDING)

    bad = copy.deepcopy(module)
    with torch.no_grad():
        bad.blocks[1].mlp.weight *= 1.05
    report = driftwalk.verify(module, candidate=bad, probe=probe)
    assert report.cause == "layer.1"
    assert "2 of 12 positions were left out as padding." in report.notes
    assert driftwalk.verify(module, candidate=copy.deepcopy(module), probe=probe).ok


class PerToken(Masked):
    """Gives one whole number and one score for each token as well, at padding, too."""

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        x = super().forward(ids, attention_mask)
        return {"logits": x, "ids": x.argmax(-1), "scores": x.mean(-1)}


def test_padding_is_found_beside_outputs_of_one_number_per_token() -> None:
    probe = {"ids": IDS, "attention_mask": PADDING.astype(np.int64)}
    found = kept(PerToken("inverted"), probe)
    assert found is not None
    np.testing.assert_array_equal(found, ~PADDING)


def test_a_fault_at_kept_positions_is_seen() -> None:
    """Taken for an attention mask, only the padding was compared, and this passed."""

    class WrongWherePadded(Masked):
        def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            x = super().forward(ids, attention_mask)
            return torch.where(attention_mask[..., None] != 0, x, 0 * x)

    probe = {"ids": IDS, "attention_mask": PADDING.astype(np.int64)}
    report = driftwalk.verify(
        Masked("inverted"), candidate=WrongWherePadded("inverted"), probe=probe
    )
    assert report.verdict == "drift"


@pytest.mark.parametrize(
    ("reading", "causal", "mask"),
    [
        ("ignored", False, ~PADDING),  # every position matters, whatever the mask says
        ("ignored", True, ~PADDING),  # nothing looks ahead: the last positions only seem padding
        ("kept", True, ~PADDING),
        ("added", False, np.where(PADDING, 0.3, 0).astype(np.float32)),  # a bias, not a mask
    ],
    ids=["ignored", "causal", "causal and masked", "bias"],
)
def test_in_doubt_all_positions_are_compared(reading: str, causal: bool, mask: Array) -> None:
    module = Masked(reading, causal=causal)
    probe = {"ids": IDS, "attention_mask": mask}
    assert kept(module, probe) is None
    report = driftwalk.verify(module, candidate=copy.deepcopy(module), probe=probe)
    assert report.ok
    assert any("so all positions were compared" in note for note in report.notes)


def test_torchs_own_transformer_pads_where_its_mask_is_true() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    module = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    rows = np.random.default_rng(0).standard_normal((ROWS, LENGTH, WIDTH), dtype=np.float32)
    found = kept(module, {"src": rows, "src_key_padding_mask": PADDING})
    assert found is not None
    np.testing.assert_array_equal(found, ~PADDING)


def test_two_masks_each_for_its_own_half() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    module = nn.Transformer(WIDTH, 2, 2, 2, 16, custom_encoder=encoder, batch_first=True).eval()
    rows = np.random.default_rng(0).standard_normal((2, ROWS, LENGTH, WIDTH), dtype=np.float32)
    target = np.zeros((ROWS, LENGTH), bool)
    target[1, :2] = True
    inputs = {
        "src": rows[0],
        "tgt": rows[1],
        "src_key_padding_mask": PADDING,
        "memory_key_padding_mask": PADDING,
        "tgt_key_padding_mask": target,
    }
    decoder = kept(module, inputs, "decoder.layer.0")
    assert decoder is not None
    np.testing.assert_array_equal(decoder, ~target)


def test_a_transformers_model_is_believed() -> None:
    mask = (~PADDING).astype(np.int64)
    found = kept(zoo.build("gpt2"), {"input_ids": IDS, "attention_mask": mask})
    assert found is not None
    np.testing.assert_array_equal(found, ~PADDING)
    with pytest.raises(ProbeError, match="a row that is all zero"):
        kept(zoo.build("gpt2"), {"input_ids": IDS, "attention_mask": 0 * mask})


def test_a_recorded_trace_remembers_the_padding(tmp_path: Any) -> None:
    probe = {"ids": IDS, "attention_mask": PADDING.astype(np.int64)}
    trace = driftwalk.record(Masked("inverted"), probe=probe)
    loaded = driftwalk.Trace.load(trace.save(tmp_path / "one.trace"))
    found = loaded.probe.keep("layer.0", (ROWS, LENGTH, WIDTH))
    assert found is not None
    np.testing.assert_array_equal(found, ~PADDING)
