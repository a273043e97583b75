"""Probes: everything a user may give, and everything that does not fit the model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.errors import ProbeError
from driftwalk.states import same_bits
from driftwalk_backends.demo import PAD, START
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "bird", "in", "the", "hand"]


def with_tokenizer(name: str, folder: Path, side: str = "right") -> LoadedModel:
    """A saved model of the zoo beside a tokenizer of nine words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", padding_side=side
    ).save_pretrained(folder)
    zoo.build(name).save_pretrained(folder)
    return open_model(folder)


def test_texts_are_padded_with_a_mask() -> None:
    probe = make_probe(open_model("demo:decoder"), ["ab", "c"])
    expected = [[START, ord("a"), ord("b")], [START, ord("c"), PAD]]
    assert probe.inputs["input_ids"].tolist() == expected
    assert probe.inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert probe.texts == ("ab", "c")
    assert probe.tokens == (("<s>", "a", "b"), ("<s>", "c", "<pad>"))
    assert probe.origin == "text"


def test_one_text_is_a_batch_of_one() -> None:
    probe = make_probe(open_model("demo:decoder"), "abc")
    assert probe.inputs["input_ids"].shape == (1, 4)


def test_left_padding_follows_the_tokenizer(tmp_path: Path) -> None:
    model = with_tokenizer("gpt2", tmp_path, "left")
    probe = make_probe(model, ["a bird in the hand", "the bird"])
    assert probe.inputs["input_ids"].tolist() == [[4, 5, 6, 7, 8], [0, 0, 0, 7, 5]]
    assert probe.inputs["attention_mask"].tolist() == [[1] * 5, [0, 0, 0, 1, 1]]
    assert probe.tokens[1] == ("<pad>", "<pad>", "<pad>", "the", "bird")
    report = driftwalk.verify(model, candidate="torch:cpu:fp64", probe=probe, policy="dtype")
    assert report.ok
    (_, row) = report.layer("layer.0").tokens or ()
    assert [value is None for value in row] == [True, True, True, False, False]


def test_decoder_inputs_are_the_text_behind_the_start_token(tmp_path: Path) -> None:
    model = with_tokenizer("t5", tmp_path)
    probe = make_probe(model, ["the hand", "a bird in"])
    start = model.config.decoder_start_token_id
    assert probe.inputs["decoder_input_ids"].tolist() == [[start, 7, 8], [start, 4, 5]]
    assert driftwalk.verify(model, candidate="torch:cpu:fp64", probe=probe, policy="dtype").ok


def test_ids_arrays_and_files(tmp_path: Path) -> None:
    model = open_model(zoo.build("gpt2"))
    ids = make_probe(model, [[1, 2, 3], [4, 5, 6]])
    assert ids.inputs["input_ids"].dtype == np.int64
    arrays = make_probe(model, {"input_ids": np.array([[1, 2, 3], [4, 5, 6]], np.int32)})
    assert arrays.sha256 == ids.sha256
    assert make_probe(model, ids) is ids
    ids.save(tmp_path / "own.safetensors")
    for given in (tmp_path / "own.safetensors", str(tmp_path / "own.safetensors")):
        assert make_probe(model, given).sha256 == ids.sha256
    pixels = np.zeros((1, 3, 16, 16), np.float32)
    assert list(make_probe(open_model(zoo.build("vit")), pixels).inputs) == ["pixel_values"]


