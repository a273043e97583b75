"""The probe that a model is given when the user gave none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

import driftwalk
import zoo
from driftwalk.errors import ModelError, ProbeError
from driftwalk_backends.default_probe.search import default_inputs
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from zoo import every
from zoo.shrinking import MOST

AS_BEFORE = {
    "gpt2": "f8bf1bb5ca26cb4f",
    "gpt_neox": "f8bf1bb5ca26cb4f",
    "llama": "f8bf1bb5ca26cb4f",
    "mistral": "f8bf1bb5ca26cb4f",
    "qwen3": "f8bf1bb5ca26cb4f",
    "gemma3": "f8bf1bb5ca26cb4f",
    "phi3": "f8bf1bb5ca26cb4f",
    "mixtral": "f8bf1bb5ca26cb4f",
    "bert": "f8bf1bb5ca26cb4f",
    "roberta": "f8bf1bb5ca26cb4f",
    "distilbert": "f8bf1bb5ca26cb4f",
    "albert": "f8bf1bb5ca26cb4f",
    "modernbert": "f8bf1bb5ca26cb4f",
    "t5": "cdd564c4eb23209d",
    "bart": "cdd564c4eb23209d",
    "vit": "c7cf6b776cb3942a",
    "whisper": "87d3efd3282c2ae9",
    "demo:decoder": "c95d4c6b80cc8b31",
    "demo:encoder": "c95d4c6b80cc8b31",
}
"""Hashes of default probes that stored traces depend on."""


def shapes(model: nn.Module, **asked: int) -> dict[str, tuple[int, ...]]:
    probe = make_probe(open_model(model), **asked)
    return {name: array.shape for name, array in probe.inputs.items()}


@pytest.mark.parametrize("name", AS_BEFORE)
def test_default_probes_stay_what_they_are(name: str) -> None:
    model: Any = name if name.startswith("demo:") else zoo.build(name)
    assert make_probe(open_model(model)).sha256[:16] == AS_BEFORE[name]


# ---- modules without a config ----


class Flattened(nn.Module):
    """A classifier that takes images of one size only, which no layer states."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(4 * 14 * 14, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).flatten(1))


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Embedding(50, 8)
        self.right = nn.Linear(12, 8)

    def forward(self, words: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return self.left(words).mean(1) * self.right(numbers).mean(1)


class Timed(nn.Module):
    """A step of a diffusion model."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6)
        self.conv = nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.conv(x) + self.table(t)[:, :, None, None]


class Permuted(nn.Module):
    """Frames last outside, channels second inside."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(5)
        self.conv = nn.Conv1d(7, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.transpose(1, 2)[..., :5]) + self.norm(x.new_ones(5)).sum()


PLAIN: dict[str, tuple[Callable[[], nn.Module], dict[str, tuple[int, ...]]]] = {
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(5, 4, 3)), {"input": (2, 5, 64)}),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3)), {"input": (2, 3, 32, 32)}),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3)), {"input": (2, 2, 8, 16, 16)}),
    "generator": (lambda: nn.Sequential(nn.ConvTranspose2d(9, 4, 4)), {"input": (2, 9, 4, 4)}),
    "lstm": (lambda: nn.LSTM(6, 4, batch_first=True), {"input": (2, 16, 6)}),
    "gru": (lambda: nn.GRU(6, 4), {"input": (16, 2, 6)}),
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm2d(3)), {"input": (2, 3, 16, 16)}),
    "flattened": (Flattened, {"x": (2, 3, 28, 28)}),
    "two towers": (TwoTowers, {"words": (2, 16), "numbers": (2, 16, 12)}),
    "timed": (Timed, {"x": (2, 3, 32, 32), "t": (2,)}),
    "permuted": (Permuted, {"x": (2, 16, 7)}),
    "attention": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        dict.fromkeys(("query", "key", "value"), (2, 16, 8)),
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_module_is_given_what_its_layers_take(name: str) -> None:
    make, expected = PLAIN[name]
    model = make().eval()
    assert shapes(model) == expected
    assert make_probe(open_model(model)).sha256 == make_probe(open_model(model)).sha256
    assert make_probe(open_model(model), seed=1).sha256 != make_probe(open_model(model)).sha256


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_asked_for_its_schema() -> None:
    model = open_model(torch.jit.script(nn.Sequential(nn.Linear(4, 4)).eval()))
    assert {n: a.shape for n, a in default_inputs(model, 2, 16, 0).items()} == {"input": (2, 16, 4)}


class Unguessable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        raise ValueError("the moon is in the wrong house")


def test_what_is_not_found_is_said_with_what_was_tried() -> None:
    with pytest.raises(ProbeError) as caught:
        make_probe(open_model(Unguessable()))
    for part in ("left [2, 16, 4]", "right [2, 16, 4]", "the moon", "takes left, right", "probe="):
        assert part in str(caught.value)


def test_a_search_ends() -> None:
    """However inviting the messages of a model are."""
    tries = []

    class Insatiable(Unguessable):
        def forward(self, left: torch.Tensor) -> torch.Tensor:
            tries.append(left.shape)
            raise RuntimeError(f"expected size {left.shape[1] + 1}, got {left.shape[1]}")

    with pytest.raises(ProbeError, match="No default probe was found"):
        make_probe(open_model(Insatiable()))
    assert 1 < len(tries) < 20


def test_a_search_ends_where_no_guess_changes_what_is_said() -> None:
    tries = []

    class Deaf(Unguessable):
        def forward(self, left: torch.Tensor) -> torch.Tensor:
            tries.append(left.shape)
            raise RuntimeError(
                "expected size 4, got 16; or expected 2, got 3 dims: 5-dim too small"
            )

    with pytest.raises(ProbeError, match="No default probe was found"):
        make_probe(open_model(Deaf()))
    assert len(tries) == 4


