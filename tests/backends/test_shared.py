"""What all layers share: a wrong rotary table or mask is not blamed on layer 0."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
import torch_nets
import zoo
from driftwalk.judge.shared import sharing
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

IDS = np.arange(2, 18).reshape(2, 8)
PADDED = {"input_ids": IDS, "attention_mask": np.array([[0, 0] + [1] * 6, [1] * 8])}


def changed(module: nn.Module, path: str, change: Callable[[Any], Any]) -> nn.Module:
    """A copy in which what a module gives is changed."""
    twin = copy.deepcopy(module)
    part = twin.get_submodule(path)
    original = part.forward
    part.forward = lambda *args, **kwargs: change(original(*args, **kwargs))  # type: ignore[method-assign]
    return twin


def shared_names(module: nn.Module, probe: object = None, spec: str = "torch") -> list[str]:
    model = open_model(module)
    backend = driftwalk.backend(spec, model)
    with sharing(backend):
        names = backend.trace(make_probe(model, probe)).names
    assert all("shared" not in name for name in backend.trace(make_probe(model, probe)).names)
    return list(names)


def test_shared_inputs_are_states_where_asked_for() -> None:
    names = shared_names(zoo.build("llama"), PADDED)
    assert names[:5] == ["embed", "shared.mask", "shared.rotary.0", "shared.rotary.1", "layer.0"]
    assert shared_names(zoo.build("gpt2"), PADDED)[:3] == ["embed", "shared.mask", "layer.0"]


def test_relative_positions_come_after_the_layer_that_makes_them() -> None:
    names = shared_names(zoo.build("t5"))
    encoder = names.index("encoder.layer.0")
    assert names[encoder + 1] == "encoder.shared.position_bias"
    assert "decoder.shared.encoder_hidden_states" not in names  # a state already: encoder.norm


def test_a_second_table_has_a_name_of_its_own() -> None:
    """Gemma's layers slide or do not, each kind with a table and a mask of its own."""
    config = zoo.build("gemma3").config
    config.num_hidden_layers, config.sliding_window = 4, 4
    config.layer_types = ["sliding_attention", "full_attention"] * 2
    torch.manual_seed(0)
    names = shared_names(type(zoo.build("gemma3"))(config).eval(), PADDED)
    between = names[names.index("layer.0") + 1 : names.index("layer.1")]
    assert between == ["shared.mask#2", "shared.rotary.0#2", "shared.rotary.1#2"]


def wrong_theta(module: nn.Module) -> nn.Module:
    twin = copy.deepcopy(module)
    rotary = twin.get_submodule("model.rotary_emb")
    rotary.inv_freq = rotary.inv_freq * 0.97
    return twin


def positions_rolled(module: nn.Module) -> nn.Module:
    return changed(
        module, "model.rotary_emb", lambda tables: tuple(table.roll(1, 1) for table in tables)
    )


@pytest.mark.parametrize("fault", [wrong_theta, positions_rolled])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_wrong_rotary_table_is_named(name: str, fault: Callable[[nn.Module], nn.Module]) -> None:
    module = zoo.build(name)
    report = driftwalk.verify(module, candidate=fault(module))
    assert report.verdict == "drift"
    assert report.cause == "shared.rotary.0"
    assert report.root_cause is not None
    assert report.first_divergence is report.root_cause
    assert report.culprit is not None
    assert "layers are handed it beside the stream" in report.culprit.sentence
    # Given the candidate's table, the truth's layers give what the candidate's do.
    layers = [row for row in report.layers if row.point.name.startswith("layer.")]
    assert not any(row.blame.guilty for row in layers if row.blame)
    assert [row.index for row in report.layers] == list(range(len(report.layers)))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_a_wrong_mask_is_named(name: str, attn: str) -> None:
    module = zoo.build(name)
    module.set_attn_implementation(attn)
    bad = copy.deepcopy(module)
    inner = bad.get_submodule(bad.base_model_prefix)
    original = inner.forward

    def last_position_masked(*args: Any, **kwargs: Any) -> Any:
        mask = kwargs["attention_mask"].clone()
        mask[:, -1] = 0
        return original(*args, **kwargs | {"attention_mask": mask})

    inner.forward = last_position_masked  # type: ignore[method-assign]
    report = driftwalk.verify(module, candidate=bad, probe=PADDED)
    assert report.verdict == "drift"
    assert report.cause == "shared.mask"


