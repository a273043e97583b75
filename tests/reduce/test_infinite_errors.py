"""Drifts without bounds: what is infinitely wrong says little of where it began."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

import driftwalk
from driftwalk.adapter import Backend
from driftwalk.states import Probe
from driftwalk_backends.faults.fault import Fault
from driftwalk_backends.faults.graph import faulty_backend
from driftwalk_backends.faults.planning import FaultyModel
from driftwalk_backends.loaded import LoadedModel
from driftwalk_backends.sources import open_model

WEIGHT = "model.layers.1.post_attention_layernorm.weight"


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        vocab_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        made.get_parameter(WEIGHT).fill_(0.3)  # with bit 30 it is 1e38; 1 would be no number
    return open_model(made)


@pytest.mark.parametrize("element", [7, 40])
def test_a_weight_of_a_root_mean_square_norm_ends_in_the_product_with_it(
    model: LoadedModel, clean: Backend, probe: Probe, element: int
) -> None:
    """Behind it nearly anything makes the error smaller by some powers of ten, and rights nothing:
    the root of the mean in place of its reciprocal does, too."""
    settings = {"role": "exponent_high", "bit": 30, "element": element, "dtype": "fp32"}
    flipped = Fault("bit_flip", ("layer.1",), WEIGHT, "bit 30 flipped", settings)
    with faulty_backend(clean, FaultyModel(model, flipped), probe) as side:
        found = driftwalk.reduce(model, side, None, probe=probe)
    assert (found.point, found.fault) == ("layer.1", "graph")
    assert found.before is not None
    assert found.before.ratio == np.inf
    assert found.operations == ("Mul",)
    assert found.after is not None
    assert found.after.longest <= 2
    assert 1e6 < found.after.ratio < np.inf
    assert found.share > 0.99
    assert found.finished
