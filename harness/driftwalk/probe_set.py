"""Many probes in one run: a row for each, and what all of them come to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .exercised import Exercised
from .jsonable import Size, Sparse

ORDER = ("pass", "unverified", "drift")
"""Verdicts of a probe, the worst last."""


@dataclass(frozen=True)
class ProbeRow:
    """What one probe of a set came to."""

    number: int
    """Its place in the set, from 1; for a file of lines, the number of its line."""
    name: str
    verdict: Literal["pass", "drift", "unverified"]
    used: Size | None
    """The largest share of its allowance that any point used: 1 is all of it."""
    first_divergence: str | None
    root_cause: str | None
    kl: Size | None
    """The largest KL divergence of a position; None where the model decides nothing."""
    flips: int | None
    """Decisions that changed and are no ties."""
    shape: str
    sha256: str
    reason: Sparse[str] = ""
    """Why it is unverified."""
    file: Sparse[str] = ""
    """Its own probe file, below the folder that reports were written to."""
    screened: Sparse[bool] = False
    """Both sides ran once, and nothing gave reason to judge it whole; see docs/probes.md."""

    @property
    def rank(self) -> tuple[int, float]:
        """Rows with a larger rank are worse: first by verdict, then by the share used."""
        known = self.used is not None and not math.isnan(self.used)
        return ORDER.index(self.verdict), float(self.used or 0.0) if known else math.inf


@dataclass(frozen=True)
class Percentiles:
    """One number of every probe of the set, in order of size."""

    count: int
    """Probes that have the number."""
    p50: Size
    p90: Size
    p99: Size
    largest: Size

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles | None:
        """By the nearest rank; None where there is no number, and NaN counts as the largest."""
        found = sorted((math.inf if math.isnan(value) else value) for value in values)
        if not found:
            return None
        p50, p90, p99 = (found[math.ceil(len(found) * share) - 1] for share in (0.5, 0.9, 0.99))
        return cls(len(found), p50, p90, p99, found[-1])


@dataclass(frozen=True)
class Refused:
    """A probe of the set that could not be read, or that does not fit the model."""

    number: int
    name: str
    why: str


@dataclass(frozen=True)
class ProbeSet:
    """What all probes of a set came to; the report around it is that of the worst of them."""

    origin: str
    """Where the probes come from."""
    count: int
    """Probes that were run."""
    passed: int
    drifted: int
    unverified: int
    used: Percentiles | None
    kl: Percentiles | None
    flips: Percentiles | None
    worst: tuple[str, ...]
    """The worst probes by name, the worst first."""
    refused: tuple[Refused, ...] = ()
    """Probes that were not run: the first of them, and (below) how many there are."""
    refused_count: int = 0
    rows_left_out: int = 0
    """Probes of a large set that have no row: the best ones."""
    exercised: Sparse[Exercised | None] = None
    """What of the model the probes used, all of them together."""
    screened: Sparse[int] = 0
    """Probes that were screened, and not judged whole."""
    stopped: Sparse[bool] = False
    """Whether it was ended before all probes were run."""
