"""Temperatures, clocks, power, throttling and memory errors, wherever a machine tells them.

Linux tells them as files, NVIDIA's management library (NVML) through ctypes: it comes with the
driver, so nothing is installed. What a machine does not tell is left out; no answer of it can end a
check.
"""

from __future__ import annotations

import contextlib
import ctypes
from ctypes import byref, c_char, c_char_p, c_uint, c_ulonglong, c_void_p
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

SYS = Path("/sys")
LIBRARIES = ("libnvidia-ml.so.1", "libnvidia-ml.so", "nvml.dll")
THROTTLE: dict[int, str] = {
    0x2: "clocks set by an application",
    0x4: "power cap (software)",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake (hardware)",
    0x100: "display clocks",
}
"""Bits of the reasons why clocks are held down; 1 only says that the device is idle."""

_TEMPERATURE_GPU = 0
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_BOOT, _EVER = 0, 1


class Sensors:
    """What is read beside a result; nothing here may raise."""

    def values(self) -> dict[str, float]:
        """By name: degrees, MHz, W, counts."""
        return {}

    def throttled(self) -> tuple[str, ...]:
        """Why the clocks are held down at this moment."""
        return ()

    def names(self) -> dict[str, str]:
        """What tells this one device from others of its model."""
        return {}


class CpuSensors(Sensors):
    """Thermal zones, clocks, throttle counts and memory errors, as Linux tells them."""

    def __init__(self, root: Path = SYS) -> None:
        self._root = root
        self._throttles = self._counted()

    def values(self) -> dict[str, float]:
        readings: dict[str, float] = {}
        degrees = [n / 1000 for n in self._numbers("class/thermal/thermal_zone*/temp")]
        hardware = [n / 1000 for n in self._numbers("class/hwmon/hwmon*/temp*_input")]
        if usual := [n for n in (*degrees, *hardware) if -50 < n < 200]:
            readings["temperature"] = max(usual)
        if clocks := self._numbers("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"):
            readings["clock"] = fmean(clocks) / 1000
        for name, file in (("ecc corrected", "ce_count"), ("ecc uncorrected", "ue_count")):
            if counts := self._numbers(f"devices/system/edac/mc/mc*/{file}"):
                readings[name] = float(sum(counts))
        return readings

    def throttled(self) -> tuple[str, ...]:
        return ("temperature (counted by the cores)",) if self._counted() > self._throttles else ()

    def names(self) -> dict[str, str]:
        file = self._root / "devices/system/cpu/cpu0/cpufreq/scaling_governor"
        with contextlib.suppress(OSError, ValueError):
            if governor := file.read_text().strip()[:60]:
                return {"governor": governor}
        return {}

    def _counted(self) -> float:
        pattern = "devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"
        return sum(self._numbers(pattern))

    def _numbers(self, pattern: str) -> list[float]:
        numbers = []
        for file in sorted(self._root.glob(pattern)):
            with contextlib.suppress(OSError, ValueError):
                numbers.append(float(file.read_text().strip()))
        return numbers


