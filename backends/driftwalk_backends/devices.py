"""Which devices this machine has, as hwcheck's `--device` names them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

_TELL = """
import json, sys
import torch
found = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
sys.stdout.write(json.dumps(found))
"""


def devices() -> list[str]:
    """The CPU, then every CUDA device that torch can see.

    Asked in a process that ends: who hands out jobs needs neither torch nor a context on a GPU. A
    machine where that fails has its CPU.
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TELL],
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path},
            timeout=300,
            check=True,
        )
        return [str(name) for name in json.loads(done.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError):
        return ["cpu"]
