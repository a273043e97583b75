"""The checks themselves, on this CPU: faults put in are found and named, clean runs are clean."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import driftwalk
from driftwalk.errors import DriftwalkError, UsageError
from driftwalk.tasks.hardware.repeats import Findings
from driftwalk.tasks.hardware.result import HardwareReport
from driftwalk.tasks.hardware.work import LEVELS, Log, Work
from driftwalk_backends.hardware.inject import Injection
from driftwalk_backends.hardware.station import Station

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "traces" / "hwcheck-aarch64.trace"
STATES = ("embed", "layer.0", "layer.1", "layer.2", "norm", "logits")


def work_on(station: Station, tiny: Any) -> Work:
    model, probe = tiny
    return Work(station, LEVELS["quick"], Log(), model, probe, ("fp32",))


def test_two_hundred_flips_are_each_found_and_named(tiny: Any) -> None:
    drawn = random.Random(0)
    model, probe = tiny
    backends = {dtype: Station("cpu").repeater(model, dtype) for dtype in ("fp32", "fp64")}
    backends["bf16"] = Station("cpu").repeater(model, "bf16")
    made = {dtype: backend.states(probe) for dtype, backend in backends.items()}
    missed = []
    for trial in range(200):
        dtype = "bf16" if trial % 20 == 0 else drawn.choice(("fp32", "fp64"))
        sizes = made[dtype]
        flip = Injection(
            state=(state := drawn.choice(STATES)),
            element=drawn.randrange(sizes[state].numel()),
            bit=drawn.randrange(8 * sizes[state].element_size()),
            repeat=drawn.randrange(3),
        )
        work = work_on(Station("cpu", flip), tiny)
        tally, findings = work.tally("repeat", "model"), Findings("repeat")
        run = lambda n, w=work, b=backends[dtype]: w.station.model_states(b, probe, "model", n)  # noqa: E731
        work.repeat(findings, tally, 3, run)
        told = [
            (m.state, m.repeat, m.differing, m.flips[0].element, m.flips[0].bits)
            for m in findings.mismatches
        ]
        if told != [(state, flip.repeat, 1, flip.element, (flip.bit,))]:
            missed.append((flip, told))
        assert findings.summed_up("", 0.0).verdict == "fault"
    assert missed == []


def test_five_hundred_clean_repeats_raise_no_alarm(tiny: Any) -> None:
    model, probe = tiny
    station = Station("cpu")
    work = work_on(station, tiny)
    backend = station.repeater(model, "fp32")
    tally, findings = work.tally("repeat", "model"), Findings("repeat")
    work.repeat(findings, tally, 500, lambda n: station.model_states(backend, probe, "model", n))
    assert findings.mismatches == []
    assert [(case.repeats, case.verdict) for case in findings.cases] == [(500, "no fault found")]


def test_a_clean_machine_has_no_fault(clean: HardwareReport) -> None:
    assert clean.verdict == "no fault found", clean.reason
    assert clean.exit_code == 0
    assert clean.mismatches == ()
    (device,) = clean.devices
    assert [check.name for check in device.checks] == ["repeat", "units", "load", "invariance"]
    assert all(check.verdict == "no fault found" for check in device.checks)
    assert {done.check for done in device.rounds} == {"repeat", "units", "load"}
    assert [reading.when for reading in device.readings][::-1][-1] == "idle"
    assert all(len(digest) == 32 for digest in device.digests.values())
    assert "healthy" not in clean.reason


def test_units_are_held_against_float64(clean: HardwareReport) -> None:
    units = clean.devices[0].check("units")
    assert units is not None
    kinds = {case.name.split()[0] for case in units.cases}
    every = {"matmul", "attention", "reduction", "normalisation", "activation", "copy", "memory"}
    assert kinds == every
    checked = [case.worst for case in units.cases if case.worst is not None]
    assert len(checked) > 15
    assert max(checked) < 1
    assert max(checked) > 1e-4, "the bounds are loose beyond use"


def test_an_injected_fault_is_told_loudly(faulty: HardwareReport) -> None:
    assert faulty.verdict == "fault"
    assert faulty.exit_code == 1
    assert faulty.reason.startswith("A FAULT WAS INJECTED (state=layer.2")
    (found,) = faulty.mismatches
    assert (found.state, found.repeat, found.differing) == ("layer.2", 1, 1)
    assert "layer.2 in model fp32, repeat 1: element 5, bit 3" in faulty.reason


def test_the_variable_reaches_another_process(fast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTWALK_HWCHECK_INJECT", "state=norm,element=1,bit=7")
    found = driftwalk.hwcheck(checks=["repeat"], dtypes=["fp32"])
    # Wrong in every repeat: the device agrees with itself, and only others can tell.
    assert found.verdict == "no fault found"
    assert found.injected
    clean = driftwalk.hwcheck(checks=["repeat"], dtypes=["fp32"], inject="")
    assert clean.injected == ""
    changed = {
        key.split(" | ")[-1]
        for key, digest in found.devices[0].digests.items()
        if clean.devices[0].digests[key] != digest
    }
    assert changed == {"norm", "logits"}


def test_a_unit_that_is_always_wrong_is_found_by_its_value(fast: None) -> None:
    found = driftwalk.hwcheck(
        checks=["units"], dtypes=["fp32"], inject="case=reduction*walking,element=3,bit=21"
    )
    wrong = {m.case for m in found.mismatches}
    assert wrong == {"reduction fp32 129x63 walking"}
    (first,) = found.mismatches
    assert first.flips[0].element == 3
    assert "float64" in first.note


def test_a_wrong_copy_is_named_by_place_and_bit(fast: None) -> None:
    found = driftwalk.hwcheck(
        checks=["units"], dtypes=["fp32"], inject="state=chunk.1,element=77,bit=63"
    )
    assert {(m.case.split()[0], m.state) for m in found.mismatches} == {("memory", "chunk.1")}
    assert {m.flips[0].bits for m in found.mismatches} == {(63,)}
    assert {m.flips[0].element for m in found.mismatches} == {77}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_a_bad_core_is_named(fast: None) -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    now_and_then = f"core={core},state=layer.1,element=9,bit=30,repeat=1"
    found = driftwalk.hwcheck(checks=["repeat"], dtypes=["fp32"], inject=now_and_then)
    assert {m.core for m in found.mismatches} == {core}
    always = f"core={core},state=layer.1,element=9,bit=30"
    found = driftwalk.hwcheck(checks=["repeat"], dtypes=["fp32"], inject=always)
    assert os.sched_getaffinity(0) == before
    if len(before) == 1:
        pytest.skip("one core has nothing to be compared with")
    assert found.verdict == "fault"
    (mismatch,) = found.mismatches
    assert mismatch.state == "layer.1"
    assert mismatch.flips[0].element == 9
    words = "cannot be said" if len(before) == 2 else "most cores"
    assert words in mismatch.note


def test_hot_must_be_what_was_cold(fast: None) -> None:
    found = driftwalk.hwcheck(
        checks=["load"], dtypes=["fp32"], inject="case=*cold and hot,repeat=2,element=1,bit=1"
    )
    assert found.verdict == "fault"
    assert "Hot is not what was cold" in found.reason


RUNS = itertools.count(1)
"""What a model remembers of a run itself is put back after it."""


class Shuffled(nn.Module):
    """A model with an operation of which torch says that it is not deterministic."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        places = torch.tensor([0, 0])
        return x.clone().put_(places, torch.tensor([1.0, float(next(RUNS))]))


