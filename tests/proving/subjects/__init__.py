"""What is changed and compared: tiny seeded models of many kinds, and real weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import torch_nets
import zoo

from . import own, real
from .packages import Package

Inputs = Mapping[str, Any]
ROWS, LENGTH = 3, 12


@dataclass(frozen=True)
class Subject:
    """A model with inputs; `package` says out of which registry package its weights come."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    package: str = ""
    kept: bool = False
    """Run for the page, and not looked into before."""
    draws: int = 1
    """How many places are drawn for each family."""

    @property
    def real(self) -> bool:
        return bool(self.package)


def tiny() -> Iterator[Subject]:
    """Random weights: every architecture of the zoo, nets without transformers, our own."""
    for name in zoo.NAMES:
        yield Subject(f"tiny:{name}", partial(zoo.build, name), partial(_inputs_of, name))
    for name in torch_nets.NETS:
        if name != "resnet-50":  # the small one shows the same in a tenth of the time
            yield Subject(
                f"net:{name.replace(' ', '-')}",
                partial(torch_nets.build, name),
                partial(torch_nets.inputs, name),
            )
    for name, (make, inputs) in own.MODELS.items():
        yield Subject(f"own:{name}", make, inputs, draws=2)


def from_packages(packages: list[Package], folder: Path) -> Iterator[Subject]:
    """Real weights, for every package that is there."""
    for package in packages:
        if package.is_in(folder):
            for name, (load, inputs) in real.MODELS[package.name].items():
                yield Subject(
                    f"real:{name}",
                    partial(load, package.unpacked(folder)),
                    partial(inputs, package.unpacked(folder)),
                    package.name,
                    package.kept,
                    package.draws,
                )


def _inputs_of(name: str, seed: int = 0) -> Inputs:
    """Rows of ids, one of them padded; an image; frames of audio."""
    rng = np.random.default_rng(seed)
    if name == "vit":
        return {"pixel_values": rng.standard_normal((ROWS, 3, 16, 16), dtype=np.float32)}
    ids = rng.integers(3, zoo.VOCABULARY, (ROWS, LENGTH))
    decoder = {"decoder_input_ids": rng.integers(3, zoo.VOCABULARY, (ROWS, LENGTH - 3))}
    if name == "whisper":
        frames = rng.standard_normal((ROWS, 8, 24), dtype=np.float32)
        return {"input_features": frames, **decoder}
    mask = np.ones_like(ids)
    mask[1, LENGTH - 4 :] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    return given | decoder if name in ("t5", "bart") else given