@pytest.mark.parametrize("name", zoo.NAMES)
def test_default_probes_are_seeded_and_do_not_depend_on_optimum(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    assert make_probe(model).sha256 == probe.sha256
    assert make_probe(model, seed=1).sha256 != probe.sha256
    assert probe.origin == "seeded default (seed 0)"
    assert {len(array) for array in make_probe(model, batch=3).inputs.values()} == {3}
    monkeypatch.setitem(sys.modules, "optimum", None)
    monkeypatch.setitem(sys.modules, "optimum.utils", None)
    with pytest.raises(ImportError):
        import optimum.utils  # noqa: F401
    assert make_probe(model).sha256 == probe.sha256


def test_a_default_probe_has_a_padded_row() -> None:
    mask = make_probe(open_model("demo:encoder")).inputs["attention_mask"]
    assert mask.tolist() == [[1] * 16, [1] * 12 + [0] * 4]


def test_a_default_probe_fits_the_positions_there_are() -> None:
    probe = make_probe(open_model(zoo.build("roberta")), length=500)
    assert probe.inputs["input_ids"].shape == (2, 62)
    driftwalk.backend("torch", zoo.build("roberta")).run(probe)


def ids(width: int, value: int = 5) -> dict[str, Any]:
    return {"input_ids": np.full((1, width), value)}


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("demo:decoder", [], "list of prompts is empty"),
        ("demo:decoder", ["a", "  "], "Prompt 2 of 2 is empty"),
        ("demo:decoder", "", "Prompt 1 of 1 is empty"),
        ("demo:decoder", "x" * 256, "257 positions; demo:decoder allows at most 256"),
        ("gpt2", ids(65), "65 positions; GPT2LMHeadModel allows at most 64"),
        ("roberta", ids(63), "63 positions; RobertaForMaskedLM allows at most 62"),
        ("gpt2", ids(3, 99), "input_ids holds 99, outside the vocabulary: ids run from 0 to 98"),
        ("gpt2", ids(3, -1), "input_ids holds -1, outside the vocabulary"),
        ("t5", ids(3) | {"decoder_input_ids": [[100]]}, "decoder_input_ids holds 100"),
        (
            "whisper",
            {"input_features": np.zeros((1, 8, 24)), "decoder_input_ids": [[1] * 25]},
            "24",
        ),
        ("gpt2", ids(3) | {"atention_mask": [[1, 1, 1]]}, "takes no input 'atention_mask'"),
        (
            "bert",
            ids(3) | {"pixel_values": np.zeros((1, 3, 4, 4))},
            "takes no input 'pixel_values'",
        ),
        ("t5", ids(3), "lacks input 'decoder_input_ids'"),
        ("bert", {"attention_mask": [[1, 1]]}, "lacks input 'input_ids'"),
        ("gpt2", [[1, 2, 3], [4, 5]], "must be padded, with an attention_mask"),
        ("gpt2", {"input_ids": [[1, 2], [3]]}, "must be padded, with an attention_mask"),
        ("gpt2", {}, "no inputs at all"),
        ("gpt2", ids(3) | {"attention_mask": [[0, 0, 0]]}, "has a row that is all zero"),
        ("gpt2", ids(0), "is empty"),
        ("gpt2", "missing.safetensors", "Cannot read a probe from 'missing.safetensors'"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, given: object, says: str) -> None:
    model = open_model(name if name.startswith("demo:") else zoo.build(name))
    with pytest.raises(ProbeError) as caught:
        make_probe(model, given)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "most"), [("gpt2", 64), ("roberta", 62), ("bert", 64)])
def test_the_longest_probe_that_is_allowed_runs(name: str, most: int) -> None:
    model = open_model(zoo.build(name))
    driftwalk.backend("torch", model).run(make_probe(model, ids(most)))


@pytest.mark.parametrize(("batch", "length"), [(0, 4), (2, 0), (-1, 4)])
def test_sizes_below_one_are_refused(batch: int, length: int) -> None:
    with pytest.raises(ProbeError, match="must be 1 or more"):
        make_probe(open_model("demo:decoder"), batch=batch, length=length)


class TwoInputs(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right


class OpenEnded(nn.Module):
    """A plain module may take what it likes in **kwargs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs["anything"])


def test_plain_modules() -> None:
    with pytest.raises(ProbeError, match=r"forward takes left, right\. Give one, as probe="):
        make_probe(open_model(TwoInputs()))
    rows = make_probe(open_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))), length=3)
    assert rows.inputs["input"].shape == (2, 3, 4)
    table = make_probe(open_model(nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4))))
    assert 0 <= table.inputs["input"].min() <= table.inputs["input"].max() < 7
    model = open_model(OpenEnded())
    probe = make_probe(model, {"anything": np.ones((1, 2, 4), np.float32)})
    backend = driftwalk.backend("torch", model)
    assert same_bits(backend.trace(probe).outputs, backend.run(probe))
