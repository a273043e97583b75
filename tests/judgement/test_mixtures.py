"""What runs is what was given: a module is never converted, and judged by its own dtypes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import driftwalk
import zoo
from driftwalk.dtypes import FORMATS
from driftwalk.judge.calibrate import calibrate
from driftwalk.measure.norms import distance
from driftwalk.mixture import Mixture
from driftwalk.registry import create
from driftwalk.states import BackendInfo
from driftwalk_backends.mixture import Mixed
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.tensors import from_numpy, to_numpy
from driftwalk_backends.torch_eager import TorchEager
from mixed_nets import (
    BF16,
    FP16,
    FP32,
    FP64,
    HALF_PAIR,
    IDS,
    LAYERS,
    PROBE,
    casting_hooks,
    mixed,
    net,
    scaled,
    verified,
)

MIXTURES: dict[str, Mapping[str, torch.dtype]] = {
    "bf16 blocks": HALF_PAIR,
    "fp16 blocks": {"blocks.1": FP16, "blocks.2": FP16},
    "bf16 embedding": {"embed": BF16},
    "bf16 head": {"head": BF16},
    "fp16 and bf16": {"blocks.0": FP16, "blocks.3": BF16},
    "every other": {"blocks.0": BF16, "blocks.2": BF16},
    "fp32 norm": {"embed": BF16, "blocks": BF16, "head": BF16},
    "fp32 table": {"blocks": BF16, "norm": BF16, "head": BF16},
    "an fp64 block": {"blocks.1": FP64},
}


def overflowing(model: nn.Module) -> nn.Module:
    """A copy whose blocks 1 and 2 have weights that fp16 holds, and activations it does not."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for block in (twin.blocks[1], twin.blocks[2]):
            block.mlp[0].weight.mul_(300)
            block.mlp[2].weight.mul_(300)
            for parameter in block.parameters():
                parameter.copy_(parameter.half())
    return twin


@pytest.mark.parametrize("name", MIXTURES)
def test_the_bits_are_those_of_the_users_own_call(name: str) -> None:
    module = mixed(net(), MIXTURES[name])
    before = {n: (p.dtype, p.data_ptr()) for n, p in module.named_parameters()}
    with torch.no_grad():
        theirs = to_numpy(module(input_ids=from_numpy(IDS)))
    backend = TorchEager.around(module)
    plain, traced = backend.run(PROBE)["output"], backend.trace(PROBE)
    assert plain.dtype == theirs.dtype
    assert plain.tobytes() == traced["logits"].tobytes() == theirs.tobytes()
    assert before == {n: (p.dtype, p.data_ptr()) for n, p in module.named_parameters()}


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_the_bits_of_a_half_module_are_its_own(dtype: torch.dtype) -> None:
    module = net().to(dtype)
    with torch.no_grad():
        theirs = to_numpy(module(input_ids=from_numpy(IDS)))
    backend = TorchEager.around(module)
    assert backend.run(PROBE)["output"].tobytes() == theirs.tobytes()
    assert not backend.trace(PROBE).backend.dtypes


def test_fp16_blocks_that_overflow_never_pass() -> None:
    model = overflowing(net())
    candidate = mixed(model, {"blocks.1": FP16, "blocks.2": FP16})
    with torch.no_grad():
        assert not candidate(input_ids=from_numpy(IDS)).isfinite().all(), "for its user, NaN"
        assert model(input_ids=from_numpy(IDS)).isfinite().all()
    for policy in ("calibrated", "dtype"):
        report = verified(model, candidate, policy=policy)
        assert report.verdict == "drift"
        assert report.first_divergence is not None
        assert report.first_divergence.point.name == "layer.1"
        assert report.first_divergence.verdict == "nonfinite"
        if policy == "calibrated":
            assert report.root_cause is not None
            assert report.root_cause.point.name == "layer.1"
            assert report.culprit is not None
            assert report.culprit.module == "blocks.1.mlp.2"
            assert "made NaN or Inf" in report.culprit.sentence