def test_what_is_random_by_design_is_not_blamed(fast: None) -> None:
    from driftwalk.tasks.hardware import check

    found = check(
        model=Shuffled(), probe={"input_ids": [[1, 2, 3]]}, checks=["repeat"], dtypes=["fp32"]
    )
    (device,) = found.devices
    case = device.checks[0].cases[0]
    assert case.verdict == "not comparable"
    assert "put_" in case.note


def test_golden_bits_and_golden_noise(fast: None, tmp_path: Path) -> None:
    from driftwalk.tasks.hardware.golden import record

    golden = record().save(tmp_path / "golden.trace")
    found = driftwalk.hwcheck(golden=golden, checks=["golden"])
    assert found.verdict == "no fault found"
    assert "are the golden bits" in found.devices[0].checks[0].sentence
    lowest = "state=layer.1,element=7,bit=0"
    found = driftwalk.hwcheck(golden=golden, checks=["golden"], inject=lowest)
    assert found.verdict == "fault"
    assert found.mismatches[0].flips[0].bits == (0,)
    # Elsewhere, the lowest bit is noise, and a bit of the exponent is not.
    manifest = golden / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"hw torch": "', '"hw torch": "another '))
    found = driftwalk.hwcheck(golden=golden, checks=["golden"], inject=lowest)
    assert found.verdict == "no fault found"
    assert "torch another" in found.devices[0].checks[0].sentence
    high = "state=layer.1,element=7,bit=24"
    found = driftwalk.hwcheck(golden=golden, checks=["golden"], inject=high)
    assert found.verdict == "fault"
    assert [m.state for m in found.mismatches] == ["layer.1"]
    assert "as far from float64 as its dtype allows" in found.reason


