"""Inputs of any kind: texts, flags, lists, dicts, objects and caches, handed on as they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import driftwalk
import zoo
from driftwalk.errors import ProbeError
from driftwalk.states import same_bits
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from torch_nets import Block

X = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block(), Block()])

    def through(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Tasks(Stack):
    """Takes what multi-task vision models take."""

    def forward(
        self,
        pixel_values: torch.Tensor,
        task: str,
        return_loss: bool = True,
        sizes: list[tuple[int, int]] | None = None,
        feats: dict[str, torch.Tensor] | None = None,
    ) -> dict[str, Any]:
        assert task == "depth"
        assert return_loss is False
        assert sizes == [(4, 4)]
        assert feats is not None
        assert feats["a"].dtype == pixel_values.dtype, "floats are cast wherever they lie"
        x = self.through(pixel_values) + feats["a"]
        return {"depth": x, "more": [x.sum(-1), (x.mean(),)]}


def given(**other: Any) -> dict[str, Any]:
    return {
        "pixel_values": X,
        "task": "depth",
        "return_loss": False,
        "sizes": [(4, 4)],
        "feats": {"a": torch.linspace(0, 1, 8)},
    } | other


CANDIDATES = (
    "torch",
    "torch:cpu:fp64",
    "torch:cpu:bf16",
    "emulated:bf16",
    "onnxruntime",
    "torch,compile=aot_eager",
)


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_texts_flags_lists_and_dicts_reach_the_forward(candidate: str) -> None:
    report = driftwalk.verify(Tasks(), candidate, probe=given(), cache=False)
    assert report.ok, report.reason
    assert {"layer.1", "logits", "output.more.0"} <= {row.point.name for row in report.layers}


def test_a_fault_is_still_placed() -> None:
    other = Tasks()
    with torch.no_grad():
        other.layers[1].inner.weight.mul_(1.1)
    report = driftwalk.verify(Tasks(), other, probe=given(), cache=False)
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"


def test_what_was_given_is_part_of_the_hash_and_is_left_alone() -> None:
    model, asked = open_model(Tasks()), given()
    probe = make_probe(model, asked)
    assert make_probe(model, given()).sha256 == probe.sha256
    others = [
        {"task": "seg"},
        {"return_loss": True},
        {"sizes": [(4, 5)]},
        {"sizes": [[4, 4]]},
        {"feats": {"a": torch.ones(8)}},
        {"feats": {"b": torch.linspace(0, 1, 8)}},
    ]
    hashes = {make_probe(model, given(**other)).sha256 for other in others}
    assert len(hashes | {probe.sha256}) == len(others) + 1
    asked["feats"]["a"].zero_()
    assert probe.others["feats"]["a"].max() == 1, "what was hashed stays what it was"
    with pytest.raises(ValueError, match="read-only"):
        probe.others["feats"]["a"][0] = 3


def test_plain_data_and_arrays_are_saved_and_loaded(tmp_path: Path) -> None:
    model = open_model(Tasks())
    odd = {"nan": float("nan"), 3: (1, None, 2j), "deep": [{"x": torch.ones(2)}, "é", True]}
    probe = make_probe(model, given(sizes=odd))
    back = driftwalk.Probe.load(probe.save(tmp_path / "p.safetensors"))
    assert back.sha256 == probe.sha256
    assert list(back.inputs) == ["pixel_values"]
    assert back.others["sizes"][3] == (1, None, 2j)
    assert driftwalk.verify(Tasks(), "torch", probe=make_probe(model, given()), cache=False).ok
    trace = driftwalk.backend("torch", Tasks()).trace(make_probe(model, given()))
    trace.save(tmp_path / "t.trace")
    loaded = driftwalk.Trace.load(tmp_path / "t.trace")
    assert loaded.probe.sha256 == trace.probe.sha256
    assert loaded.probe.others["task"] == "depth"
    report = driftwalk.verify(Tasks(), f"trace:{tmp_path / 't.trace'}", cache=False)
    assert report.ok


class Sizes(NamedTuple):
    height: int
    scale: torch.Tensor


@dataclass(frozen=True)
class Options:
    sizes: Sizes
    name: str = "x"


class TakesOptions(Stack):
    def forward(self, x: torch.Tensor, options: Options) -> torch.Tensor:
        assert isinstance(options, Options)
        assert isinstance(options.sizes, Sizes)
        return self.through(x) * options.sizes.scale + options.sizes.height


@pytest.mark.parametrize("candidate", ["torch", "emulated:bf16", "torch:cpu:fp64"])
def test_dataclasses_and_named_tuples(candidate: str) -> None:
    options = Options(Sizes(2, torch.tensor(0.3)))
    report = driftwalk.verify(
        TakesOptions(), candidate, probe={"x": X, "options": options}, cache=False
    )
    assert report.ok, report.reason


class Memory:
    """A cache of one's own."""

    def __init__(self) -> None:
        self.seen = [torch.full((2, 4, 8), 0.5)]


