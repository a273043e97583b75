"""CPUs by the names that people know."""

from __future__ import annotations

import platform

import pytest

from driftwalk import cpu
from driftwalk.environment import environment

ARM = """processor\t: {at}
BogoMIPS\t: 243.75
model name\t: ARMv8 Processor rev 1 (v8l)
CPU implementer\t: {implementer}
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: {part}
CPU revision\t: 1
"""
X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7B13   64-Core Processor
cpu MHz\t\t: 2449.998

processor\t: 1
model name\t: AMD EPYC 7B13 64-Core Processor
"""
POWER = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 2300.000000MHz\n"


def of(*cores: tuple[str, str]) -> list[str]:
    blocks = [ARM.format(at=at, implementer=i, part=p) for at, (i, p) in enumerate(cores)]
    return cpu.cores_in("\n".join(blocks))


def test_names_in_cpuinfo() -> None:
    assert of(("0x41", "0xd0c"), ("0x41", "0xd0c")) == ["Neoverse-N1 r3p1"] * 2
    assert of(("0x41", "0xd05"), ("0x41", "0xd0b")) == ["Cortex-A55 r3p1", "Cortex-A76 r3p1"]
    assert of(("0x61", "0x023")) == ["Apple M1 r3p1"]
    assert cpu.cores_in(X86) == ["AMD EPYC 7B13 64-Core Processor"]
    assert cpu.cores_in(POWER) == ["POWER9, altivec supported"]


def test_a_core_that_no_table_knows_keeps_its_numbers() -> None:
    assert of(("0x41", "0xfff")) == ["ARM 0x41 0xfff r3p1"]
    assert of(("0x99", "0xd0c")) == ["ARM 0x99 0xd0c r3p1"]
    assert of(("0x41", "here")) == ["ARM 0x41 8 0x3 here 1"]


@pytest.mark.parametrize("text", ["", "\n\n", "processor : 0\n", "CPU part : 0xd0c\n"])
def test_a_file_that_names_nothing(text: str) -> None:
    assert cpu.cores_in(text) == []


@pytest.fixture
def fresh():
    for function in (cpu.cpu_name, cpu.cpu_model):
        function.cache_clear()
    yield
    for function in (cpu.cpu_name, cpu.cpu_model):
        function.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_the_environment_has_it_and_lacks_revisions(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = [ARM.format(at=at, implementer="0x41", part=p) for at, p in enumerate(("0xd05",) * 2)]
    file = tmp_path / "cpuinfo"
    file.write_text("\n".join(cores))
    monkeypatch.setattr(cpu, "_CPUINFO", str(file))
    monkeypatch.setattr(cpu.sys, "platform", "linux")
    assert environment()["cpu"] == "Cortex-A55"
    assert cpu.cpu_model() == "Cortex-A55 r3p1"


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("system", ["linux", "freebsd"])
def test_where_nothing_says_it(tmp_path, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(cpu, "_CPUINFO", str(tmp_path / "missing"))
    monkeypatch.setattr(cpu.sys, "platform", system)
    assert cpu.cpu_name() == (platform.processor() or platform.machine())


def test_what_older_versions_wrote_down_is_the_same_core() -> None:
    assert cpu.current_name("ARM 0x41 8 0x3 0xd0c 1") == "Neoverse-N1 r3p1"
    for name in ("AMD EPYC 7B13 64-Core Processor", "ARM 0x41", "ARM", ""):
        assert cpu.current_name(name) == name