class TorchSensors(Sensors):
    """A GPU whose library is not at hand: torch can ask some of it, if pynvml is there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def values(self) -> dict[str, float]:
        readings = {}
        asked = {
            "temperature": (torch.cuda.temperature, 1.0),
            "clock": (torch.cuda.clock_rate, 1.0),
            "power": (torch.cuda.power_draw, 1000.0),
        }
        for name, (ask, unit) in asked.items():
            with contextlib.suppress(Exception):  # pynvml is missing, or the driver says no
                readings[name] = ask(self._device) / unit
        return readings


class Nvml(Sensors):
    """A GPU as NVIDIA's library sees it."""

    def __init__(self, library: Any, handle: c_void_p) -> None:
        self._library = library
        self._handle = handle

    def values(self) -> dict[str, float]:
        ecc = "nvmlDeviceGetTotalEccErrors"
        readings: dict[str, float | None] = {
            "temperature": self._number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            "clock": self._number("nvmlDeviceGetClockInfo", _CLOCK_SM),
            "memory clock": self._number("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            "power": self._number("nvmlDeviceGetPowerUsage"),
            "ecc corrected": self._number(ecc, _CORRECTED, _SINCE_BOOT, kind=c_ulonglong),
            "ecc uncorrected": self._number(ecc, _UNCORRECTED, _SINCE_BOOT, kind=c_ulonglong),
            "ecc corrected, ever": self._number(ecc, _CORRECTED, _EVER, kind=c_ulonglong),
            "ecc uncorrected, ever": self._number(ecc, _UNCORRECTED, _EVER, kind=c_ulonglong),
        }
        if readings["power"] is not None:
            readings["power"] /= 1000  # it tells milliwatts
        use = (c_uint * 2)()  # of the GPU, of its memory
        if self._asked("nvmlDeviceGetUtilizationRates", byref(use)):
            readings["use"] = float(use[0])
        rows = [c_uint() for _ in range(4)]  # of memory, put out of use
        if self._asked("nvmlDeviceGetRemappedRows", *map(byref, rows)):
            corrected, uncorrected, pending, failed = (float(number.value) for number in rows)
            readings["rows remapped"] = corrected + uncorrected
            readings |= {"remapping pending": pending, "remapping failed": failed}
        return {name: value for name, value in readings.items() if value is not None}

    def throttled(self) -> tuple[str, ...]:
        for word in ("Event", "Throttle"):  # its name in newer drivers, and in older ones
            reasons = c_ulonglong()
            if self._asked(f"nvmlDeviceGetCurrentClocks{word}Reasons", byref(reasons)):
                return tuple(text for bit, text in THROTTLE.items() if reasons.value & bit)
        return ()

    def names(self) -> dict[str, str]:
        names = {
            "uuid": self._text("nvmlDeviceGetUUID", self._handle),
            "serial": self._text("nvmlDeviceGetSerial", self._handle),
            "vbios": self._text("nvmlDeviceGetVbiosVersion", self._handle),
            "driver": self._text("nvmlSystemGetDriverVersion"),
        }
        return {key: text for key, text in names.items() if text}

    def _asked(self, name: str, *arguments: Any) -> bool:
        return _call(self._library, name, self._handle, *arguments)

    def _number(
        self, name: str, *which: int, kind: type[c_uint | c_ulonglong] = c_uint
    ) -> float | None:
        answer = kind()
        asked = self._asked(name, *map(c_uint, which), byref(answer))
        return float(answer.value) if asked else None

    def _text(self, name: str, *device: c_void_p) -> str:
        buffer = (c_char * 96)()
        asked = _call(self._library, name, *device, buffer, c_uint(len(buffer)))
        return buffer.value.decode("utf-8", "replace") if asked else ""


def find_nvml(uuid: str = "", bus: str = "", path: str = "") -> Nvml | None:
    """The device of that UUID or PCI bus id; None where there is no library, or no such device."""
    library = _library(path)
    if library is None:
        return None
    full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    by_uuid, by_bus = "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId_v2"
    for given, name, key in ((uuid, by_uuid, full), (bus, by_bus, bus)):
        handle = c_void_p()
        if given and _call(library, name, c_char_p(key.encode()), byref(handle)):
            return Nvml(library, handle)
    return None


@cache
def _library(path: str = "") -> Any:
    """The library, started; it stays so until the process ends."""
    for name in (path,) if path else LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if _call(library, "nvmlInit_v2"):
            return library
    return None


def _call(library: Any, name: str, *arguments: Any) -> bool:
    """Whether the library has such a function, and it said that all went well."""
    function = getattr(library, name, None)
    return function is not None and function(*arguments) == 0


def sensors_of(device: torch.device) -> Sensors:
    """The sensors of a device, by the best way there is to them."""
    if device.type != "cuda":
        return CpuSensors()
    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", "") or "")
    return find_nvml(uuid, _bus(properties)) or TorchSensors(device)


def _bus(properties: object) -> str:
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if any(not isinstance(number, int) for number in numbers):
        return ""
    domain, bus, device = (int(number or 0) for number in numbers)
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"
