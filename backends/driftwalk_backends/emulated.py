"""The `emulated` backend: a coarser format's arithmetic on a CPU that has none.

It predicts the drift of hardware you do not own, and is the yardstick for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from driftwalk.adapter import BackendInfo, Offer
from driftwalk.errors import UsageError
from driftwalk.spec import Spec

from .rounding import ARITHMETIC
from .torch_eager import TorchEager

_HOLDS = {"fp16": "fp16", "bf16": "bf16", "tf32": "fp32", "fp8": "fp32"}
"""The dtype the model itself is in under each arithmetic."""


class Emulated(TorchEager):
    """Eager PyTorch on the CPU, every op rounded as the format would."""

    name: ClassVar[str] = "emulated"
    options: ClassVar[Mapping[str, str]] = {
        name: text for name, text in TorchEager.options.items() if name in ("attn", "threads")
    }

    def __init__(self, spec: Spec, model: object) -> None:
        if spec.dtype not in ARITHMETIC:
            raise UsageError(
                f"Backend 'emulated' needs a dtype: emulated:{{{','.join(ARITHMETIC)}}}; "
                f"got {str(spec)!r}."
            )
        if spec.device not in ("", "cpu"):
            raise UsageError(f"Backend 'emulated' runs on the CPU, not on {spec.device!r}.")
        self._format = spec.dtype
        super().__init__(replace(spec, dtype=_HOLDS[spec.dtype]), model)
        self.spec = spec

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return [Offer(f"emulated:{name}", True, "emulated on the CPU") for name in ARITHMETIC]

    @property
    def info(self) -> BackendInfo:
        return replace(super().info, dtype=self._format)

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        with super()._arithmetic(), ARITHMETIC[self._format]():
            yield