class Remembers(Stack):
    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        x = self.through(x) + torch.stack(memory.seen).sum(0)
        memory.seen.append(x)
        memory.seen[0] += 1
        return x


@pytest.mark.parametrize("candidate", ["torch", "emulated:bf16", "torch,compile=eager"])
def test_every_run_has_a_cache_of_its_own(candidate: str) -> None:
    memory = Memory()
    report = driftwalk.verify(Remembers(), candidate, probe={"x": X, "memory": memory}, cache=False)
    assert report.ok, report.reason
    assert len(memory.seen) == 1
    assert memory.seen[0].max() == 0.5


def test_an_object_goes_into_no_file_and_no_graph(tmp_path: Path) -> None:
    model = open_model(Remembers())
    probe = make_probe(model, {"x": X, "memory": Memory()})
    with pytest.raises(ProbeError, match=r"'memory' is a Memory, which no file"):
        probe.save(tmp_path / "p.safetensors")
    with pytest.raises(ProbeError, match=r"'memory' is a Memory, which no file"):
        driftwalk.verify(model, "onnxruntime", probe=probe, cache=False)
    with pytest.raises(ProbeError, match=r"'memory' is a Memory, which no file"):
        driftwalk.verify(model, "command:cat", probe=probe, cache=False)


def test_what_cannot_be_copied_is_named() -> None:
    import threading

    with pytest.raises(ProbeError, match=r"'memory' .*cannot be copied"):
        make_probe(open_model(Remembers()), {"x": X, "memory": threading.Lock()})


class Adds(nn.Module):
    """Writes into its input, and takes images of unequal sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack()

    def forward(self, x: torch.Tensor, images: list[torch.Tensor]) -> torch.Tensor:
        x += sum(image.mean() for image in images)
        return self.body.through(x)


@pytest.mark.parametrize("candidate", ["torch", "emulated:bf16", "onnxruntime"])
def test_lists_of_tensors_of_unequal_sizes_and_writes_into_an_input(candidate: str) -> None:
    images = [torch.ones(3, 4, 4), np.ones((3, 5, 2), np.float32)]
    report = driftwalk.verify(Adds(), candidate, probe={"x": X, "images": images}, cache=False)
    assert report.ok, report.reason


def llama_and_cache() -> tuple[Any, Any]:
    from transformers import DynamicCache

    model = zoo.build("llama")
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.arange(6).reshape(1, 6), past_key_values=cache, use_cache=True)
    return model, cache


@pytest.mark.parametrize("candidate", ["torch", "emulated:bf16", "torch,attn=eager"])
def test_a_transformers_cache(candidate: str) -> None:
    """Its mask is longer than the ids: it covers what the cache holds, too."""
    model, cache = llama_and_cache()
    probe = {
        "input_ids": np.array([[7, 8, 9]]),
        "attention_mask": np.ones((1, 9), np.int64),
        "past_key_values": cache,
    }
    report = driftwalk.verify(model, candidate, probe=probe, cache=False)
    assert report.ok, report.reason
    assert cache.get_seq_length() == 6


def written(path: Path, arrays: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file(arrays, path)
    return path


@pytest.mark.parametrize("file", ["probe.npz", "probe.safetensors"])
@pytest.mark.parametrize("words", [("key", "value"), ("0", "1")])
def test_a_cache_in_a_file(tmp_path: Path, file: str, words: tuple[str, str]) -> None:
    """As arrays with paths for names: a file knows no objects."""
    model, cache = llama_and_cache()
    arrays = {"input_ids": np.array([[7, 8, 9]]), "attention_mask": np.ones((1, 9), np.int64)}
    given = make_probe(open_model(model), {**arrays, "past_key_values": cache})
    for number, layer in enumerate(cache.layers):
        for word, tensor in zip(words, (layer.keys, layer.values), strict=True):
            arrays[f"past_key_values.{number}.{word}"] = tensor.numpy()
    path = written(tmp_path / file, arrays)
    run = driftwalk.backend("torch", model).run
    assert same_bits(run(path), run(given))
    assert driftwalk.verify(model, "emulated:bf16", probe=path, cache=False).ok
    del arrays[f"past_key_values.0.{words[1]}"]
    with pytest.raises(ProbeError, match=r"past_key_values\.0 is not a key and a value"):
        make_probe(open_model(model), written(tmp_path / file, arrays))


def test_nested_inputs_in_a_file(tmp_path: Path) -> None:
    rows = {"x": X, "images.0": X, "images.1": 2 * X}
    run = driftwalk.backend("torch", Adds()).run
    path = written(tmp_path / "probe.npz", rows)
    assert same_bits(run(path), run({"x": X, "images": [X, 2 * X]}))
    with pytest.raises(ProbeError, match=r"lacks images\.1, and has parts"):
        run(written(tmp_path / "gap.npz", {"x": X, "images.0": X, "images.2": X}))
    with pytest.raises(ProbeError, match=r"takes no input 'pictures\.0'"):
        run(written(tmp_path / "other.npz", {"x": X, "pictures.0": X}))


def test_the_cache_matters() -> None:
    model, cache = llama_and_cache()
    with_cache = make_probe(open_model(model), {"input_ids": [[7]], "past_key_values": cache})
    without = make_probe(open_model(model), {"input_ids": [[7]]})
    run = driftwalk.backend("torch", model).run
    assert not np.allclose(run(with_cache)["logits"], run(without)["logits"])


def test_flags_of_transformers_are_passed_on() -> None:
    probe = {"input_ids": [[1, 2, 3]], "output_attentions": False, "use_cache": True}
    assert driftwalk.verify(zoo.build("llama"), "torch", probe=probe, cache=False).ok


# -- only the model knows what it takes ------------------------------------------------------------


class Pictures(nn.Module):
    """Ids beyond the first table stand for pictures, and are replaced before they are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8)
        self.body = Stack()

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> torch.Tensor:
        is_picture = (input_ids >= 10) | (input_ids < 0)
        x = self.words(input_ids.masked_fill(is_picture, 0))
        return self.body.through(torch.where(is_picture[..., None], 0.5, x))


