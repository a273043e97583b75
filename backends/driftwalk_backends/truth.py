"""The truth: the same model in float64, eager, on the CPU; and its replay with given states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import ClassVar

from driftwalk.adapter import BackendInfo, Offer, Sink
from driftwalk.errors import UsageError
from driftwalk.spec import Spec
from driftwalk.states import Probe

from .rounding import Jittered, WidenedCasts
from .torch_eager import TorchEager


class Truth(TorchEager):
    """Float64 throughout: upcasts to float32 inside the model stay float64."""

    name: ClassVar[str] = "truth"
    options: ClassVar[Mapping[str, str]] = {"threads": TorchEager.options["threads"]}

    def __init__(self, spec: Spec, model: object) -> None:
        if spec.device not in ("", "cpu") or spec.dtype not in ("", "fp64"):
            raise UsageError(f"The truth is float64 on the CPU; got {str(spec)!r}.")
        super().__init__(replace(spec, device="cpu", dtype="fp64"), model)
        self.spec = spec
        self._noise: AbstractContextManager[object] = nullcontext()
        # Fused attention kernels take short cuts; a plain module has no such choice.
        if hasattr(self._model.module, "set_attn_implementation"):
            self._attn = "eager"

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return [Offer("truth", True, "float64 on the CPU")]

    @property
    def info(self) -> BackendInfo:
        return replace(super().info, spec=str(self.spec))

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        with super()._arithmetic(), WidenedCasts(), self._noise:  # type: ignore[no-untyped-call]
            yield

    def jittered(self, probe: Probe, roundoff: float, sink: Sink) -> None:
        """Hand on the states of a run in which every result is a random part of a roundoff off."""
        self._noise = Jittered(roundoff)
        try:
            self.stream(probe, sink)
        finally:
            self._noise = nullcontext()
