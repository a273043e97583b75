"""NVIDIA's management library through ctypes: it comes with the driver, so nothing is installed.

What a driver or a device does not tell is left out; no answer of it can end a check.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char, c_char_p, c_uint, c_ulonglong, c_void_p
from functools import cache
from typing import Any

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


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class Nvml:
    """One device, as the library sees it."""

    def __init__(self, library: Any, handle: c_void_p) -> None:
        self._library = library
        self._handle = handle

    def values(self) -> dict[str, float]:
        """Everything that is told, by name: degrees, MHz, W, counts."""
        found: dict[str, float | None] = {
            "temperature": self._number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            "clock": self._number("nvmlDeviceGetClockInfo", _CLOCK_SM),
            "memory clock": self._number("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            "power": self._number("nvmlDeviceGetPowerUsage"),
            "ecc corrected": self._errors(_CORRECTED, _SINCE_BOOT),
            "ecc uncorrected": self._errors(_UNCORRECTED, _SINCE_BOOT),
            "ecc corrected, ever": self._errors(_CORRECTED, _EVER),
            "ecc uncorrected, ever": self._errors(_UNCORRECTED, _EVER),
        }
        if found["power"] is not None:
            found["power"] /= 1000  # it tells milliwatts
        used = _Utilisation()
        if self._asked("nvmlDeviceGetUtilizationRates", byref(used)):
            found["use"] = float(used.gpu)
        found |= self._remapped()
        return {name: value for name, value in found.items() if value is not None}

    def throttled(self) -> tuple[str, ...]:
        """Why the clocks are held down at this moment."""
        for name in (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):
            reasons = c_ulonglong()
            if self._asked(name, byref(reasons)):
                return tuple(text for bit, text in THROTTLE.items() if reasons.value & bit)
        return ()

    def names(self) -> dict[str, str]:
        """What tells this one device from others of its model."""
        asked = {
            "uuid": "nvmlDeviceGetUUID",
            "serial": "nvmlDeviceGetSerial",
            "vbios": "nvmlDeviceGetVbiosVersion",
        }
        found = {key: self._text(name) for key, name in asked.items()}
        found["driver"] = _text(self._library, "nvmlSystemGetDriverVersion")
        return {key: text for key, text in found.items() if text}

    def _asked(self, name: str, *arguments: Any) -> bool:
        return _call(self._library, name, self._handle, *arguments)

    def _number(self, name: str, *which: int) -> float | None:
        told = c_uint()
        asked = self._asked(name, *(c_uint(number) for number in which), byref(told))
        return float(told.value) if asked else None

    def _errors(self, kind: int, since: int) -> float | None:
        told = c_ulonglong()
        name = "nvmlDeviceGetTotalEccErrors"
        asked = self._asked(name, c_uint(kind), c_uint(since), byref(told))
        return float(told.value) if asked else None

    def _remapped(self) -> dict[str, float | None]:
        """Rows of memory that were put out of use."""
        told = [c_uint() for _ in range(4)]
        if not self._asked("nvmlDeviceGetRemappedRows", *(byref(number) for number in told)):
            return {}
        corrected, uncorrected, pending, failed = (float(number.value) for number in told)
        return {
            "rows remapped": corrected + uncorrected,
            "remapping pending": pending,
            "remapping failed": failed,
        }

    def _text(self, name: str) -> str:
        return _text(self._library, name, self._handle)


def find(uuid: str = "", bus: str = "", path: str = "") -> Nvml | None:
    """The device of that UUID or PCI bus id; None where there is no library, or no such device."""
    library = _library(path)
    if library is None:
        return None
    asked: list[tuple[str, Callable[[Any], Any]]] = []
    if uuid:
        full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        asked.append(("nvmlDeviceGetHandleByUUID", lambda h: (c_char_p(full.encode()), byref(h))))
    if bus:
        by_bus = "nvmlDeviceGetHandleByPciBusId_v2"
        asked.append((by_bus, lambda h: (c_char_p(bus.encode()), byref(h))))
    for name, arguments in asked:
        handle = c_void_p()
        if _call(library, name, *arguments(handle)):
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


def _text(library: Any, name: str, *before: Any) -> str:
    buffer = (c_char * 96)()
    asked = _call(library, name, *before, buffer, c_uint(len(buffer)))
    return buffer.value.decode("utf-8", "replace") if asked else ""
