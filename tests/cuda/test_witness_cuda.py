"""Truth and yardsticks on the GPU: the same truth and verdicts, and no copy of the weights."""

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
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SIDES = {"candidate": "torch:cuda:bf16", "reference": "torch:cuda:fp32"}


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "LARGE", 0)
    monkeypatch.setattr(lending, "SMALLEST", 2)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_the_truth_on_the_gpu_is_that_of_the_cpu(name):
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    with create("truth", model) as host, create("truth:cuda", model) as device:
        ours, theirs = host.trace(probe), device.trace(probe)
    assert ours.names == theirs.names
    for state in ours:
        far = np.abs(theirs[state.point.name] - state.array).max()
        assert far <= 1e-11 * max(1.0, np.abs(state.array).max()), state.point.name


@pytest.mark.parametrize("name", zoo.NAMES)
def test_the_errors_of_both_sides_are_those_that_a_witness_on_the_cpu_sees(name, request):
    model = zoo.build(name)
    host = driftwalk.verify(model, **SIDES, witness="cpu", cache=False)
    request.getfixturevalue("all_are_large")
    device = driftwalk.verify(model, **SIDES, cache=False)
    assert device.verdict == host.verdict, (device.reason, host.reason)
    for ours, theirs in zip(host.layers, device.layers, strict=True):
        if ours.truth is None or theirs.truth is None:
            continue
        for side in ("reference", "candidate"):
            a, b = getattr(ours.truth, side), getattr(theirs.truth, side)
            assert abs(a - b) <= 1e-6 * a + 1e-15 * ours.truth.scale, (ours.point.name, side)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_a_fault_is_placed_by_either_witness(name):
    model = zoo.build(name)
    wrong = copy.deepcopy(model)
    numbers = re.compile(r"(block|h|layers)\.1\.")
    path = next(p for p, w in wrong.named_parameters() if numbers.search(p) and w.ndim == 2)
    with torch.no_grad():
        wrong.get_parameter(path).mul_(1.05)
    causes = set()
    for witness in ("cpu", "cuda"):
        report = driftwalk.verify(
            model, wrong.cuda(), reference="torch:cuda:fp32", witness=witness, cache=False
        )
        assert report.verdict == "drift", report.reason
        causes.add(report.root_cause.point.name)
    assert len(causes) == 1
    assert "1" in causes.pop()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("width", [64, 128])
def test_what_is_emulated_on_the_gpu_is_what_is_emulated_on_the_cpu(width, dtype):
    """Kernels for attention that take no float32 are for such widths of a head."""
    config = transformers.LlamaConfig(
        hidden_size=4 * width,
        intermediate_size=8 * width,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=200,
    )
    torch.manual_seed(0)
    model = open_model(transformers.LlamaForCausalLM(config).eval())
    probe = make_probe(model, {"input_ids": np.arange(192).reshape(1, 192)})
    specs = "truth", f"emulated:{dtype}", f"emulated:cuda:{dtype}", f"torch:cuda:{dtype}"
    true, *others = (create(spec, model).trace(probe) for spec in specs)
    for state in true:
        off = [np.linalg.norm(run[state.point.name].astype(float) - state.array) for run in others]
        assert max(off) <= 1.1 * min(off), (state.point.name, off)


@pytest.mark.usefixtures("all_are_large")
def test_the_witness_is_lent_the_weights_that_the_reference_has_on_the_gpu():
    model = open_model(zoo.build("llama"))
    with create("torch:cuda:fp32", model) as side, create("truth:cuda", model) as truth:
        there = {weight.data_ptr() for weight in side._open().parameters()}
        lent = [w for w in truth._open().parameters() if isinstance(w, Lent)]
        assert lent
        assert {weight.source.data_ptr() for weight in lent} <= there


@pytest.mark.usefixtures("all_are_large")
def test_weights_that_the_gpu_has_no_room_for_are_streamed(monkeypatch):
    monkeypatch.setattr(lending, "ROOM", 0.0)
    model = open_model(zoo.build("llama"))
    probe = make_probe(model)
    with (
        create("torch:cuda:bf16", model) as copied,
        create("torch:cuda:bf16,stream=on", model) as s,
    ):
        lent = [w for w in s._open().parameters() if isinstance(w, Lent)]
        assert all(weight.source.device.type == "cpu" for weight in lent)
        ours = s.trace(probe)
        assert lent
        theirs = copied.trace(probe)
    for state in ours:
        np.testing.assert_array_equal(state.array, theirs[state.point.name])


def test_what_was_stored_on_the_gpu_is_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))
    model = zoo.build("llama")
    first, second = (driftwalk.verify(model, **SIDES) for _ in range(2))
    assert any("was computed" in note for note in first.notes)
    assert not any("was computed" in note for note in second.notes)
    assert [row.truth for row in first.layers] == [row.truth for row in second.layers]


def test_what_the_gpu_has_no_memory_for_is_done_on_the_cpu(monkeypatch):
    from driftwalk_backends.truth import Truth

    plain = Truth._watched

    def watched(self, *given):
        if self._device.type == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB.")
        return plain(self, *given)

    monkeypatch.setattr(Truth, "_watched", watched)
    report = driftwalk.verify(zoo.build("llama"), **SIDES, cache=False)
    assert report.verdict == "pass"
    assert any("ran on the CPU" in note for note in report.notes)
