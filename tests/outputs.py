"""Tiny seeded models that give more than one thing, in every kind of container."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers as tf
from torch import nn

from zoo import HEADS, LAYERS, VOCABULARY, WIDTH

_BERT = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
IDS = {"input_ids": np.random.default_rng(0).integers(0, 50, (2, 6))}


class Found(NamedTuple):
    scores: torch.Tensor
    boxes: torch.Tensor


@dataclass
class Record:
    scores: torch.Tensor
    boxes: torch.Tensor
    name: str = "a record"


class Opaque:
    """Holds a tensor where nobody outside can know its name."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dense = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.dense(self.norm(x)))


Give = Callable[["Headed", torch.Tensor], Any]


class Headed(nn.Module):
    """Blocks and two heads; `give` makes the output of the last state."""

    def __init__(self, give: Give, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(3))
        self.head = nn.Linear(width, 7)
        self.second = nn.Linear(width, 4)
        self.sign = 1.0
        self.give = give

    def forward(self, input_ids: torch.Tensor) -> Any:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.give(self, x)


GIVES: dict[str, tuple[Give, str]] = {
    "tuple": (lambda m, x: (m.head(x), m.second(x)), "output.1"),
    "list in a list": (lambda m, x: [m.head(x), [m.second(x)]], "output.1.0"),
    "nested dict": (
        lambda m, x: {"scores": m.head(x), "found": [{"boxes": m.second(x)}]},
        "output.found.0.boxes",
    ),
    "list of dicts": (
        lambda m, x: [{"scores": m.head(x)}, {"boxes": m.second(x)}],
        "output.1.boxes",
    ),
    "NamedTuple": (lambda m, x: Found(m.head(x), m.second(x)), "output.boxes"),
    "dataclass": (lambda m, x: Record(m.head(x), m.second(x)), "output.boxes"),
    "integers": (
        lambda m, x: {"scores": m.head(x), "ids": (m.sign * m.second(x)).argmax(-1)},
        "output.ids",
    ),
    "booleans": (
        lambda m, x: {"scores": m.head(x), "keep": m.sign * m.second(x) > 0},
        "output.keep",
    ),
    "bytes": (
        lambda m, x: {"scores": m.head(x), "code": (m.second(x) > 0).to(torch.uint8) * int(m.sign)},
        "output.code",
    ),
    "complex": (
        lambda m, x: {"scores": m.head(x), "waves": torch.fft.fft(m.second(x))},
        "output.waves",
    ),
    "a number": (lambda m, x: {"scores": m.head(x), "mean": m.second(x).mean()}, "output.mean"),
    "one per row": (
        lambda m, x: {"scores": m.head(x), "mean": m.second(x).mean((1, 2))},
        "output.mean",
    ),
    "doubles": (
        lambda m, x: {"scores": m.head(x), "wide": m.second(x).double()},
        "output.wide",
    ),
    "halves": (lambda m, x: {"scores": m.head(x), "half": m.second(x).half()}, "output.half"),
    "one tensor of integers": (lambda m, x: (m.sign * m.second(x)).argmax(-1), "logits"),
}


def headed(kind: str) -> Headed:
    torch.manual_seed(0)
    return Headed(GIVES[kind][0]).eval()


def spoilt(model: Any, change: Callable[[Any], None]) -> Any:
    """A copy of a model with something wrong in it."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        change(other)
    return other


def second_head(model: Headed) -> None:
    """Everything that the second head gives is off, whole numbers included."""
    model.second.weight.mul_(1.5)
    model.sign = -1.0


def question_answering() -> nn.Module:
    torch.manual_seed(0)
    return tf.BertForQuestionAnswering(tf.BertConfig(**_BERT)).eval()


def pre_training() -> nn.Module:
    torch.manual_seed(0)
    return tf.BertForPreTraining(tf.BertConfig(**_BERT)).eval()


def detector() -> nn.Module:
    torch.manual_seed(0)
    config = tf.YolosConfig(
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        image_size=[32, 32],
        patch_size=8,
        num_detection_tokens=5,
        num_labels=4,
    )
    return tf.YolosForObjectDetection(config).eval()
