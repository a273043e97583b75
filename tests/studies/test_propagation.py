"""Small errors follow the truth's Jacobian; where they do not, the result says which way."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import zoo
from driftwalk.effects import Carried, Propagation
from driftwalk.registry import create
from driftwalk.tasks.studies.effects import propagation
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_eager import TorchEager


def decoder(layers: int = 12) -> Any:
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=zoo.VOCABULARY,
    )
    return tf.LlamaForCausalLM(config).eval()


def followed(model: Any, candidate: object, source: str | None = None) -> Propagation:
    loaded = open_model(model)
    other = (
        create(candidate, loaded) if isinstance(candidate, str) else TorchEager.around(candidate)
    )  # type: ignore[arg-type]
    probe = make_probe(loaded, None, batch=2, length=10)
    return propagation(create("truth", loaded), other, probe, source)


@pytest.mark.parametrize("build", [decoder, lambda: gpt2(12)], ids=["llama", "gpt2"])
def test_clean_half_precision_is_predicted(build: Any) -> None:
    """The bounds asked for are 0.8 and 1.25 at every layer."""
    found = followed(build(), "emulated:fp16")
    told = [layer for layer in found.layers if layer.finding != "nothing"]
    assert len(told) == 14
    assert all(0.8 < layer.ratio < 1.25 for layer in told)
    assert all(layer.off < 0.05 for layer in told)
    assert {layer.finding for layer in told} == {"follows"}
    assert found.worst_ratio == pytest.approx(1, abs=0.05)


def gpt2(layers: int) -> Any:
    torch.manual_seed(0)
    config = tf.GPT2Config(n_embd=32, n_layer=layers, n_head=4, vocab_size=99, n_positions=64)
    config.bos_token_id = config.eos_token_id = 1
    return tf.GPT2LMHeadModel(config).eval()


def test_measured_is_what_blame_measures() -> None:
    """Inherited and introduced add up to the error, as vectors do."""
    model = zoo.build("gpt2")
    loaded = open_model(model)
    probe = make_probe(loaded, None, batch=2, length=10)
    truth, candidate = create("truth", loaded), create("emulated:bf16", loaded)
    found = propagation(truth, candidate, probe)
    exact, met = truth.trace(probe), candidate.trace(probe)
    for layer in found.layers:
        keep = probe.keep(layer.point, exact[layer.point].shape)
        error = met[layer.point].astype(np.float64) - exact[layer.point]
        total = np.linalg.norm(error if keep is None else error[keep])
        assert abs(layer.measured - layer.introduced) <= total * (1 + 1e-9)
        assert layer.measured + layer.introduced >= total * (1 - 1e-9)


def test_a_large_fault_is_called_no_longer_small() -> None:
    model = decoder(6)
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.model.layers[2].mlp.down_proj.weight *= -3000
    found = followed(model, broken, "layer.2")
    assert found.source == "layer.2"
    told = {layer.point: layer.finding for layer in found.layers}
    assert told["layer.2"] == "follows"  # what it inherits is still honest
    assert "nonlinear" in {told["layer.3"], told["layer.4"], told["norm"]}
    first = found.first("nonlinear")
    assert first is not None
    assert first.point != "layer.2"


def test_a_small_fault_follows_from_its_layer_alone() -> None:
    model = decoder(6)
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.model.layers[2].mlp.down_proj.weight *= 1.01
    found = followed(model, broken, "layer.2")
    later = found.layers[4:]
    assert later[0].point == "layer.3"
    assert {layer.finding for layer in later} == {"follows"}
    assert all(layer.source == pytest.approx(layer.measured, rel=0.05) for layer in later)


def test_a_later_layer_that_adds_its_own_is_told() -> None:
    model = decoder(6)
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight *= 1.001
        broken.model.layers[3].mlp.down_proj.weight *= 1.05
    found = followed(model, broken, "layer.1")
    told = {layer.point: layer.finding for layer in found.layers}
    assert told["layer.2"] == told["layer.3"] == "follows"
    assert told["layer.4"] == told["logits"] == "added"


@pytest.mark.parametrize("name", ["t5", "bert", "mixtral"])
def test_other_architectures(name: str) -> None:
    found = followed(zoo.build(name), "emulated:fp16")
    told = [layer for layer in found.layers if layer.finding != "nothing"]
    assert len(told) > zoo.LAYERS
    assert all(0.8 < layer.ratio < 1.25 for layer in told)


@pytest.mark.parametrize(
    ("numbers", "finding"),
    [
        ((0.0, 0.0, 0.0, 0.0), "nothing"),
        ((1.0, 1.1, 0.2, 0.0), "follows"),
        ((1.0, 1.1, 0.2, 0.9), "follows"),
        ((1.0, 1.1, 0.2, 0.4), "added"),
        ((1.0, 2.1, 0.2, 0.9), "nonlinear"),
        ((1.0, 0.4, 0.2, 0.4), "nonlinear"),
        ((1.0, 1.0, 0.6, 0.9), "nonlinear"),
        ((float("inf"), 1.0, 1.0, 1.0), "nonfinite"),
        ((1.0, float("nan"), 1.0, 1.0), "nonfinite"),
    ],
)
def test_findings(numbers: tuple[float, ...], finding: str) -> None:
    measured, predicted, off, source = numbers
    layer = Carried("layer.1", measured, predicted, off, predicted, source, 0.0)
    assert layer.finding == finding
