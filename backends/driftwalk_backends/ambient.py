"""Settings of the process that would change a run's numbers, set aside while a model runs.

A user may call driftwalk inside `torch.autocast`, or with another default dtype. What is verified
is the model and the spec, not the block of code that the call stands in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from .randomness import begin_alike, generators_kept

_AUTOCAST = ("cpu", "cuda", "mps", "xpu")


@contextmanager
def set_aside(module: nn.Module) -> Iterator[None]:
    """No autocast, float32 for new tensors, full float32 products, new tensors on the module's
    device, and the same random numbers in every run."""
    first = next(module.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    with ExitStack() as restore:
        for kind in _AUTOCAST:
            if torch.is_autocast_enabled(kind):
                restore.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_inference_mode_enabled():
            # Ops made of others reach a dispatch mode whole there, and casts inside are not seen.
            restore.enter_context(torch.inference_mode(False))
        default = torch.get_default_dtype()
        if default is not torch.float32:
            restore.callback(torch.set_default_dtype, default)
            torch.set_default_dtype(torch.float32)
        if device.type == "cpu" and (precision := _matmul_precision()) != "highest":
            restore.callback(torch.set_float32_matmul_precision, precision)
            torch.set_float32_matmul_precision("highest")
        if torch.get_default_device().type != "cpu":
            restore.enter_context(device)
        restore.enter_context(generators_kept())
        begin_alike()
        yield


def settings_set_aside() -> dict[str, str]:
    """What `set_aside` would change now, for a report to say so."""
    found = {}
    kinds = [kind for kind in _AUTOCAST if torch.is_autocast_enabled(kind)]
    if kinds:
        dtypes = {str(torch.get_autocast_dtype(kind)).removeprefix("torch.") for kind in kinds}
        found["autocast"] = f"switched off (was {', '.join(sorted(dtypes))})"
    if torch.get_default_dtype() is not torch.float32:
        was = str(torch.get_default_dtype()).removeprefix("torch.")
        found["default dtype"] = f"float32 (was {was})"
    if (precision := _matmul_precision()) != "highest":
        found["float32 matmul precision"] = f"highest on the CPU (was {precision})"
    return found


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by way of both of PyTorch's interfaces: it will not say
        return "highest"
