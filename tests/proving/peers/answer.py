"""What a peer is, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from torch import nn


@dataclass(frozen=True)
class Answer:
    """A peer's verdict on one case."""

    verdict: Literal["same", "differs", "cannot"]
    place: str = ""
    """Module path of the first layer that it says differs; empty where it names none."""
    why: str = ""


Ask = Callable[[nn.Module, nn.Module | None, Mapping[str, Any], Path | None], Answer]
"""Reference, candidate, inputs, and the candidate's ONNX graph where it is run as one."""


@dataclass(frozen=True)
class Peer:
    """Another tool that compares two runs of a model."""

    name: str
    package: str
    runs: tuple[str, ...]
    ask: Ask = field(repr=False)
    says: str
    """One line: what it is."""
    does: str
    """How it is asked, and what its verdict is."""
    cannot: str
    """What it cannot do, said fairly."""

    @property
    def version(self) -> str:
        """Of its package; empty where that is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""

    def can(self, run: str) -> bool:
        """Whether it has a way to run a case like this at all."""
        return run in self.runs