# ---- models of transformers ----


def built(name: str) -> nn.Module:
    return every.build(getattr(tf, name)).model


class Ran:
    """Which modules of a model run on its default probe."""

    def __init__(self, model: nn.Module) -> None:
        self.paths: set[str] = set()
        for path, part in model.named_modules():
            part.register_forward_hook(lambda *_, path=path: self.paths.add(path))

    def __contains__(self, word: str) -> bool:
        return any(word in path for path in self.paths)


def test_images_stand_in_the_text_where_their_features_go() -> None:
    model = built("LlavaForConditionalGeneration")
    ran = Ran(model)
    probe = make_probe(open_model(model))
    config = model.config
    assert "vision_tower" in ran
    patches = (config.vision_config.image_size // config.vision_config.patch_size) ** 2
    places = probe.inputs["input_ids"] == config.image_token_id
    assert places.sum(1).tolist() == [patches, patches]
    assert probe.inputs["attention_mask"][places].all()
    assert (probe.inputs["attention_mask"] == 0).sum(1).tolist() == [0, 4]


def test_patches_come_with_the_grid_they_lie_in() -> None:
    text = {
        **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 99},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1},
        **{"eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 128},
        "rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [1, 1, 2]},
    }
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4}
    special = {"image_token_id": 3, "video_token_id": 4, "vision_start_token_id": 5}
    config = tf.Qwen2VLConfig(text_config=text, vision_config=vision, **special)
    model = tf.Qwen2VLForConditionalGeneration(config).eval()
    ran = Ran(model)
    probe = make_probe(open_model(model))
    assert "visual" in ran
    ids = probe.inputs["input_ids"]
    assert (ids == 3).sum(1).tolist() == [4, 4]  # 4 x 4 patches, merged by 2 x 2
    assert not (ids == 4).any()
    assert probe.inputs["image_grid_thw"].tolist() == [[1, 4, 4]] * 2
    assert len(probe.inputs["pixel_values"]) == 32


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("VideoMAEModel", {"pixel_values": 5}),
        ("TimeSeriesTransformerModel", {"past_values": 2, "past_time_features": 3}),
        ("PatchTSTModel", {"past_values": 3}),
        ("LayoutLMv3Model", {"input_ids": 2, "bbox": 3, "pixel_values": 4}),
        ("CLIPModel", {"input_ids": 2, "pixel_values": 4}),
        ("DecisionTransformerModel", {"states": 3, "actions": 3, "timesteps": 2}),
        ("BertForMultipleChoice", {"input_ids": 3, "attention_mask": 3}),
        ("BartForSequenceClassification", {"input_ids": 2, "decoder_input_ids": 2}),
        ("EncodecModel", {"input_values": 3}),
        ("Speech2TextModel", {"input_features": 3, "decoder_input_ids": 2}),
        ("ASTModel", {"input_values": 3}),
        ("PerceiverForMaskedLM", {"inputs": 2}),
        ("SegGptModel", {"pixel_values": 4, "prompt_pixel_values": 4, "prompt_masks": 4}),
        ("EsmModel", {"input_ids": 2}),
        ("Pix2StructVisionModel", {"flattened_patches": 3}),
        ("LlavaNextForConditionalGeneration", {"pixel_values": 5, "image_sizes": 2}),
    ],
)
def test_every_kind_of_input(
    name: str, inputs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOST, "image", 128)  # how many axes there are is asked, not how long
    found = next(iter(runnable(name)))
    assert {n: len(shape) for n, shape in found.items() if n in inputs} == inputs
    assert "labels" not in found


def runnable(name: str) -> list[dict[str, tuple[int, ...]]]:
    """The default probe's shapes for the first shrunk model that transformers can run."""
    for tiny in every.builds(getattr(tf, name)):
        try:
            return [shapes(tiny.model)]
        except ProbeError as error:
            last = error
    raise last


def test_boxes_have_their_corners_in_order() -> None:
    model = built("LayoutLMModel")
    boxes = make_probe(open_model(model)).inputs["bbox"]
    assert boxes.min() >= 0
    assert boxes.max() <= 1000
    assert (boxes[..., 2:] >= boxes[..., :2]).all()
    assert len(np.unique(boxes)) > 8


def test_a_processor_beside_the_weights_says_how_large_images_are(tmp_path: Path) -> None:
    config = tf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", model_type="x"
    )
    model = tf.ResNetModel(tf.ResNetConfig(**{**config.to_dict(), "model_type": "resnet"}))
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"crop_size": {"height": 48, "width": 40}}')
    probe = make_probe(open_model(tmp_path))
    assert probe.inputs["pixel_values"].shape == (2, 3, 48, 40)


def test_a_model_of_texts_that_fails_says_so_when_it_is_run() -> None:
    model = zoo.build("gpt2")

    def fail(*_: Any) -> None:
        raise ValueError("on purpose")

    model.lm_head.register_forward_hook(fail)
    probe = make_probe(open_model(model))
    assert set(probe.inputs) == {"input_ids", "attention_mask"}
    with pytest.raises(ModelError, match=r"failed on the probe.*on purpose"):
        driftwalk.backend("torch", model).run(probe)


class OpenEnded(nn.Module):
    """A model with a config whose forward names nothing of what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = zoo.build("gpt2")
        self.config = self.inner.config

    def forward(self, **inputs: Any) -> Any:
        return self.inner(**inputs)


def test_a_forward_of_keywords_alone_is_given_the_main_input() -> None:
    assert shapes(OpenEnded()) == {"input_ids": (2, 16)}
