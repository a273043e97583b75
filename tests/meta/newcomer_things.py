"""Tiny real things under the names that the documentation has for a reader's own.

    python newcomer_things.py FOLDER REPOSITORY

A model with its tokenizer, its exports, a port in numpy, recordings, data and a configuration; all
made by the packages of the environment that runs it.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

WORDS = "the capital of france is paris hello there it done and submitted a text that long short"
MODELS = ("my-model", "my-port", "MODEL", "FOLDER", "gpt2")
"""All the same one."""
GRAPHS = ("optimum_out/model", "exported/model", "before", "after", "a", "b", "a, b")
CONFIG = """
[[models]]
model = "./my-model"
candidates = ["emulated:bf16"]
"""
VISION = """
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(1), nn.LazyLinear(5))
"""
PORT = """#!/usr/bin/env python3
import subprocess, sys
here = [sys.executable, "examples/numpy_gpt2/port.py", "./MODEL"]
sys.exit(subprocess.run([*here, *sys.argv[-2:]]).returncode)
"""
MAP = """
[points]
"embeddings" = "embed"
"h.{i}" = "layer.{i}"
"h.{i}.key" = "layer.{i}.key"
"h.{i}.value" = "layer.{i}.value"
"h.{i}.ln_*" = ""
"h.{i}.attn*" = ""
"h.{i}.mlp*" = ""
"ln_f" = "norm"
"lm_head" = "logits"
"""


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {word: place for place, word in enumerate(["<pad>", "<unk>", *WORDS.split()])}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", eos_token="<unk>"
    )


def language_models(folder: Path) -> Any:
    import torch
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    words = tokenizer()
    sizes = {"vocab_size": len(words), "initializer_range": 0.1, "pad_token_id": 0}
    encoder = BertConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        **sizes,
    )
    BertForMaskedLM(encoder).save_pretrained(folder / "bert-base-uncased")
    words.save_pretrained(folder / "bert-base-uncased")
    shape = {"n_positions": 256, "n_embd": 32, "n_layer": 4, "n_head": 4}
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    model = GPT2LMHeadModel(GPT2Config(**shape, **ends, **sizes)).eval()
    for name in MODELS:
        model.save_pretrained(folder / name)
        words.save_pretrained(folder / name)
    shutil.copy(folder / "my-model" / "model.safetensors", folder / "port.safetensors")
    return model


def graphs(folder: Path, model: Any) -> None:
    import torch

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids, attention_mask=attention_mask, use_cache=False).logits

    ids = torch.arange(2, 12).reshape(2, 5)
    names = ["input_ids", "attention_mask"]
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(
            Positional().eval(),
            (ids, torch.ones_like(ids)),
            input_names=names,
            output_names=["logits"],
            dynamic_shapes=dict.fromkeys(names, axes),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    for name in GRAPHS:
        target = folder / f"{name}.onnx"
        target.parent.mkdir(parents=True, exist_ok=True)
        program.save(str(target))
    from safetensors.torch import save_file

    save_file(
        {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, folder / "inputs.safetensors"
    )


def recordings(folder: Path, repository: Path) -> None:
    """What the original gave, and what a port gave for the same inputs, by names of its own."""
    import driftwalk

    os.chdir(folder)
    shutil.copytree(repository / "examples", folder / "examples")
    port = folder / "port"
    port.write_text(PORT)
    port.chmod(0o755)
    (folder / "map.toml").write_text(MAP)
    driftwalk.record("MODEL").save("golden.trace")
    driftwalk.record("MODEL", "command:./port").save("port.trace")


def main(folder: Path, repository: Path) -> None:
    model = language_models(folder)
    graphs(folder, model)
    recordings(folder, repository)
    for name in ("driftwalk.toml", "ci/driftwalk.toml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(CONFIG.replace("./", "../" if "/" in name else "./"))
    (folder / "models").mkdir()
    (folder / "models" / "vision.py").write_text(VISION)
    rows = (f"{word} is done,{place % 2}" for place, word in enumerate(WORDS.split()))
    (folder / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