def test_the_golden_trace_of_another_machine() -> None:
    """Recorded on an aarch64 CPU: bit by bit on one like it, within tolerance anywhere else."""
    found = driftwalk.hwcheck(golden=GOLDEN, checks=["golden"], inject="")
    assert found.verdict == "no fault found", found.reason
    size = sum(file.stat().st_size for file in GOLDEN.iterdir())
    assert size < 200_000


def test_a_golden_trace_of_other_weights_is_not_comparable(fast: None, tmp_path: Path) -> None:
    from driftwalk.tasks.hardware.golden import record

    other = record().save(tmp_path / "other.trace")
    manifest = other / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"fingerprint": "', '"fingerprint": "00'))
    found = driftwalk.hwcheck(golden=other, checks=["golden", "repeat"], dtypes=["fp32"])
    assert [c.verdict for c in found.devices[0].checks] == ["no fault found", "not comparable"]
    assert (found.verdict, found.exit_code) == ("not comparable", 3)
    assert "recorded from 'hwcheck:decoder-64x4' 00" in found.reason


def test_bits_of_another_build_are_not_asked_for(fast: None, tmp_path: Path) -> None:
    """Builds of one version of torch sum in other orders: that is no fault of the machine."""
    from driftwalk.tasks.hardware.golden import record
    from driftwalk_backends.hardware.station import torch_build

    own = record().save(tmp_path / "own.trace")
    manifest = own / "manifest.json"
    found = driftwalk.hwcheck(golden=own, checks=["golden"], dtypes=["fp32"])
    assert "same libraries" in found.devices[0].checks[0].sentence
    assert torch_build() in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(torch_build(), "another"))
    found = driftwalk.hwcheck(golden=own, checks=["golden"], dtypes=["fp32"])
    assert found.verdict == "no fault found", found.reason
    assert f"build another there, {torch_build()} here" in found.devices[0].checks[0].sentence


def test_bad_words_are_refused_at_once() -> None:
    for options, said in (
        ({"level": "quik"}, "quick"),
        ({"checks": ["repeats"]}, "repeat"),
        ({"device": "tpu"}, "cuda:N"),
        ({"minutes": 3.0}, "soak"),
        ({"golden": "nowhere.trace"}, "nowhere.trace"),
        ({"inject": "bits=3"}, "bits"),
    ):
        with pytest.raises(UsageError, match=said):
            driftwalk.hwcheck(**options)  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(DriftwalkError, match="cannot be checked here"):
            driftwalk.hwcheck("cuda")


def test_the_built_in_model_is_the_same_everywhere() -> None:
    """What the golden traces of all machines were made from; a change here makes them useless."""
    from driftwalk_backends.hardware.model import built_in

    known = driftwalk.Trace.load(GOLDEN).model["fingerprint"]
    assert built_in().fingerprint == known