def test_a_mask_that_the_candidate_alone_has_is_named_as_a_suspect() -> None:
    """Fused attention gets no mask where nothing is masked; the faulty candidate has one."""
    module = zoo.build("llama")
    bad = copy.deepcopy(module)
    original = bad.model.forward

    def last_position_masked(*args: Any, **kwargs: Any) -> Any:
        mask = torch.ones_like(kwargs["input_ids"])
        mask[:, 2] = 0
        return original(*args, **kwargs | {"attention_mask": mask})

    bad.model.forward = last_position_masked
    report = driftwalk.verify(module, candidate=bad, probe={"input_ids": IDS})
    assert report.cause == "layer.0"
    assert report.culprit is not None
    assert "suspect also what all layers share" in report.culprit.sentence


def test_a_fault_in_a_layer_stays_in_the_layer() -> None:
    module = zoo.build("llama")
    bad = copy.deepcopy(module)
    with torch.no_grad():
        bad.model.layers[0].mlp.down_proj.weight *= 1.01
    report = driftwalk.verify(module, candidate=bad)
    assert report.cause == "layer.0"
    bad = copy.deepcopy(module)
    with torch.no_grad():
        for layer in bad.model.layers:
            layer.mlp.down_proj.weight *= 1.01
    report = driftwalk.verify(module, candidate=bad)
    assert report.cause == "layer.0"
    assert report.culprit is not None
    assert "all layers share" not in report.culprit.sentence


def test_another_convention_is_no_fault() -> None:
    """A table that is stored otherwise, and read so, means the same."""
    module = zoo.build("llama")
    port = changed(module, "model.rotary_emb", lambda tables: tuple(-table for table in tables))
    for layer in port.model.layers:
        attention = layer.self_attn
        original = attention.forward

        def turned(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            tables = tuple(-table for table in kwargs["position_embeddings"])
            return _original(*args, **kwargs | {"position_embeddings": tables})

        attention.forward = turned
    assert driftwalk.verify(module, candidate=port).ok
    with torch.no_grad():
        for layer in port.model.layers:
            layer.mlp.down_proj.weight *= 1.01
    assert driftwalk.verify(module, candidate=port).cause == "layer.0"


def test_an_exported_graph_gives_them_too() -> None:
    module = zoo.build("llama")
    assert "shared.rotary.0" in shared_names(module, PADDED, "onnxruntime")


@pytest.mark.parametrize("name", zoo.NAMES)
def test_clean_pairs_pass(name: str) -> None:
    module = zoo.build(name)
    report = driftwalk.verify(
        module, reference="torch,attn=eager", candidate="torch,attn=sdpa", blame=True
    )
    assert report.ok
    assert not any(row.point.is_shared for row in report.layers)


def test_layers_that_round_more_on_wrong_states_are_not_guilty_alike() -> None:
    """After a ReLU other numbers are zero, where honest noise was next to none."""
    torch.manual_seed(0)
    module = torch_nets.ResNet(16, (2, 2, 2, 2)).eval()
    wrong = copy.deepcopy(module)
    with torch.no_grad():
        wrong.layer2[0].conv2.weight.mul_(1.05)
    report = driftwalk.verify(module, wrong, probe={"x": torch.randn(2, 3, 64, 64).numpy()})
    assert report.cause == "layer2.layer.0"
    assert report.culprit is not None
    assert "alike" not in report.culprit.sentence
