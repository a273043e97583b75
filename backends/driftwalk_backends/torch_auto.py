"""The `torch:auto` backend: one model over all GPUs, and the CPU for what they have no room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from driftwalk.budget import parse_size
from driftwalk.errors import UsageError
from driftwalk.spec import Spec

from .lending import MOST
from .placement import Placement, on_one_device, plan, run_in_parts
from .precision import formats_in
from .torch_devices import free_memory, gpus, why_not
from .torch_eager import TorchEager


class TorchAuto(TorchEager):
    """Eager PyTorch, each part of the model on the device that has room for it.

    Where one device has room for all of it, this is plain eager PyTorch on that device.
    """

    def __init__(self, spec: Spec, model: object) -> None:
        _refuse(spec)
        self._gpus = gpus()
        first = str(self._gpus[0]) if self._gpus else "cpu"
        super().__init__(replace(spec, device=first), model)
        self.spec = spec
        self._limits = _limits(spec.options.get("memory", ""), len(self._gpus))
        self._placement: Placement | None = None
        self._check_is_on_one_device()

    def _check_is_on_one_device(self) -> None:
        module = self._model.module
        devices = sorted({str(weight.device) for weight in module.parameters()})
        hooked = any(hasattr(part, "_hf_hook") for part in module.modules())
        if len(devices) > 1 or hooked:
            where = f"{', '.join(devices)}{', with hooks of accelerate' if hooked else ''}"
            raise UsageError(
                f"{self.spec}: {self._model.label} is spread already ({where}). Give the module "
                "itself as the candidate, which runs it as it is, or load it on the CPU."
            )

    def _load(self) -> nn.Module:
        self._placement = self._planned()
        devices = self._placement.devices
        if len(devices) < 2:
            (self._device,) = self._devices
            self._lend = "large" if self._device.type == "cpu" else "off"
            return super()._load()
        # Where its inputs lie: a GPU, if one has only a part of the model.
        self._device = next(device for device in devices if device.type != "cpu")
        places = self._placement.tensors
        module = self._model.at(self._dtype, str(self._device), self._attn, places=places)
        run_in_parts(module, self._placement)
        return module

    def _planned(self) -> Placement:
        module, weights = self._model.module, self._model.weights
        formats = formats_in(module, self._dtype)
        room = {}
        for gpu, limit in zip(self._gpus, self._limits, strict=True):
            free = free_memory(gpu) + weights.held(module, formats, gpu)
            room[gpu] = min(int(MOST * free), limit)
        return plan(module, lambda tensor: tensor.numel() * formats(tensor).itemsize, room)

    @property
    def _devices(self) -> tuple[torch.device, ...]:
        held = self._placement.devices if self._placement is not None else ()
        return held or (self._device,)

    @property
    def _is_spread(self) -> bool:
        return len(self._devices) > 1

    def _flags(self) -> dict[str, str]:
        flags = super()._flags()
        if self._placement is not None and self._placement.devices:
            why = "" if self._gpus else f" ({why_not(torch.device('cuda'))})"
            flags["placement"] = f"{self._placement}{why}"
        used = [device for device in self._devices if device.type == "cuda"]
        if len(used) > 1:
            flags["gpu"] = ", ".join(torch.cuda.get_device_name(device) for device in used)
        return flags

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        with super()._arithmetic(), on_one_device() if self._is_spread else nullcontext():
            yield

    @property
    def holds_on(self) -> str:
        """Its states lie on several devices: they are compared on the host."""
        return ""

    def device_memory(self) -> Mapping[str, int]:
        if not self._is_spread:
            return super().device_memory()
        used = [device for device in self._devices if device.type == "cuda"]
        allocated = {f"{gpu} allocated": torch.cuda.max_memory_allocated(gpu) for gpu in used}
        return allocated | {f"{gpu} reserved": torch.cuda.max_memory_reserved(gpu) for gpu in used}


def _refuse(spec: Spec) -> None:
    """What needs a model on one device."""
    if "compile" in spec.options:
        raise UsageError(
            f"{spec}: a model is compiled for one device. Write torch:cuda,compile="
            f"{spec.options['compile']}, or leave compile= out."
        )
    if "stream" in spec.options:
        raise UsageError(
            f"{spec}: torch:auto puts each weight where there is room for it, and streams none. "
            "Leave stream= out, or write torch:cuda,stream=on: one GPU, and each weight is moved "
            "there when it is read."
        )


def _limits(text: str, count: int) -> list[int]:
    """How many bytes each GPU may be given: one size, or one for every GPU, `20GiB/8GiB`."""
    if not text:
        return [2**63] * count
    limits = [parse_size(one, "memory") for one in text.split("/")]
    if count and len(limits) not in (1, count):
        raise UsageError(f"Option memory={text}: {len(limits)} sizes for {count} GPU(s).")
    return limits * count if len(limits) == 1 else limits[:count]
