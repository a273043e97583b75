"""Temperatures, clocks, power, throttling and memory errors, wherever a machine tells them."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from statistics import fmean
from typing import Protocol

import torch

from . import nvml

SYS = Path("/sys")


class Sensors(Protocol):
    """What is read beside a result; nothing here may raise."""

    def values(self) -> dict[str, float]: ...

    def throttled(self) -> tuple[str, ...]: ...

    def names(self) -> dict[str, str]: ...


class CpuSensors:
    """Linux tells thermal zones, clocks, throttle counts and memory errors as files."""

    def __init__(self, root: Path = SYS) -> None:
        self._root = root
        self._throttles = self._counted()

    def values(self) -> dict[str, float]:
        found: dict[str, float] = {}
        degrees = [n / 1000 for n in self._numbers("class/thermal/thermal_zone*/temp")]
        hardware = [n / 1000 for n in self._numbers("class/hwmon/hwmon*/temp*_input")]
        if usual := [n for n in (*degrees, *hardware) if -50 < n < 200]:
            found["temperature"] = max(usual)
        if clocks := self._numbers("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"):
            found["clock"] = fmean(clocks) / 1000
        for name, file in (("ecc corrected", "ce_count"), ("ecc uncorrected", "ue_count")):
            if counts := self._numbers(f"devices/system/edac/mc/mc*/{file}"):
                found[name] = float(sum(counts))
        return found

    def throttled(self) -> tuple[str, ...]:
        return ("temperature (counted by the cores)",) if self._counted() > self._throttles else ()

    def names(self) -> dict[str, str]:
        governor = self._text("devices/system/cpu/cpu0/cpufreq/scaling_governor")
        return {"governor": governor} if governor else {}

    def _counted(self) -> float:
        pattern = "devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"
        return sum(self._numbers(pattern))

    def _numbers(self, pattern: str) -> list[float]:
        found = []
        for file in sorted(self._root.glob(pattern)):
            with contextlib.suppress(OSError, ValueError):
                found.append(float(file.read_text().strip()))
        return found

    def _text(self, name: str) -> str:
        try:
            return (self._root / name).read_text().strip()[:60]
        except (OSError, ValueError):
            return ""


class TorchSensors:
    """A GPU whose library is not at hand: torch can ask some of it, if pynvml is there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def values(self) -> dict[str, float]:
        found = {}
        asked = {
            "temperature": (torch.cuda.temperature, 1.0),
            "clock": (torch.cuda.clock_rate, 1.0),
            "power": (torch.cuda.power_draw, 1000.0),
        }
        for name, (ask, unit) in asked.items():
            with contextlib.suppress(Exception):  # pynvml is missing, or the driver says no
                found[name] = ask(self._device) / unit
        return found

    def throttled(self) -> tuple[str, ...]:
        return ()

    def names(self) -> dict[str, str]:
        return {}


def sensors_of(device: torch.device) -> Sensors:
    """The sensors of a device, by the best way there is to them."""
    if device.type != "cuda":
        return CpuSensors()
    told = torch.cuda.get_device_properties(device)
    found = nvml.find(uuid=str(getattr(told, "uuid", "") or ""), bus=_bus(told))
    return found if found is not None else TorchSensors(device)


def _bus(told: object) -> str:
    numbers = [getattr(told, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if any(not isinstance(number, int) for number in numbers):
        return ""
    domain, bus, device = (int(number or 0) for number in numbers)
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"


def cpu_model() -> str:
    """What kind of CPU this is, as Linux tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        import platform

        return platform.processor() or platform.machine()
    for key in ("model name", "Hardware", "cpu model"):
        if found := re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE):
            return found.group(1).strip()
    keys = ("implementer", "architecture", "variant", "part", "revision")  # of an ARM core
    parts = [re.search(rf"^CPU {key}\s*:\s*(\S+)", text, re.MULTILINE) for key in keys]
    return "ARM " + " ".join(found.group(1) for found in parts if found)
