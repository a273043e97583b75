"""The devices that torch can compute on here, and why not on the others.

As a program (`python -m`), it prints their names as JSON: the CPU, then every CUDA device.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch

from driftwalk.errors import UsageError

DEVICES = ("cpu", "cuda", "mps")
AUTO = "auto"
"""All CUDA devices, and the CPU for what they have no room for (torch_auto.py)."""


def driver_version() -> str:
    """The NVIDIA driver's version, as Linux tells it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return version.group() if version else "unknown"


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def gpus() -> list[torch.device]:
    """The CUDA devices that are here."""
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def free_memory(gpu: torch.device) -> int:
    """The bytes of a CUDA device that nobody uses; what this process has let go of is given back
    before."""
    with torch.cuda.device(gpu):
        torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(gpu)[0]


def spreads_over() -> str:
    """What `torch:auto` has here, in words."""
    count = len(gpus())
    if not count:
        return f"the CPU alone: {why_not(torch.device('cuda'))}"
    return f"{count} GPU{'s' if count > 1 else ''} and the CPU"


def why_not(device: torch.device) -> str:
    """Why a device cannot be used here; empty where it can."""
    if device.type == "cuda" and not torch.cuda.is_available():
        if torch.version.cuda is None:
            return (
                f"this PyTorch ({torch.__version__}) was built without CUDA: install a CUDA build"
            )
        return "no CUDA device is visible: check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        return f"there are {torch.cuda.device_count()} CUDA device(s), counted from 0"
    if device.type == "mps" and not torch.backends.mps.is_available():
        return "Apple's Metal backend is not available here"
    return ""


def device_of(text: str, backend: str = "torch") -> torch.device:
    """The device a spec names; torch's own error for an unknown one lists twenty it lacks too."""
    kind = text.partition(":")[0]
    if kind not in DEVICES:
        known = ", ".join((*DEVICES, AUTO) if backend == "torch" else DEVICES)
        raise UsageError(f"Backend {backend!r} has no device {text!r}; it has {known}.")
    return torch.device(text)


if __name__ == "__main__":
    names = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    sys.stdout.write(json.dumps(names))
