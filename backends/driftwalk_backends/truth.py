"""The truth: the same model in float64, eager; and its replay with given states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import ClassVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from driftwalk.adapter import BackendInfo, Offer, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import UsageError
from driftwalk.spec import Spec
from driftwalk.states import Probe

from .choices import RANKINGS, Key, Recorded, Tipped
from .formats.rounding import half_way_otherwise
from .jitter import Jittered
from .torch_eager import TorchEager
from .widening import MixedOps, WidenedCasts


class Truth(TorchEager):
    """Float64 throughout: upcasts to float32 inside the model stay float64.

    `casts=kept` is a second opinion: the model's own casts are done as written.
    """

    name: ClassVar[str] = "truth"
    draws_as_float32: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str]] = {
        "casts": "widened (default) or kept: what the model's own casts to float32 do",
        **{name: TorchEager.options[name] for name in ("address", "ranges", "threads")},
    }

    def __init__(self, spec: Spec, model: object) -> None:
        if spec.device == "mps" or spec.dtype not in ("", "fp64"):
            raise UsageError(f"The truth is float64 on the CPU or a CUDA device; got {spec}.")
        super().__init__(replace(spec, device=spec.device or "cpu", dtype="fp64"), model)
        self.spec = spec
        self._lend = "large"
        self._modes: tuple[AbstractContextManager[object], ...] = ()
        self._scores: Mapping[Key, torch.Tensor] = {}
        self._ranks = True
        self.seed = 0
        """Of the roundoffs in a jittered run: ranges of blocks have others (ranged.py)."""
        self._casts = spec.choice("casts", ("widened", "kept"), "widened")
        floats = {p.dtype for p in self._model.module.parameters() if p.is_floating_point()}
        own = torch.float64 if floats == {torch.float64} else torch.float32
        self._lowest = torch.finfo(own).min
        # Its own attention: the eager one may take another mask, and compute something else.
        config = getattr(self._model.module, "config", None)
        if "flash" in str(getattr(config, "_attn_implementation", "")):
            self._attn = "sdpa"  # a GPU's kernels have no float64

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return [Offer("truth", True, "float64")]

    @property
    def info(self) -> BackendInfo:
        return replace(super().info, spec=str(self.spec))

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        mode = MixedOps() if self._casts == "kept" else WidenedCasts(self._lowest)
        # Fused attention takes short cuts; the same attention as plain matrix products does not.
        with super()._arithmetic(), sdpa_kernel(SDPBackend.MATH), mode, ExitStack() as modes:
            for one in self._modes:
                modes.enter_context(one)
            yield

    def jittered(self, probe: Probe, roundoff: float, sink: Sink) -> None:
        """Hand on the states of a run in which every result is a random part of a roundoff off."""
        with self.at_work(probe):
            pass  # the run in which points are found makes choices of its own
        recorded = Recorded()
        with self._with(Jittered(roundoff, self.seed), recorded):
            self.stream(probe, sink)
        self._scores = recorded.scores
        self._ranks = any(name in RANKINGS for name, _, _ in recorded.scores)

    def tipped(
        self, probe: Probe, reach: float, sink: Sink, given: Mapping[str, Array] | None = None
    ) -> int:
        """Hand on the states of a run whose close choices take the other branch; see choices.py.

        Close are numbers nearer to one another than `reach` times what the last jittered run moved
        them by. With `given`, each block runs on the given previous state.
        """
        if not self._scores:
            return 0
        mode = Tipped(self._scores, reach)
        with self._with(mode):
            if given is None:
                self.stream(probe, sink)
            else:
                self.replay(probe, given, sink)
        return mode.count

    @property
    def chooses_nothing(self) -> bool:
        """Whether the jittered run, or none, has anything ranked in it."""
        return super().chooses_nothing or not self._ranks

    def half_way_otherwise(self) -> AbstractContextManager[None]:
        return half_way_otherwise()

    @contextmanager
    def _with(self, *modes: AbstractContextManager[object]) -> Iterator[None]:
        """The next run has these modes around every operation, the last one outermost."""
        self._modes = modes
        try:
            yield
        finally:
            self._modes = ()
