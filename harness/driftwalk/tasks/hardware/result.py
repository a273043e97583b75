"""The outcome of a hardware check: what was run, what came out bit by bit, and how warm it was.

Numbers and names only, wholly JSON-able. A verdict never says "healthy": that a fault was not
found is all that a check can know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ...document import Document

INTERRUPTED = 130
"""Exit code of a run that was stopped by Ctrl-C before a fault was found."""

Verdict = Literal["no fault found", "fault", "not comparable"]
Outcome = Literal["bit-exact", "within noise", "broken", "not run"]
EXIT_CODES: dict[str, int] = {"no fault found": 0, "fault": 1, "not comparable": 3}
CHECKS = ("repeat", "units", "load", "golden", "devices", "invariance")


@dataclass(frozen=True)
class Flip:
    """One element that came out otherwise: where, which bits, both values."""

    element: int
    """Its place in the flattened tensor."""
    index: tuple[int, ...]
    bits: tuple[int, ...]
    """Positions of the bits that differ; 0 is the lowest of the mantissa."""
    expected: float
    found: float
    expected_bits: str
    """In hexadecimal, as is the next; a NaN has many."""
    found_bits: str


Difference = tuple[int, int, tuple[Flip, ...]]
"""Elements that differ, of how many, the first few exactly."""


@dataclass(frozen=True)
class Mismatch:
    """One tensor that was not what it was the other times, or should have been."""

    check: str
    case: str
    state: str
    repeat: int
    """Counted from 0."""
    at: float
    """Seconds after the start."""
    differing: int
    total: int
    flips: tuple[Flip, ...] = ()
    """The first few."""
    core: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Round:
    """One repeat of one case, for the timeline."""

    check: str
    case: str
    repeat: int
    at: float
    seconds: float
    ok: bool
    core: int | None = None


@dataclass(frozen=True)
class Reading:
    """What the sensors said at one moment; what a device does not tell is left out."""

    at: float
    when: str
    """`idle`, `load`, `end`, or the name of a check."""
    values: Mapping[str, float] = field(default_factory=dict)
    """`temperature` (°C), `clock` (MHz), `power` (W), `ecc corrected`, ..."""
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One thing that was run again and again: a model in a dtype, a unit at a size."""

    name: str
    verdict: Verdict
    repeats: int = 0
    digest: str = ""
    """Of all bits that most repeats gave; empty where they have none in common."""
    worst: float | None = None
    """The largest error against float64, in units of what is allowed; None: not compared."""
    note: str = ""
    core: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Cell:
    """One change of how the model is run, in one dtype: what became of the states."""

    change: str
    """`batch 1 in 8`, `padding left 7`, `prefix of 32`, `threads 2` ..."""
    dtype: str
    outcome: Outcome
    states: Mapping[str, Outcome] = field(default_factory=dict)
    worst_state: str = ""
    ratio: float | None = None
    """The largest distance from the truth, in units of what is allowed."""
    by_model: bool = False
    """Broken in float64 too: the model itself depends on it, and no hardware is to blame."""
    note: str = ""


@dataclass(frozen=True)
class Check:
    """One of the six checks on one device."""

    name: str
    verdict: Verdict
    sentence: str
    cases: tuple[Case, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    cells: tuple[Cell, ...] = ()
    seconds: float = 0.0
    unlisted: int = 0
    """Mismatches beyond those listed."""


@dataclass(frozen=True)
class DeviceResult:
    """All that was found on one device."""

    WRITTEN: ClassVar[Mapping[str, str]] = {"verdict": "verdict"}
    device: str
    """`cpu`, `cuda:0` ..."""
    identity: Mapping[str, str]
    """What decides the bits: model of the device, libraries, flags."""
    checks: tuple[Check, ...]
    digests: Mapping[str, str] = field(default_factory=dict)
    """Case and state to the digest that most repeats gave: what devices of one model must share."""
    rounds: tuple[Round, ...] = ()
    readings: tuple[Reading, ...] = ()
    notes: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    """What identifies this one device (serial, UUID, driver) and explains, but decides no bit."""

    @property
    def verdict(self) -> Verdict:
        return worst_verdict(check.verdict for check in self.checks)

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        return tuple(found for check in self.checks for found in check.mismatches)

    def check(self, name: str) -> Check | None:
        return next((check for check in self.checks if check.name == name), None)


@dataclass(frozen=True, kw_only=True)
class HardwareReport(Document):
    """What `hwcheck` returns."""

    kind: ClassVar[str] = "hardware"
    WRITTEN: ClassVar[Mapping[str, str]] = {"exit_code": "exit_code"}
    level: str
    verdict: Verdict
    reason: str
    """One sentence."""
    devices: tuple[DeviceResult, ...]
    between: Check | None = None
    """The devices of this machine against each other; None where there is one."""
    model: Mapping[str, str] = field(default_factory=dict)
    probe: str = ""
    complete: bool = True
    """False where it was interrupted: what was found until then is here."""
    injected: str = ""
    """The fault that was put in on purpose, to test the checker; empty in every honest run."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.verdict == "no fault found"

    @property
    def exit_code(self) -> int:
        if not self.complete and self.verdict != "fault":
            return INTERRUPTED
        return EXIT_CODES[self.verdict]

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        own = tuple(found for device in self.devices for found in device.mismatches)
        return own + (self.between.mismatches if self.between else ())

    def __bool__(self) -> bool:
        raise TypeError("A hardware report is neither true nor false; ask for .ok or .verdict.")


def worst_verdict(verdicts: Any) -> Verdict:
    """A fault anywhere is a fault; nothing compared at all is `not comparable`."""
    found: set[Verdict] = set(verdicts)
    if "fault" in found:
        return "fault"
    return "no fault found" if "no fault found" in found else "not comparable"
