"""Modules of several dtypes that are odd: quantised, stored in eight bits, handing on less."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import driftwalk
from driftwalk.errors import DriftwalkError, ModelError, UsageError
from driftwalk.mixture import Mixture
from driftwalk.states import Probe
from driftwalk_backends.mixture import Mixed
from driftwalk_backends.sources import open_model
from driftwalk_backends.tensors import from_numpy, to_numpy
from driftwalk_backends.torch_eager import TorchEager
from mixed_nets import (
    BF16,
    FP16,
    HALF_PAIR,
    IDS,
    PROBE,
    Block,
    FromFloats,
    Net,
    mixed,
    net,
    scaled,
    verified,
)


def test_float_inputs_are_given_in_the_finest_dtype_that_the_module_takes() -> None:
    model = net(kind=FromFloats)
    features = np.random.default_rng(0).standard_normal((2, 16, 8)).astype(np.float32)
    probe = Probe({"features": features})
    for parts in ({"blocks.1": BF16}, {"proj": BF16}, {"": BF16}):
        module = mixed(model, parts)
        taken = from_numpy(features).to(module.proj.weight.dtype)
        with torch.no_grad():
            theirs = to_numpy(module(features=taken))
        assert TorchEager.around(module).run(probe)["output"].tobytes() == theirs.tobytes()
        assert driftwalk.verify(model, candidate=module, probe=probe).ok


class Careless(FromFloats):
    """Casts nothing, so that parts of different dtypes cannot follow each other."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.blocks[0].mlp(self.proj(features))


def test_a_mixture_that_cannot_run_says_what_was_tried() -> None:
    module = mixed(net(kind=Careless), {"proj": FP16})
    probe = Probe({"features": np.ones((1, 4, 8), np.float32)})
    with pytest.raises(ModelError, match=r"parameters in fp32, fp16.*none of them \(fp32: .*fp16"):
        TorchEager.around(module).run(probe)


@pytest.mark.usefixtures("quantised_engine")
@pytest.mark.filterwarnings("ignore")
def test_quantised_modules_are_run_as_they_are_and_say_so() -> None:
    model = net()
    quantised = copy.deepcopy(model)
    quantised.blocks = torch.ao.quantization.quantize_dynamic(quantised.blocks, {nn.Linear})
    with torch.no_grad():
        theirs = to_numpy(quantised(input_ids=from_numpy(IDS)))
    backend = TorchEager.around(quantised)
    assert backend.run(PROBE)["output"].tobytes() == theirs.tobytes()
    assert "quantised" in backend.info.flags
    report = verified(model, quantised)
    assert report.ok, "it is what eight bits give, as it rounds"
    assert report.format is not None
    assert all(cost.format >= 10 * cost.kernel for cost in report.format.layers.values())
    assert any("quantised" in note for note in report.notes)
    assert "quantised" not in TorchEager.around(model).info.flags


class Stored8(nn.Module):
    """A matrix stored in eight bits, as floats or as whole numbers, and used in float32."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_weights_only_stored_in_eight_bits_do_not_set_the_dtype(dtype: torch.dtype) -> None:
    model = net()
    weight = (8 * torch.randn(32, 32, generator=torch.Generator().manual_seed(0))).to(dtype)
    model.blocks[1].attn.proj = Stored8(weight)
    backend = TorchEager.around(model)
    trace = backend.trace(PROBE)
    assert (trace.backend.dtype, dict(trace.backend.dtypes)) == ("fp32", {})
    assert trace.backend.flags["quantised"] == str(dtype).removeprefix("torch.")


def test_complex_parameters_are_as_fine_as_their_parts() -> None:
    model = net().to(BF16)
    model.blocks[0].turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))
    assert TorchEager.around(model).info.dtype == "bf16"
    alone = nn.Module()
    alone.turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))
    assert TorchEager.around(alone).info.dtype == "fp32"


def test_a_module_without_weights_is_refused() -> None:
    with pytest.raises(UsageError, match="has no weights"):
        TorchEager.around(Net().to("meta"))


class OutOfTurn(Net):
    """A stack that is run twice: a run cannot be cut at its points."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for block in (*self.blocks, *self.blocks):
            x = block(x)
        return self.head(self.norm(x.to(self.norm.weight.dtype)).to(self.head.weight.dtype))


def test_one_block_applied_in_one_dtype_and_more_than_once() -> None:
    model = net(kind=OutOfTurn)
    candidate = mixed(model, {"blocks.1": BF16})
    report = verified(model, candidate)
    assert report.ok
    assert [report.candidate.dtypes[f"layer.{i}"] for i in (1, 2, 5)] == ["bf16", "fp32", "bf16"]
    report = verified(model, scaled(candidate, "blocks.2.mlp.2.weight", 1.01))
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.2"


class HandsOnHalf(Block):
    """Computes in float32, and hands its result on in bfloat16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).to(BF16)


def test_a_state_handed_on_coarser_than_it_was_computed() -> None:
    model = net()
    candidate = mixed(model, {"blocks.2": BF16})
    candidate.blocks[1].__class__ = HandsOnHalf
    report = verified(model, candidate)
    assert report.ok
    assert (report.candidate.dtypes["layer.1"], report.candidate.stored) == (
        "fp32",
        {"layer.1": "bf16"},
    )
    faulty = scaled(candidate, "blocks.1.mlp.2.weight", 1.2)
    report = verified(model, faulty)
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"


def test_a_float32_block_that_loses_bits_is_no_mixture() -> None:
    model = net()
    candidate = copy.deepcopy(model)
    candidate.blocks[1].__class__ = HandsOnHalf
    report = verified(model, candidate)
    assert report.verdict == "drift", "its weights say float32, and so it is held to that"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"


def test_specs_still_convert_a_copy_as_they_say() -> None:
    module = mixed(net(), HALF_PAIR)
    with driftwalk.backend("torch:cpu:fp32", module) as backend:
        assert {state.dtype for state in backend.trace(PROBE)} == {"fp32"}
        assert not backend.info.dtypes
    assert module.blocks[2].ln_1.weight.dtype == BF16


def test_a_mixture_that_no_yardstick_can_follow_is_said_to_be_one() -> None:
    with pytest.raises(DriftwalkError, match="mixture with 'fp8'"):
        Mixed(Mixture("fp8", {"embed": "fp8", "layer.0": "fp32"}), open_model(net()))
