"""Inputs from files: .npz, .npy, ids a row a line, images and sound through a model's processor."""

from __future__ import annotations

import json
import pickle
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.program import invoke
from nets import residual

TINY = ["verify", "cli.factories:Tiny", "-c", "torch", "--policy", "dtype"]
DEMO = ["verify", "demo:decoder", "-c", "torch", "--policy", "dtype"]
IDS = np.arange(8).reshape(2, 4)


def shapes(done: Any) -> dict[str, list[int]]:
    assert done.code == 0, done.err
    return {name: one["shape"] for name, one in json.loads(done.out)["probe"]["inputs"].items()}


def test_npz(here: Path) -> None:
    np.savez(here / "p.npz", input_ids=IDS)
    assert shapes(invoke(*TINY, "--probe", "p.npz", "--json")) == {"input_ids": [2, 4]}


class Trap:
    """What pickle would run."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("sprung"),)


def test_objects_are_refused_by_name_and_never_unpickled(here: Path) -> None:
    np.savez(here / "p.npz", input_ids=IDS, other=np.array([Trap()], dtype=object))
    invoke(*TINY, "--probe", "p.npz").refused(2, "'other'", "pickle is never read")
    (here / "q.npz").write_bytes(pickle.dumps(Trap()))
    invoke(*TINY, "--probe", "q.npz").refused(2, "q.npz")
    np.save(here / "p.npy", np.array([Trap()], dtype=object))
    invoke(*TINY, "--input", "input_ids=p.npy").refused(2, "p.npy", "pickle is never read")
    assert not (here / "sprung").exists()


def test_npz_of_garbage(here: Path) -> None:
    (here / "p.npz").write_bytes(b"PK\x03\x04 garbage")
    invoke(*TINY, "--probe", "p.npz").refused(2, "p.npz")
    invoke(*TINY, "--probe", "nowhere.npz").refused(2, "No such file")


def test_ids_from_a_file(here: Path) -> None:
    (here / "ids.txt").write_text("5 17, 3\n\n1,2,4\n")
    assert shapes(invoke(*TINY, "--ids", "@ids.txt", "--json")) == {"input_ids": [2, 3]}
    (here / "ids.txt").write_text("5 17 3\n1 x\n")
    invoke(*TINY, "--ids", "@ids.txt").refused(2, "whole numbers")
    invoke(*TINY, "--ids", "@nowhere.txt").refused(2, "nowhere.txt")


def test_npy_alone_and_with_a_prompt(here: Path) -> None:
    np.save(here / "ids.npy", IDS)
    assert shapes(invoke(*TINY, "--input", "input_ids=ids.npy", "--json")) == {"input_ids": [2, 4]}
    np.save(here / "places.npy", np.arange(6)[None] + 3)
    given = ["--prompt", "Hello", "--input", "position_ids=places.npy"]
    taken = shapes(invoke(*DEMO, *given, "--json"))
    assert taken == {"input_ids": [1, 6], "attention_mask": [1, 6], "position_ids": [1, 6]}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--input", "ids.npy"], ["NAME=FILE"]),
        (["--input", "x=ids.txt"], ["'x'", "ids.txt", ".npy", ".wav"]),
        (["--input", "x=ids.npy", "--ids", "1 2"], ["--input goes with --prompt"]),
        (["--input", "x=ids.npy", "--input", "x=ids.npy"], ["'x' is given twice"]),
        (["--input", "x=ids.npy"], ["lacks input 'input_ids'", "it has x"]),
        (["--input", "input_ids=ids.npy", "-p", "Hi"], ["as a text and as a file"]),
        (["--input", "input_ids=cat.png"], ["no processor", "cat.png", ".npy", "shape [1, 16]"]),
    ],
    ids=lambda value: " ".join(value)[:40] if value[0].startswith("-") else "",
)
def test_what_does_not_fit(here: Path, given: list[str], words: list[str]) -> None:
    np.save(here / "ids.npy", IDS)
    invoke(*DEMO, *given).refused(2, *words)


def test_a_graph_takes_arrays(here: Path) -> None:
    graph = str(residual(here / "a.onnx"))
    np.save(here / "ids.npy", np.array([[1, 2, 10]]))
    assert shapes(invoke("verify", graph, "--input", "ids=ids.npy", "--json")) == {"ids": [1, 3]}
    invoke("verify", graph, "--input", "ids=cat.png").refused(2, "no processor")


def test_images_through_the_models_processor(here: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    size = {"image_size": 16, "patch_size": 8}
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, **size
    )
    ViTForImageClassification(config).save_pretrained(here / "vit")
    invoke("verify", "vit", "-c", "torch", "--input", "pixel_values=cat.png").refused(
        2, "no processor", "shape [1, 3, 16, 16]"
    )
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(here / "vit")
    image.fromarray(np.full((40, 30, 3), 200, np.uint8)).save(here / "cat.png")
    image.fromarray(np.full((20, 20), 9, np.uint8)).save(here / "dog.jpg")
    run = ["verify", "vit", "-c", "torch", "--policy", "dtype"]
    both = ["--input", "pixel_values=cat.png", "--input", "pixel_values=dog.jpg"]
    assert shapes(invoke(*run, *both, "--json")) == {"pixel_values": [2, 3, 16, 16]}
    invoke(*run, "--input", "pixels=cat.png").refused(2, "no input 'pixels'", "pixel_values")
    (here / "cat.png").write_bytes(b"no image")
    invoke(*run, "--input", "pixel_values=cat.png").refused(2, "cat.png")


def test_an_image_and_texts_through_one_processor(here: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = [*letters, *(f"{one}</w>" for one in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    (here / "vocab.json").write_text(json.dumps(vocabulary))
    (here / "merges.txt").write_text("#version: 0.2\n")
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = CLIPConfig(
        text_config={"vocab_size": 54, "bos_token_id": 52, "eos_token_id": 53, **sizes},
        vision_config={"image_size": 16, "patch_size": 8, **sizes},
        projection_dim=8,
    )
    CLIPModel(config).save_pretrained(here / "clip")
    pixels = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    tokenizer = CLIPTokenizer(str(here / "vocab.json"), str(here / "merges.txt"))
    CLIPProcessor(pixels, tokenizer).save_pretrained(here / "clip")
    image.fromarray(np.full((40, 30, 3), 200, np.uint8)).save(here / "cat.png")
    given = ["-p", "a cat", "-p", "dogs", "--input", "pixel_values=cat.png"]
    taken = shapes(invoke("verify", "clip", "-c", "torch", "--policy", "dtype", *given, "--json"))
    assert taken["pixel_values"] == [1, 3, 16, 16]
    assert taken["input_ids"] == taken["attention_mask"] == [2, 6]


def test_sound_through_the_models_processor(here: Path) -> None:
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    small = {"conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3)}
    config = Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        **small,
    )
    Wav2Vec2Model(config).save_pretrained(here / "w2v")
    Wav2Vec2FeatureExtractor().save_pretrained(here / "w2v")
    tone = (8000 * np.sin(np.arange(800) / 5)).astype("<i2")
    for name, rate in (("tone.wav", 16000), ("slow.wav", 8000)):
        with wave.open(str(here / name), "wb") as file:
            file.setnchannels(2)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(tone.tobytes())
    run = ["verify", "w2v", "-c", "torch", "--policy", "dtype"]
    assert shapes(invoke(*run, "--input", "input_values=tone.wav", "--json")) == {
        "input_values": [1, 400]
    }
    invoke(*run, "--input", "input_values=slow.wav").refused(2, "8000 samples a second", "16000")
    (here / "tone.wav").write_bytes(b"no sound")
    invoke(*run, "--input", "input_values=tone.wav").refused(2, "tone.wav", "PCM")