@pytest.mark.parametrize("name", MIXTURES)
def test_an_honest_mixture_passes(name: str) -> None:
    model = net()
    report = verified(model, mixed(model, MIXTURES[name]))
    assert report.ok, report
    needed = [row.tolerance.needed for row in report.layers if row.tolerance is not None]
    assert max(needed) < 0.75, "no clean pair uses more of what it is allowed"
    assert len(set(report.candidate.dtypes.values())) > 1


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_bf16_embedding_does_not_hide_a_fault_in_an_fp32_block(layer: int) -> None:
    model = net()
    candidate = scaled(mixed(model, {"embed": BF16}), f"blocks.{layer}.mlp.2.weight", 1.01)
    report = verified(model, candidate)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == f"layer.{layer}"


@pytest.mark.parametrize(
    ("path", "factor", "layer"),
    [
        ("blocks.0.mlp.0.weight", 1.05, 0),
        ("blocks.1.attn.qkv.weight", 1.05, 1),
        ("blocks.1.mlp.2.weight", 1.001, 1),
        ("blocks.2.attn.proj.weight", 0.5, 2),
        ("blocks.3.attn.proj.weight", 0.5, 3),
        ("head.weight", 1.01, None),
    ],
)
def test_faults_in_a_mixture_are_caught_and_placed(path: str, factor: float, layer: Any) -> None:
    model = net()
    report = verified(model, scaled(mixed(model, HALF_PAIR), path, factor))
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == ("logits" if layer is None else f"layer.{layer}")


def test_a_mixture_is_told_point_by_point_and_kept_in_a_trace(tmp_path: Path) -> None:
    expected = {
        **{"embed": "fp32", "layer.0": "fp32", "layer.1": "fp32"},
        **{"layer.2": "bf16", "layer.3": "bf16", "norm": "fp32", "logits": "fp32"},
    }
    model = net()
    trace = driftwalk.record(model, mixed(model, HALF_PAIR), PROBE)
    assert trace.backend.dtype == "bf16", "the coarsest"
    assert list(trace.backend.dtypes.items()) == list(expected.items())
    loaded = driftwalk.Trace.load(trace.save(tmp_path / "mixed.trace"))
    assert list(loaded.backend.dtypes.items()) == list(expected.items())
    plain = driftwalk.record(model, "torch", PROBE)
    assert not plain.backend.dtypes
    report = driftwalk.compare(plain, loaded, policy="dtype")
    assert report.ok
    room = {row.point.name: row.tolerance.atol for row in report.layers if row.tolerance}
    assert room["layer.1"] < room["layer.2"] == room["logits"], "what was rounded stays rounded"


def test_what_is_said_of_a_mixture() -> None:
    known = Mixture("bf16", {"embed": "fp32", "layer.0": "bf16", "layer.1": "bf16", "norm": "fp32"})
    assert str(known) == "fp32 (embed), bf16 (layer.0 to layer.1), fp32 (norm)"
    assert str(Mixture("fp16")) == "fp16"
    assert known.at("layer.1.mlp.c_fc") == "bf16"
    assert known.at("output.boxes") == "bf16", "of what is not known, the coarsest"
    so_far = known.up_to(["embed", "layer.0", "layer.1", "norm"])
    assert [found.name for found in so_far.values()] == ["fp32", "bf16", "bf16", "bf16"]
    assert Mixture.of(BackendInfo("torch", "torch", "cpu", "fp32")) == Mixture("fp32")


def test_the_floor_is_that_of_the_point_and_of_all_before_it() -> None:
    model = open_model(net())
    mixture = Mixture("bf16", {"embed": "bf16", **{f"layer.{i}": "fp32" for i in range(LAYERS)}})
    mixture = Mixture("bf16", {**mixture.dtypes, "norm": "fp32", "logits": "fp32"})
    with create("truth", model) as truth, Mixed(mixture, model) as yardstick:
        known = calibrate(truth, yardstick, PROBE)
    assert known.total["layer.1"].roundoff == FORMATS["bf16"].roundoff
    assert known.own["layer.1"].roundoff == FORMATS["fp32"].roundoff
    assert known.mixture.at("layer.1.mlp") == "fp32"
    assert known.own["layer.1"].noise.l2 < 1e-5 * known.size("layer.1").l2
    assert known.noise("layer.1").l2 > 1e-4 * known.size("layer.1").l2


