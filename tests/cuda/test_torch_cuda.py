"""The torch backend on a real GPU; `python -m pytest -m cuda` on a machine that has one."""

from __future__ import annotations

import numpy as np
import pytest

import driftwalk
import zoo
from driftwalk_backends.fingerprint import fingerprint
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", zoo.NAMES)
def test_fp32_on_the_gpu_agrees_with_the_cpu(name: str) -> None:
    report = driftwalk.verify(zoo.build(name), candidate="torch:cuda:fp32")
    assert report.ok, report
    assert report.candidate.device.startswith("cuda")
    assert report.candidate.flags["tf32"] == "off"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", [name for name in zoo.NAMES if name != "mixtral"])
def test_half_on_the_gpu_keeps_within_its_dtype(name: str, dtype: str) -> None:
    report = driftwalk.verify(zoo.build(name), candidate=f"torch:cuda:{dtype}")
    assert report.ok, report
    assert report.layer("logits").dtypes.candidate == dtype
    assert max(layer.metrics.rel_l2 for layer in report.layers if layer.metrics) > 1e-5


@pytest.mark.parametrize(
    "spec", ["torch:cuda:fp32,compile=inductor", "torch:cuda:fp16,compile=inductor"]
)
def test_inductor_on_the_gpu_keeps_within_its_dtype(spec: str) -> None:
    report = driftwalk.verify(zoo.build("llama"), candidate=spec)
    assert report.ok, report
    assert report.candidate.flags["compile"] == "inductor"
    near = driftwalk.verify(zoo.build("llama"), spec, spec.partition(",")[0], policy="dtype")
    assert near.ok, near  # compared where both are, on the device


def test_a_model_is_the_same_model_on_either_device() -> None:
    """Weights of a GPU are hashed piece by piece: more than one piece, and a part of one."""
    module = torch.nn.Sequential(torch.nn.Linear(3000, 1000), torch.nn.LayerNorm(1000))
    module[1].register_buffer("nothing", torch.empty(0))
    before = fingerprint(module)
    assert fingerprint(module.cuda()) == before
    with torch.no_grad():
        module[0].weight[999, 2999] += 1  # the last byte of the last piece
    assert fingerprint(module) != before


def test_tf32_is_coarser_than_fp32_and_is_switched_back() -> None:
    model = zoo.build("llama")
    before = torch.backends.cuda.matmul.allow_tf32
    exact = driftwalk.verify(model, candidate="torch:cuda:fp32,tf32=off")
    coarse = driftwalk.verify(model, candidate="torch:cuda:fp32,tf32=on")
    assert torch.backends.cuda.matmul.allow_tf32 == before
    assert exact.ok
    assert coarse.layer("layer.2").metrics.rmse > 20 * exact.layer("layer.2").metrics.rmse


def test_repeats_are_bit_identical_and_looking_changes_nothing() -> None:
    backend = driftwalk.backend("torch:cuda:fp16", zoo.build("gpt2"))
    probe = driftwalk.Probe({"input_ids": np.arange(12).reshape(1, 12)})
    first, second = backend.trace(probe), backend.trace(probe)
    assert all((first[n] == second[n]).all() for n in first.names)
    plain = backend.run(probe)
    assert all((plain[n] == first.outputs[n]).all() for n in plain)


def test_the_caller_s_module_stays_on_the_cpu() -> None:
    model = zoo.build("bert")
    driftwalk.verify(model, candidate="torch:cuda:bf16")
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(driftwalk.DriftwalkError, match=r"counted from 0"):
        driftwalk.backend("torch:cuda:99:fp16", zoo.build("gpt2"))


def test_on_a_gpu_copies_and_the_device_s_own_clock_are_told_apart() -> None:
    model = open_model("demo:decoder")
    probe = make_probe(model)
    with driftwalk.backend("torch:cuda:fp16", model) as backend:
        backend.lap(probe)
        lap = backend.lap(probe)
        assert lap.device is not None
        assert 0 < lap.device <= lap.seconds * 1.05
        assert lap.copy_in > 0
        assert lap.copy_out > 0
        laps = backend.layer_laps(probe)
        assert list(laps) == list(backend.trace(probe).names)
        assert backend.device_memory()["cuda allocated"] > 0


class _Noisy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(8, dtype=x.dtype, device=x.device)
        given: torch.Tensor = self.layers(x + torch.randn_like(x) + noise)
        return given


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_random_numbers_on_a_gpu_are_those_of_the_cpu(dtype: str) -> None:
    torch.manual_seed(0)
    probe = {"x": np.ones((2, 4, 8), np.float32)}
    report = driftwalk.verify(_Noisy(), f"torch:cuda:{dtype}", probe=probe, cache=False)
    assert report.ok, report.reason
