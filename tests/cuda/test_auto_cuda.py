"""`torch:auto` on a real GPU: a model over it and the CPU gives what either of them gives alone."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest

import driftwalk
import zoo
from driftwalk.registry import create
from driftwalk_backends import lending
from driftwalk_backends.lending import Lent
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NAMES = ["gpt2", "llama", "t5", "bert"]


def spread(module, dtype="fp32", share=0.6):
    """The spec that gives each GPU a share of the model's weights at most."""
    size = {"fp32": 4, "bf16": 2}[dtype] * sum(weight.numel() for weight in module.parameters())
    gpus = torch.cuda.device_count()
    return f"torch:auto:{dtype},memory={int(share * size / gpus / 1024)}KiB"


def devices_of(backend):
    return {str(weight.device) for weight in backend._open().parameters()}


@pytest.mark.parametrize("name", zoo.NAMES)
def test_states_are_those_of_one_device(name):
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    with create(spread(model.module), model) as auto:
        ours = auto.trace(probe)
        assert {"cpu", "cuda:0"} <= devices_of(auto), auto.info.flags["placement"]
        assert "on cuda:0" in auto.info.flags["placement"]
        assert "on cpu" in auto.info.flags["placement"]
        plain = auto.run(probe)
    assert all((plain[n] == ours.outputs[n]).all() for n in plain), "looking changes nothing"
    for spec in ("torch:cpu:fp32", "torch:cuda:fp32"):
        with create(spec, model) as one:
            theirs = one.trace(probe)
        assert ours.names == theirs.names
        for state in theirs:
            far = np.abs(ours[state.point.name] - state.array).max()
            assert far <= 2e-5 * max(1.0, np.abs(state.array).max()), (spec, state.point.name)


@pytest.mark.parametrize("name", NAMES)
def test_points_are_found_in_a_spread_model_as_in_any(name):
    module = zoo.build(name)
    one, other = open_model(module), open_model(module)
    probe = make_probe(one)
    with create(spread(module), one) as auto, create("torch", other) as plain:
        auto.trace(probe), plain.trace(probe)
        assert auto.layout.key == plain.layout.key
        assert auto.layout.confirmed == plain.layout.confirmed


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_a_spread_model_is_verified(name, dtype):
    module = zoo.build(name)
    report = driftwalk.verify(module, spread(module, dtype), cache=False)
    assert report.verdict == "pass", report.reason
    assert not any("ran on the CPU" in note for note in report.notes), "the truth ran on the GPU"


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_placed_whichever_side_is_spread(name):
    module = zoo.build(name)
    wrong = copy.deepcopy(module)
    numbers = re.compile(r"(block|h|layers?)\.1\.")
    path = next(p for p, w in wrong.named_parameters() if numbers.search(p) and w.ndim == 2)
    with torch.no_grad():
        wrong.get_parameter(path).mul_(1.05)
    with driftwalk.backend(spread(module), wrong) as candidate:
        reports = [
            driftwalk.verify(module, candidate, cache=False),
            driftwalk.verify(module, wrong, reference=spread(module), cache=False),
        ]
    for report in reports:
        assert report.verdict == "drift", report.reason
        assert report.at_fault == "candidate"
        assert path.startswith(f"{report.root_cause.point.module}.")


@pytest.mark.parametrize("name", ["gpt2", "t5", "bert"])
def test_a_tied_head_shares_the_memory_of_its_embedding(name):
    module = zoo.build(name)
    with create(spread(module), open_model(module)) as auto:
        copied = auto._open()
        head, table = copied.get_output_embeddings(), copied.get_input_embeddings()
        assert head.weight.data_ptr() == table.weight.data_ptr()
        assert head.weight.device.type == "cuda"


def test_no_gpu_is_given_more_than_it_may_have():
    module = zoo.build("llama")
    spec = spread(module, share=0.5)
    limit = 1024 * int(spec.rpartition("=")[2].removesuffix("KiB"))
    with create(spec, open_model(module)) as auto:
        for number in range(torch.cuda.device_count()):
            held = [w.nbytes for w in auto._open().parameters() if w.device.index == number]
            assert 0 < sum(held) <= limit


def test_what_fits_is_plain_pytorch_on_the_gpu():
    model = open_model(zoo.build("llama"))
    probe = make_probe(model)
    with create("torch:auto", model) as auto, create("torch:cuda:0", model) as plain:
        ours, theirs = auto.trace(probe), plain.trace(probe)
        assert auto.info.flags["placement"] == "all on cuda:0"
    assert all((ours[name] == theirs[name]).all() for name in theirs.names)


def test_of_a_large_model_what_lies_on_the_cpu_is_lent(monkeypatch):
    monkeypatch.setattr(lending, "LARGE", 0)
    monkeypatch.setattr(lending, "SMALLEST", 2)
    module = zoo.build("llama").bfloat16()
    model = open_model(module)
    with create(spread(module), model) as auto:
        weights = list(auto._open().parameters())
        assert {w.device.type for w in weights if isinstance(w, Lent)} == {"cpu"}
    report = driftwalk.verify(module, spread(module, "bf16"), reference=spread(module), cache=False)
    assert report.verdict == "pass", report.reason


def test_runs_of_several_devices_are_timed_to_the_end():
    module = zoo.build("llama")
    model = open_model(module)
    probe = make_probe(model)
    with create(spread(module), model) as auto:
        auto.lap(probe)
        lap = auto.lap(probe)
        assert lap.device is None, "several devices have no clock in common"
        assert lap.seconds > 0
        assert list(auto.layer_laps(probe)) == list(auto.trace(probe).names)
        assert auto.device_memory()["cuda:0 allocated"] > 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_model_over_two_gpus_alone():
    module = zoo.build("llama")
    model = open_model(module)
    with create(spread(module, share=1.3), model) as auto:
        assert devices_of(auto) >= {"cuda:0", "cuda:1"}
    report = driftwalk.verify(module, spread(module, share=1.3), cache=False)
    assert report.verdict == "pass", report.reason


def test_a_module_that_is_spread_is_run_as_it_is_and_not_spread_again():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x.to(layer.weight.device))
            return x

    module, probe = Two(), {"x": np.ones((2, 4, 8), np.float32)}
    given = copy.deepcopy(module)
    given.layers[0].cuda()
    report = driftwalk.verify(module, given, probe=probe, cache=False)
    assert report.verdict == "pass", report.reason
    with pytest.raises(driftwalk.DriftwalkError, match="is spread already"):
        driftwalk.backend("torch:auto", given)