@pytest.mark.parametrize("name", MIXTURES)
def test_the_yardstick_errs_as_the_mixture_does(name: str) -> None:
    model = open_model(net())
    backend = TorchEager.around(mixed(model.module, MIXTURES[name]))
    native = backend.trace(PROBE)
    with create("truth", model) as truth, Mixed(Mixture.of(native.backend), model) as yardstick:
        exact, predicted = truth.trace(PROBE), yardstick.trace(PROBE)
        plain = yardstick.run(PROBE)
    assert predicted.names == native.names
    assert plain["output"].tobytes() == predicted["logits"].tobytes()
    for point in exact.names:
        assert native[point].dtype == predicted[point].dtype, point
        ours, theirs = (distance(t[point], exact[point]).l2 for t in (native, predicted))
        assert 0.75 * theirs <= ours <= 1.33 * theirs or ours == theirs, point
    weights = model.module.state_dict()
    assert all(torch.equal(weights[n], p) for n, p in net().state_dict().items())


def test_a_yardstick_of_one_dtype_is_the_emulated_one() -> None:
    """The way that cuts a run at its points, and the way that rounds all of it, meet."""
    model = open_model(zoo.build("llama"))
    probe = make_probe(model)
    whole = create("emulated:bf16", model).trace(probe)
    cut = Mixed(Mixture("bf16", dict.fromkeys(whole.names, "bf16")), model).trace(probe)
    for point in whole.names:
        assert cut[point].tobytes() == whole[point].tobytes(), point


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "vit"])
def test_models_of_transformers_with_a_block_in_bf16(name: str) -> None:
    """A block in another dtype by way of hooks; then a fault in the one before it."""
    model = zoo.build(name)
    loaded = open_model(model)
    probe = make_probe(loaded)
    with TorchEager.around(model) as seen:
        seen.trace(probe)
        assert seen.layout is not None
        blocks = seen.layout.stacks[-1].blocks
    candidate = casting_hooks(model, {blocks[1]: BF16})
    report = driftwalk.verify(loaded, candidate=candidate, probe=probe, cache=False)
    assert report.ok, report
    assert list(report.candidate.dtypes.values()).count("bf16") == 1
    assert any("Calibration for" in note and "bf16" in note for note in report.notes)
    matrix = next(n for n, p in model.get_submodule(blocks[0]).named_parameters() if p.ndim == 2)
    faulty = scaled(candidate, f"{blocks[0]}.{matrix}", 1.05)
    report = driftwalk.verify(loaded, candidate=faulty, probe=probe)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.module == blocks[0]


def test_t5_in_fp16_keeps_its_float32_matrices_and_is_one_dtype() -> None:
    model = zoo.build("t5")
    half = open_model(model).at("fp16", "cpu")
    assert {p.dtype for p in half.parameters()} == {FP16, FP32}
    report = driftwalk.verify(model, candidate=half)
    assert report.ok
    assert (report.candidate.dtype, dict(report.candidate.dtypes)) == ("fp16", {})


def test_a_reference_that_is_a_module_is_run_as_it_is() -> None:
    model = net()
    half = mixed(model, HALF_PAIR)
    report = driftwalk.verify(model, candidate=half, reference=half, probe=PROBE)
    assert report.ok
    assert report.reference.dtypes["layer.2"] == "bf16"
    # Two runs of one module: not always the same bits, but far from what bf16 rounds.
    assert all(row.metrics and row.metrics.rel_l2 < 1e-6 for row in report.layers)
    overflows = mixed(overflowing(net()), {"blocks.1": FP16})
    report = driftwalk.verify(model, candidate="torch", reference=overflows, probe=PROBE)
    assert report.verdict != "pass"
