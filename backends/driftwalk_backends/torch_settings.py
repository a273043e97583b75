"""Settings of PyTorch that change numbers, as options of a spec: for one run only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from driftwalk.spec import Spec

MATMUL = ("highest", "high", "medium")


@dataclass(frozen=True)
class Precision:
    """How products, convolutions and sums are computed, where a spec says so."""

    matmul: str = ""
    cudnn: str = ""
    deterministic: str = ""

    @classmethod
    def of(cls, spec: Spec) -> Precision:
        on_off = ("on", "off")
        return cls(
            spec.choice("matmul", MATMUL, "") if "matmul" in spec.options else "",
            spec.choice("cudnn", (*on_off, "benchmark"), "") if "cudnn" in spec.options else "",
            spec.choice("deterministic", on_off, "") if "deterministic" in spec.options else "",
        )

    @property
    def flags(self) -> dict[str, str]:
        """What was asked for, for a report to say so."""
        named = {"matmul": self.matmul, "deterministic": self.deterministic}
        named["cudnn use"] = self.cudnn
        return {name: value for name, value in named.items() if value}

    @contextmanager
    def set(self) -> Iterator[None]:
        """Until the run is over; nothing that was not asked for is touched."""
        cudnn = torch.backends.cudnn
        before = (
            torch.get_float32_matmul_precision(),
            (cudnn.enabled, cudnn.benchmark),
            (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
        )
        try:
            if self.matmul:
                torch.set_float32_matmul_precision(self.matmul)
            if self.cudnn:
                cudnn.enabled = self.cudnn != "off"
                cudnn.benchmark = self.cudnn == "benchmark"
            if self.deterministic:
                # What has no such algorithm warns: it is still the model that was asked for.
                torch.use_deterministic_algorithms(self.deterministic == "on", warn_only=True)
            yield
        finally:
            if self.matmul:
                torch.set_float32_matmul_precision(before[0])
            if self.cudnn:
                cudnn.enabled, cudnn.benchmark = before[1]
            if self.deterministic:
                torch.use_deterministic_algorithms(before[2][0], warn_only=before[2][1])
