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


def device_of(text: str) -> torch.device:
    """The device a spec names; torch's own error for an unknown one lists twenty it lacks too."""
    kind = text.partition(":")[0]
    if kind not in DEVICES:
        raise UsageError(f"Backend 'torch' has no device {kind!r}; it has {', '.join(DEVICES)}.")
    return torch.device(text)


if __name__ == "__main__":
    names = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    sys.stdout.write(json.dumps(names))
