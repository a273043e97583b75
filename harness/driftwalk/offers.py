"""What a backend can do on this machine, and how long a run of it took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Offer:
    """One thing a backend can or cannot do on this machine, and why not."""

    spec: str
    usable: bool
    note: str


@dataclass(frozen=True)
class Lap:
    """One plain run, in seconds of wall clock, waited for to the end."""

    seconds: float
    """The run itself."""
    copy_in: float = 0.0
    copy_out: float = 0.0
    """Copies of inputs and outputs between host and device, not part of the run."""
    device: float | None = None
    """The run by the device's own clock, where it has one."""
