"""The calibrated policy: honest candidates pass, wrong ones do not, and the truth decides."""

from __future__ import annotations

import copy
from dataclasses import replace
from mmap import mmap

import numpy as np
import pytest
import torch

import driftwalk
import zoo
from driftwalk.judge import calibration_cache, witness
from driftwalk.judge.calibrate import calibrate, closer
from driftwalk.judge.constants import YARDSTICKS
from driftwalk.measure.norms import ZERO
from driftwalk.registry import create
from driftwalk.tolerance import Policy, Rule
from driftwalk_backends.demo import decoder
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model


@pytest.mark.parametrize("name", zoo.NAMES)
def test_honest_candidates_pass(name):
    model = open_model(zoo.build(name))
    candidates = ("torch:cpu:fp32,attn=eager", "torch:cpu:fp64", "torch:cpu:fp16")
    reports = driftwalk.verify_all(model, candidates, policy="calibrated", blame=True)
    for candidate, report in zip(candidates, reports, strict=True):
        assert report.ok, (candidate, report)
        assert report.root_cause is None
        assert all(layer.tolerance.k == YARDSTICKS for layer in report.layers)


def test_the_truth_is_float64_even_where_the_model_asks_for_float32():
    """Llama's RMSNorm and rotary angles are computed in float32, whatever the weights are."""
    module = zoo.build("llama")
    model = open_model(module)
    probe = make_probe(model)
    exact = create("truth", model).trace(probe)
    plain = create("torch:cpu:fp64", model).trace(probe)
    rounded = np.abs(exact["layer.2"] - plain["layer.2"]).max() / np.abs(exact["layer.2"]).max()
    assert 1e-9 < rounded < 1e-6, "plain float64 carries float32 noise; the truth does not"
    threads = create("truth,threads=1", model).trace(probe)
    assert np.abs(exact["layer.2"] - threads["layer.2"]).max() < 1e-13


def test_which_side_is_closer():
    report = driftwalk.verify(
        "demo:decoder", reference="torch:cpu:bf16", candidate="torch:cpu:fp32", policy="calibrated"
    )
    assert report.ok, "each side is as near to the truth as its own dtype has to be"
    assert {layer.truth.closer for layer in report.layers} == {"candidate"}


def test_closer_needs_a_difference_that_means_something():
    assert closer(1.0, 1.4) == "tie"
    assert closer(1.0, 0.5) == "candidate"
    assert closer(0.5, 1.0) == "reference"
    assert closer(0.0, 0.0) == "tie"


def test_an_exact_yardstick_leaves_room_for_a_few_roundoffs():
    model = open_model(zoo.build("llama"))
    probe = make_probe(model)
    known = calibrate(create("truth", model), create("torch:cpu:fp32", model), probe)
    assert known.noise("embed") == ZERO, "a lookup is exact"
    assert known.allowed("embed").l2 > 0
    state = known.truth.state("embed")
    off = state.array * (1 + 2.0**-24)
    assert known.error(driftwalk.State(state.point, off)).over(known.allowed("embed"))[0] < 1
    far = state.array * (1 + 2.0**-20)
    assert known.error(driftwalk.State(state.point, far)).over(known.allowed("embed"))[0] > 1


def test_rules_by_hand_come_first():
    rule = Rule("layer.*", driftwalk.Tolerance(10.0))
    policy = Policy("rules", (rule,), calibrated=True)
    twin = decoder()
    twin.transformer.h[2].mlp.c_proj.weight.data[7, 11] += 0.1
    report = driftwalk.verify("demo:decoder", candidate=twin, policy=policy)
    assert report.first_divergence.point.name == "norm"
    assert report.layer("layer.2").tolerance.k is None


def test_without_a_truth_the_dtype_table_decides_visibly():
    class NoDoubles(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            if x.dtype == torch.float64:
                raise RuntimeError("this kernel has no float64")
            for layer in self.layers:
                x = layer(x)
            return x

    module = NoDoubles()
    report = driftwalk.verify(module, candidate=copy.deepcopy(module), policy="calibrated")
    assert report.ok
    assert any("dtype table decided" in note for note in report.notes)
    assert all(layer.tolerance.k is None for layer in report.layers)


def test_a_calibration_is_stored_and_a_damaged_one_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))

    def run():
        report = driftwalk.verify("demo:decoder", candidate="torch:cpu:fp64", policy="calibrated")
        assert report.ok
        return any("was computed" in note for note in report.notes)

    assert run()
    assert not run(), "the second run finds it"
    numbers = list(tmp_path.glob("calibration/*/weights.safetensors"))
    truths = list(tmp_path.glob("truth/*/truth.safetensors"))
    assert len(numbers) == len(truths) == 2, "one for each side, which prove themselves apart"

    def damage(stored):
        data = bytearray(stored.read_bytes())
        data[-1] ^= 1
        stored.write_bytes(data)

    for stored in numbers:
        damage(stored)
        assert run(), "a flipped bit is noticed"
    for stored in truths:  # of the two, one is read
        damage(stored)
    assert run(), "in a truth as well"
    assert not run()
    for stored in tmp_path.glob("truth/*/truth.safetensors"):
        stored.parent.rename(tmp_path / stored.parent.name)
    assert run(), "what is gone is made anew"
    driftwalk.verify("demo:decoder", candidate="torch:cpu:fp64", policy="calibrated", cache=False)


def is_mapped(array):
    while array is not None and not isinstance(array, mmap):
        array = getattr(array, "base", None)
    return array is not None


def test_what_the_truth_gave_is_mapped_once_it_is_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration_cache, "SMALL", 0)  # what is small is read
    model = open_model("demo:decoder")
    probe = make_probe(model)
    with create("truth", model) as truth:
        trace = truth.trace(probe)
    truths = calibration_cache._Truths(["this question"])
    kept = truths.kept(trace, "evidence")
    assert kept.names == trace.names
    assert all(np.array_equal(kept[name], trace[name]) for name in trace.names)
    assert all(is_mapped(state.array) for state in kept)
    assert not any(is_mapped(state.array) for state in trace)
    first = trace.states[0]
    other = replace(trace, states=(replace(first, array=first.array + 1e-9), *trace.states[1:]))
    assert truths.kept(other, "evidence") is other, "never another truth than the one at hand"
    monkeypatch.setattr(calibration_cache, "write_tensors", _full)
    assert truths.kept(trace, "other evidence") is trace


def _full(*_: object) -> None:
    raise OSError("No space left on device")


def test_a_cold_run_calibrates_with_a_mapped_truth(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTWALK_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration_cache, "SMALL", 0)  # what is small is read
    seen = []

    def calibrated(*given):
        seen.append(calibrate(*given))
        return seen[-1]

    monkeypatch.setattr(witness, "calibrate", calibrated)
    assert driftwalk.verify("demo:decoder", candidate="emulated:bf16").ok
    assert len(seen) == 2
    assert all(is_mapped(state.array) for made in seen for state in made.truth)


def test_a_report_tells_of_its_own_calibration_only():
    candidates = ["torch:cpu:bf16", "torch:cpu:fp16"]
    reports = driftwalk.verify_all("demo:decoder", candidates, policy="calibrated", cache=False)
    for report, dtype in zip(reports, ("bf16", "fp16"), strict=True):
        told = [note for note in report.notes if note.startswith("Calibration for ")]
        assert [note.split()[2] for note in told] == [dtype, "fp32"]
