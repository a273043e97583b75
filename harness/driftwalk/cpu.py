"""The CPU of this machine by the name that people know it by."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import platform
import re
import sys
from functools import cache

_CPUINFO = "/proc/cpuinfo"
_MOST_READ = 16_384
"""Bytes: some fifty ARM cores, or the first few of an x86. Linux writes no more than is read."""
_NAMES = ("model name", "Hardware", "cpu model", "uarch", "cpu")
"""The lines that name a CPU, on x86, old ARM, MIPS, RISC-V and POWER."""
_ARM_KEYS = ("implementer", "architecture", "variant", "part", "revision")

_ARM = {
    0x41: "d03 Cortex-A53, d04 Cortex-A35, d05 Cortex-A55, d07 Cortex-A57, d08 Cortex-A72, "
    "d09 Cortex-A73, d0a Cortex-A75, d0b Cortex-A76, d0c Neoverse-N1, d0d Cortex-A77, "
    "d40 Neoverse-V1, d41 Cortex-A78, d42 Cortex-A78AE, d44 Cortex-X1, d46 Cortex-A510, "
    "d47 Cortex-A710, d48 Cortex-X2, d49 Neoverse-N2, d4a Neoverse-E1, d4b Cortex-A78C, "
    "d4d Cortex-A715, d4e Cortex-X3, d4f Neoverse-V2, d80 Cortex-A520, d81 Cortex-A720, "
    "d82 Cortex-X4, d84 Neoverse-V3, d85 Cortex-X925, d87 Cortex-A725, d8e Neoverse-N3, "
    "c07 Cortex-A7, c09 Cortex-A9, c0f Cortex-A15, b76 ARM1176",
    0x42: "516 ThunderX2",
    0x43: "0a1 ThunderX, 0af ThunderX2, 0b8 ThunderX3",
    0x46: "001 A64FX",
    0x48: "d01 Kunpeng-920",
    0x4E: "003 Denver 2, 004 Carmel, 010 Olympus",
    0x51: "001 Oryon, 800 Kryo 2xx Gold, 801 Kryo 2xx Silver, 802 Kryo 3xx Gold, "
    "803 Kryo 3xx Silver, 804 Kryo 4xx Gold, 805 Kryo 4xx Silver, c00 Falkor",
    0x61: "022 Apple M1, 023 Apple M1, 024 Apple M1 Pro, 025 Apple M1 Pro, 028 Apple M1 Max, "
    "029 Apple M1 Max, 032 Apple M2, 033 Apple M2, 034 Apple M2 Pro, 035 Apple M2 Pro, "
    "038 Apple M2 Max, 039 Apple M2 Max",
    0x6D: "d49 Azure Cobalt 100",
    0xC0: "ac3 Ampere-1, ac4 Ampere-1a",
}
"""Part numbers by implementer, as the ID registers of the cores have them."""


@cache
def cpu_name() -> str:
    """`Neoverse-N1`, `AMD EPYC 7B13 64-Core Processor`, `Apple M2`; at least the architecture."""
    return ", ".join(dict.fromkeys(re.sub(r" r\d+p\d+\Z", "", core) for core in _cores()))


@cache
def cpu_model() -> str:
    """The same with the revision of an ARM core, `Neoverse-N1 r3p1`: what may decide bits."""
    return ", ".join(dict.fromkeys(_cores()))


def current_name(model: str) -> str:
    """A model as `cpu_model` gives it, of one that was written down as `ARM 0x41 8 0x3 0xd0c 1`."""
    words = model.split(" ")
    if words[0] != "ARM" or len(words) != 1 + len(_ARM_KEYS):
        return model
    return _arm_core(dict(zip(_ARM_KEYS, words[1:], strict=True)))


def _cores() -> list[str]:
    """Each kind of core, in the order in which the system lists them."""
    return (
        _of_windows()
        or _of_macos()
        or _of_linux()
        or [platform.processor() or platform.machine() or "unknown"]
    )


def _of_linux() -> list[str]:
    try:
        with open(_CPUINFO, encoding="utf-8", errors="replace") as file:
            return cores_in(file.read(_MOST_READ))
    except OSError:
        return []


def cores_in(cpuinfo: str) -> list[str]:
    """What a text as in /proc/cpuinfo names; `ARMv8 Processor rev 1` is no name of a core."""
    cores = []
    for block in re.split(r"\n\s*\n", cpuinfo):
        ids = dict(re.findall(r"^CPU (\w+)[ \t]*:[ \t]*(\S+)", block, re.MULTILINE))
        if "implementer" in ids and "part" in ids:
            cores.append(_arm_core(ids))
    if cores:
        return cores
    for key in _NAMES:
        if found := re.search(rf"^{key}[ \t]*:[ \t]*(\S.*)$", cpuinfo, re.MULTILINE):
            return [" ".join(found[1].split())]
    return []


def _arm_core(ids: dict[str, str]) -> str:
    """One core by its numbers; those that no table knows are given as they are."""
    try:
        parts = _ARM.get(int(ids["implementer"], 16), "").split(", ")
        wanted = f"{int(ids['part'], 16):03x} "
        revision = f"r{int(ids['variant'], 16)}p{int(ids['revision'])}"
    except (KeyError, ValueError):
        return "ARM " + " ".join(ids[key] for key in _ARM_KEYS if key in ids)
    name = next((one.removeprefix(wanted) for one in parts if one.startswith(wanted)), "")
    return f"{name or 'ARM ' + ids['implementer'] + ' ' + ids['part']} {revision}"


def _of_macos() -> list[str]:
    named = b""
    if sys.platform == "darwin":
        text, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
        wanted = b"machdep.cpu.brand_string", text, ctypes.byref(size), None, ctypes.c_size_t(0)
        with contextlib.suppress(OSError, AttributeError):
            failed = ctypes.CDLL(ctypes.util.find_library("c")).sysctlbyname(*wanted)
            named = b"" if failed else text.value
    return [named.decode(errors="replace").strip()] if named else []


def _of_windows() -> list[str]:
    named = ""
    if sys.platform == "win32":
        import winreg

        place = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with (
            contextlib.suppress(OSError),
            winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, place) as key,
        ):
            named = str(winreg.QueryValueEx(key, "ProcessorNameString")[0])
    return [named.strip()] if named else []
