"""The truth: the same model in float64, eager, on the CPU; and its replay with given states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import ClassVar

from torch.nn.attention import SDPBackend, sdpa_kernel

from driftwalk.adapter import BackendInfo, Offer, Sink
from driftwalk.errors import UsageError
from driftwalk.spec import Spec
from driftwalk.states import Probe

from .rounding import Jittered
from .torch_eager import TorchEager
from .widening import MixedOps, WidenedCasts


class Truth(TorchEager):
    """Float64 throughout: upcasts to float32 inside the model stay float64.

    `casts=kept` is a second opinion: the model's own casts are done as written.
    """

    name: ClassVar[str] = "truth"
    options: ClassVar[Mapping[str, str]] = {
        "casts": "widened (default) or kept: what the model's own casts to float32 do",
        "threads": TorchEager.options["threads"],
    }

    def __init__(self, spec: Spec, model: object) -> None:
        if spec.device not in ("", "cpu") or spec.dtype not in ("", "fp64"):
            raise UsageError(f"The truth is float64 on the CPU; got {str(spec)!r}.")
        super().__init__(replace(spec, device="cpu", dtype="fp64"), model)
        self.spec = spec
        self._noise: AbstractContextManager[object] = nullcontext()
        self._casts = spec.choice("casts", ("widened", "kept"), "widened")
        # Its own attention: the eager one may take another mask, and compute something else.
        config = getattr(self._model.module, "config", None)
        if "flash" in str(getattr(config, "_attn_implementation", "")):
            self._attn = "sdpa"  # a GPU's kernels have no float64

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return [Offer("truth", True, "float64 on the CPU")]

    @property
    def info(self) -> BackendInfo:
        return replace(super().info, spec=str(self.spec))

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        mode = MixedOps if self._casts == "kept" else WidenedCasts
        # Fused attention takes short cuts; the same attention as plain matrix products does not.
        with super()._arithmetic(), sdpa_kernel(SDPBackend.MATH), mode(), self._noise:
            yield

    def jittered(self, probe: Probe, roundoff: float, sink: Sink) -> None:
        """Hand on the states of a run in which every result is a random part of a roundoff off."""
        self._noise = Jittered(roundoff)
        try:
            self.stream(probe, sink)
        finally:
            self._noise = nullcontext()
