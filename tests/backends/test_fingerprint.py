"""A fingerprint is the same where the model is, and changes with whatever can change a number."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zoo
from driftwalk_backends.demo import decoder
from driftwalk_backends.fingerprint import fingerprint, has_known_code
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_eager import TorchEager


@pytest.mark.parametrize("name", zoo.NAMES)
def test_the_same_model_has_the_same_fingerprint(name: str) -> None:
    module = zoo.build(name)
    before = fingerprint(module)
    assert fingerprint(zoo.build(name)) == before
    assert fingerprint(zoo.build(name, seed=1)) != before
    model = open_model(module)
    TorchEager.around(module).trace(make_probe(model))
    assert fingerprint(module) == before, "running a model must not change what it is"
    assert has_known_code(module), "nor whether a result of it may be stored"


PROGRAM = """
import zoo
from driftwalk_backends.fingerprint import fingerprint
print(*(fingerprint(zoo.build(name)) for name in ("bert", "llama", "t5")))
"""


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_another_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [fingerprint(zoo.build(n)) for n in ("bert", "llama", "t5")]


class Flags(nn.Module):
    """Plain numbers that no weight knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.norm = nn.LayerNorm(4)
        self.register_buffer("table", torch.zeros(3), persistent=False)
        self.scale = 2.0
        self.steps = [1, 2]
        self.options = {"causal": True}
        self.activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu


def weight(module: Any) -> None:
    module.layers[1].weight.data[0, 0] += 1e-6


def swapped(module: Any) -> None:
    module.layers[0], module.layers[1] = module.layers[1], module.layers[0]


@pytest.mark.parametrize(
    "change",
    [
        weight,
        swapped,
        lambda m: m.table.add_(1e-6),
        lambda m: setattr(m.norm, "eps", 1e-6),
        lambda m: setattr(m, "scale", 2.5),
        lambda m: m.steps.append(3),
        lambda m: m.options.update(causal=False),
        lambda m: setattr(m, "activation", torch.tanh),
        lambda m: m.double(),
        lambda m: m.layers.append(nn.ReLU()),
    ],
    ids=[
        *("weight", "swapped", "buffer", "epsilon", "number"),
        *("list", "dict", "activation", "dtype", "module"),
    ],
)
def test_a_change_changes_it(change: Callable[[nn.Module], object]) -> None:
    torch.manual_seed(0)
    module = Flags()
    before = fingerprint(module)
    change(module)
    assert fingerprint(module) != before


def test_transformers_activations_and_config_are_part_of_it() -> None:
    found = {fingerprint(decoder())}
    other = decoder()
    other.transformer.h[3].mlp.act = nn.GELU()
    found.add(fingerprint(other))
    other = decoder()
    other.transformer.h[3].ln_1.eps = 1e-6
    found.add(fingerprint(other))
    other = decoder()
    other.config.scale_attn_by_inverse_layer_idx = True
    found.add(fingerprint(other))
    assert len(found) == 4


def test_training_mode_is_no_part_of_it() -> None:
    assert fingerprint(decoder().train()) == fingerprint(decoder().eval())


class Local(nn.Linear):
    pass


def patched() -> nn.Module:
    module = decoder()
    block = module.transformer.h[2]
    original = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    block.forward = forward
    return module


def put_back() -> nn.Module:
    """What transformers 4.57 leaves behind: the class's own method, as an attribute."""
    module = decoder()
    module.transformer.h[2].forward = module.transformer.h[2].forward
    return module


def borrowed() -> nn.Module:
    """The right method, of the wrong block."""
    module = decoder()
    module.transformer.h[2].forward = module.transformer.h[1].forward
    return module


def hooked() -> nn.Module:
    module = decoder()
    module.transformer.h[2].register_forward_hook(lambda *_: None)
    return module


def hooked_before() -> nn.Module:
    module = decoder()
    module.transformer.h[2].register_forward_pre_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (decoder, True),
        (lambda: nn.Sequential(nn.Linear(2, 2)), True),
        (lambda: nn.Sequential(Local(2, 2)), False),
        (patched, False),
        (put_back, True),
        (borrowed, False),
        (hooked, False),
        (hooked_before, False),
    ],
    ids=[
        "transformers",
        "torch",
        "local class",
        "patched",
        "put back",
        "borrowed",
        "hook",
        "pre-hook",
    ],
)
def test_whether_code_has_a_version(make: Callable[[], nn.Module], known: bool) -> None:
    assert has_known_code(make()) is known


def test_where_a_model_lies_is_no_part_of_it(tmp_path: Path) -> None:
    """A recording is compared on another machine, where the folder has another name."""
    prints = set()
    for name in ("here", "there"):
        decoder().save_pretrained(tmp_path / name)
        prints.add(open_model(str(tmp_path / name)).fingerprint)
    assert len(prints) == 1
