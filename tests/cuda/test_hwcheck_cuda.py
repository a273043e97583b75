"""Hardware checks on a real GPU; `python -m pytest -m cuda tests/cuda/test_hwcheck_cuda.py`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import driftwalk

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
GOLDEN = Path(__file__).resolve().parents[1] / "data" / "traces" / "hwcheck-aarch64.trace"


@pytest.fixture(scope="module")
def quick() -> Any:
    return driftwalk.hwcheck("cuda", "quick", golden=GOLDEN, inject="")


def test_quick_finds_no_fault(quick: Any) -> None:
    assert quick.verdict == "no fault found", quick.reason
    (device,) = quick.devices
    every = ["repeat", "units", "load", "golden", "invariance"]
    assert [check.name for check in device.checks] == every
    assert [check.verdict for check in device.checks] == ["no fault found"] * 5


def test_every_dtype_repeats_bit_by_bit(quick: Any) -> None:
    repeat = quick.devices[0].check("repeat")
    names = {case.name for case in repeat.cases}
    assert {"model fp64", "model fp32", "model fp16"} <= names
    if torch.cuda.get_device_capability() >= (8, 0):
        assert {"model tf32", "model bf16"} <= names
    assert all(case.verdict == "no fault found" and case.digest for case in repeat.cases)


def test_units_run_and_keep_within_their_bounds(quick: Any) -> None:
    units = quick.devices[0].check("units")
    ran = [case for case in units.cases if case.repeats]
    left = [(case.name, case.note) for case in units.cases if not case.repeats]
    assert not left, left
    worst = max(case.worst for case in ran if case.worst is not None)
    assert 0 < worst < 1
    if torch.cuda.get_device_capability() >= (8, 9):
        assert any(case.name.startswith("matmul fp8") for case in ran)


def test_sensors_are_read_beside(quick: Any) -> None:
    readings = quick.devices[0].readings
    assert readings[0].when == "idle"
    values = readings[-1].values
    assert 10 < values["temperature"] < 110
    assert values["clock"] > 100
    assert 1 < values["power"] < 3000
    assert quick.devices[0].details["driver"]


def test_a_golden_trace_of_a_cpu_is_within_tolerance(quick: Any) -> None:
    golden = quick.devices[0].check("golden")
    assert "Within the calibrated tolerance" in golden.sentence
    assert "device cpu there, cuda here" in golden.sentence


def test_digests_are_the_same_on_host_and_device() -> None:
    from driftwalk_backends.hardware.digest import as_text, digest
    from driftwalk_backends.hardware.patterns import PATTERNS, raw, values

    host, device = torch.device("cpu"), torch.device("cuda", 0)
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)
    for dtype in dtypes:
        for pattern in PATTERNS:
            both = [values(pattern, (333, 77), dtype, where, 5) for where in (host, device)]
            assert len(set(as_text([digest(tensor) for tensor in both]))) == 1, (dtype, pattern)
    large = [raw(70_000_000, "random", where, 9) for where in (host, device)]
    assert len(set(as_text([digest(tensor) for tensor in large]))) == 1


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_flips_on_the_device_are_named(dtype: str) -> None:
    from driftwalk.tasks.hardware.repeats import Findings
    from driftwalk.tasks.hardware.work import LEVELS, Log, Work
    from driftwalk_backends.hardware.inject import Injection
    from driftwalk_backends.hardware.station import Station

    drawn = random.Random(dtype)
    model, probe = Station("cuda").built_in(small=True)
    backend = Station("cuda").repeater(model, dtype)
    sizes = backend.states(probe)
    for _ in range(20):
        state = drawn.choice(list(sizes))
        flip = Injection(
            state,
            drawn.randrange(sizes[state].numel()),
            drawn.randrange(8 * sizes[state].element_size()),
            drawn.randrange(3),
        )
        station = Station("cuda", flip)
        work = Work(station, LEVELS["quick"], Log(), model, probe, (dtype,))
        tally, findings = work.tally("repeat", "model"), Findings("repeat")

        def run(repeat: int, station: Any = station) -> Any:
            return station.model_states(backend, probe, "model", repeat)

        work.repeat(findings, tally, 3, run)
        (found,) = findings.mismatches
        assert (found.state, found.repeat, found.differing) == (state, flip.repeat, 1)
        assert (found.flips[0].element, found.flips[0].bits) == (flip.element, (flip.bit,))


def test_a_golden_trace_of_this_gpu_is_bit_exact(tmp_path: Path) -> None:
    from driftwalk.tasks.hardware.golden import record

    golden = record("cuda").save(tmp_path / "golden.trace")
    found = driftwalk.hwcheck("cuda", golden=golden, checks=["golden"], inject="")
    assert "are the golden bits" in found.devices[0].checks[0].sentence
    wrong = "state=layer.1,element=7,bit=0"
    found = driftwalk.hwcheck("cuda", golden=golden, checks=["golden"], inject=wrong)
    assert found.verdict == "fault"
    assert found.mismatches[0].flips[0].bits == (0,)


def test_all_devices_of_the_machine(quick: Any) -> None:
    found = driftwalk.hwcheck("all", checks=["repeat", "devices"], dtypes=["fp32"], inject="")
    assert found.verdict == "no fault found", found.reason
    assert len(found.devices) == torch.cuda.device_count()
    assert (found.between is not None) == (len(found.devices) > 1)