@pytest.mark.parametrize("bad", [200, -200])
def test_ids_that_the_model_replaces_are_none_of_our_business(bad: int) -> None:
    probe = {"input_ids": [[1, 2, bad, 3]], "attention_mask": np.ones((1, 2))}
    report = driftwalk.verify(Pictures(), "torch:cpu:fp64", probe=probe, cache=False)
    assert report.ok, report.reason


def test_ids_that_are_looked_up_outside_of_a_table_are_refused_with_the_model_s_words() -> None:
    with pytest.raises(ProbeError, match=r"holds 300, outside the vocabulary.*IndexError"):
        make_probe(open_model(zoo.build("gpt2")), {"input_ids": [[1, 300]]})


def test_a_mask_that_the_model_cannot_take_is_refused_with_the_model_s_words() -> None:
    wrong = {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1, 1, 1, 0]]}
    with pytest.raises(ProbeError, match=r"its attention mask \[1, 5\].*The model says"):
        make_probe(open_model(zoo.build("bert")), wrong)


def test_decoder_ids_that_the_model_makes_itself_need_not_be_given() -> None:
    from transformers import BartConfig, BartModel

    config = BartConfig(
        vocab_size=50, d_model=16, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16, encoder_attention_heads=2, decoder_attention_heads=2,
        max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BartModel(config).eval()
    report = driftwalk.verify(model, "torch", probe={"input_ids": [[5, 6, 7]]}, cache=False)
    assert report.ok, report.reason


class Parts(Stack):
    """Takes sizes as a list, and says so nowhere."""

    def forward(self, x, lengths):  # type: ignore[no-untyped-def]
        return torch.cat([part * 2 for part in self.through(x).split(lengths, dim=1)], 1)


class Numbers(Stack):
    """Takes numbers as a tensor."""

    def forward(self, x, lengths):  # type: ignore[no-untyped-def]
        return self.through(x) * lengths.sum()


@pytest.mark.parametrize("given_as", [[1, 3], (1, 3)], ids=["list", "tuple"])
def test_a_list_of_sizes_is_a_list_where_the_model_wants_one(given_as: Any) -> None:
    assert driftwalk.verify(Parts(), "torch", probe={"x": X, "lengths": given_as}, cache=False).ok
    probe = make_probe(open_model(Parts()), {"x": X.tolist(), "lengths": given_as})
    assert probe.others["lengths"] == given_as
    assert probe.inputs["x"].shape == (2, 4, 8)


def test_a_list_of_numbers_is_an_array_where_the_model_wants_one() -> None:
    probe = make_probe(open_model(Numbers()), {"x": X, "lengths": [1, 3]})
    assert probe.inputs["lengths"].tolist() == [1, 3]
