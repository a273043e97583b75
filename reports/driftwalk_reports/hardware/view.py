"""A hardware check in words: what every format of it shows, without markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from driftwalk.tasks.hardware.result import (
    Case,
    Cell,
    Check,
    DeviceResult,
    HardwareReport,
    Mismatch,
)

from ..numbers import NOTHING, apart, cut, number, seconds
from .timeline import Timeline, timeline

TONES = {"no fault found": "pass", "fault": "drift", "not comparable": "unverified"}
SYMBOLS = {"no fault found": "✓", "fault": "✗", "not comparable": "?"}
OUTCOMES = {"bit-exact": "pass", "within noise": "unverified", "broken": "drift", "not run": ""}
OUTCOME_SYMBOLS = {"bit-exact": "✓", "within noise": "≈", "broken": "✗", "not run": NOTHING}
TITLES = {
    "repeat": "Repeat: the same states each time",
    "units": "Dtypes and units",
    "load": "Cold and hot",
    "golden": "Against the golden trace",
    "devices": "Between devices",
    "invariance": "Invariance",
}


@dataclass(frozen=True)
class Line:
    """One check, or one case of it."""

    name: str
    verdict: str
    tone: str
    symbol: str
    sentence: str
    seconds: str = ""
    repeats: str = ""
    worst: str = ""


@dataclass(frozen=True)
class Found:
    """One mismatch in a sentence, and its elements."""

    where: str
    sentence: str
    flips: tuple[tuple[str, str, str, str], ...]
    """Element, bits, what it should be, what it was."""
    more: str


@dataclass(frozen=True)
class Field:
    outcome: str
    tone: str
    symbol: str
    detail: str


@dataclass(frozen=True)
class Matrix:
    dtypes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Field, ...]], ...]


@dataclass(frozen=True)
class DeviceView:
    name: str
    verdict: str
    tone: str
    symbol: str
    checks: tuple[Line, ...]
    cases: tuple[tuple[str, tuple[Line, ...]], ...]
    found: tuple[Found, ...]
    unlisted: int
    matrix: Matrix | None
    timeline: Timeline | None
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class HardwareView:
    headline: str
    verdict: str
    tone: str
    symbol: str
    injected: str
    interrupted: bool
    about: tuple[tuple[str, str], ...]
    devices: tuple[DeviceView, ...]
    between: Line | None
    between_found: tuple[Found, ...]
    notes: tuple[str, ...]
    command: str
    created: str
    tool: str
    environment: tuple[tuple[str, str], ...]


def look(report: HardwareReport) -> HardwareView:
    """Everything a hardware check shows."""
    between = report.between
    return HardwareView(
        headline=cut(report.reason, 600),
        verdict=report.verdict,
        tone=TONES[report.verdict],
        symbol=SYMBOLS[report.verdict],
        injected=cut(report.injected, 200),
        interrupted=not report.complete,
        about=(
            ("level", cut(report.level, 40)),
            ("took", seconds(report.seconds)),
            ("model", cut(report.model.get("label", NOTHING), 80)),
            ("devices", cut(", ".join(device.device for device in report.devices), 200)),
        ),
        devices=tuple(_device(device) for device in report.devices),
        between=_check(between) if between else None,
        between_found=tuple(_found(m) for m in between.mismatches) if between else (),
        notes=tuple(cut(note, 400) for note in report.notes),
        command=report.command,
        created=report.created,
        tool=f"{report.tool.name} {report.tool.version}",
        environment=_pairs(report.environment),
    )


def _pairs(told: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((cut(key, 60), cut(value, 200)) for key, value in told.items())


def _device(device: DeviceResult) -> DeviceView:
    invariance = device.check("invariance")
    return DeviceView(
        name=cut(device.device, 60),
        verdict=device.verdict,
        tone=TONES[device.verdict],
        symbol=SYMBOLS[device.verdict],
        checks=tuple(_check(check) for check in device.checks),
        cases=tuple(
            (TITLES.get(check.name, cut(check.name, 40)), tuple(_case(c) for c in check.cases))
            for check in device.checks
            if check.cases
        ),
        found=tuple(_found(mismatch) for mismatch in device.mismatches),
        unlisted=sum(check.unlisted for check in device.checks),
        matrix=_matrix(invariance.cells) if invariance and invariance.cells else None,
        timeline=timeline(device),
        facts=_pairs({**device.identity, **device.details}) + _sensed(device),
        notes=tuple(cut(note, 400) for note in device.notes),
    )


def _sensed(device: DeviceResult) -> tuple[tuple[str, str], ...]:
    """The range of everything that was sensed, and why clocks were held down."""
    names = dict.fromkeys(name for reading in device.readings for name in reading.values)
    found = []
    for name in names:
        told = [r.values[name] for r in device.readings if name in r.values]
        low, high = number(min(told), 4), number(max(told), 4)
        found.append((cut(name, 60), low if low == high else f"{low} to {high}"))
    held = Counter(reason for reading in device.readings for reason in reading.throttled)
    found += [
        ("clocks held down", f"{cut(reason, 80)}, in {times} of {len(device.readings)} readings")
        for reason, times in held.items()
    ]
    return tuple(found)


def _check(check: Check) -> Line:
    return Line(
        TITLES.get(check.name, cut(check.name, 40)),
        check.verdict,
        TONES[check.verdict],
        SYMBOLS[check.verdict],
        cut(check.sentence, 600),
        seconds(check.seconds),
    )


def _case(case: Case) -> Line:
    return Line(
        cut(case.name, 120),
        case.verdict,
        TONES[case.verdict],
        SYMBOLS[case.verdict],
        cut(case.note, 300),
        seconds(case.seconds) if case.seconds else "",
        str(case.repeats),
        number(case.worst) if case.worst is not None else "",
    )


def _found(mismatch: Mismatch) -> Found:
    where = f"{cut(mismatch.case, 120)}: {cut(mismatch.state, 80)}"
    told = []
    if mismatch.total:
        told.append(f"{mismatch.differing} of {mismatch.total} elements differ")
    told.append(f"repeat {mismatch.repeat}, {mismatch.at:.1f} s after the start")
    if mismatch.core is not None:
        told.append(f"on core {mismatch.core}")
    if mismatch.note:
        told.append(cut(mismatch.note, 200))
    flips = []
    for flip in mismatch.flips:
        right, wrong = apart(flip.expected, flip.found)
        place = ", ".join(map(str, flip.index))
        bits = ", ".join(map(str, flip.bits))
        flips.append(
            (
                f"{flip.element} [{place}]",
                bits,
                f"{right} (0x{cut(flip.expected_bits, 16)})",
                f"{wrong} (0x{cut(flip.found_bits, 16)})",
            )
        )
    left = mismatch.differing - len(flips)
    more = f"and {left} more" if flips and left > 0 else ""
    return Found(where, "; ".join(told), tuple(flips), more)


def _matrix(cells: tuple[Cell, ...]) -> Matrix:
    dtypes = tuple(dict.fromkeys(cell.dtype for cell in cells))
    known = {(cell.change, cell.dtype): cell for cell in cells}
    changes = dict.fromkeys(cell.change for cell in cells)
    rows = tuple(
        (cut(change, 80), tuple(_field(known.get((change, dtype))) for dtype in dtypes))
        for change in changes
    )
    return Matrix(tuple(cut(dtype, 20) for dtype in dtypes), rows)


def _field(cell: Cell | None) -> Field:
    if cell is None:
        return Field("not run", "", NOTHING, "")
    detail = cut(cell.note, 160)
    if not detail and cell.ratio and cell.worst_state:
        detail = f"{number(cell.ratio, 2)} of the allowance at {cut(cell.worst_state, 60)}"
    return Field(cell.outcome, OUTCOMES[cell.outcome], OUTCOME_SYMBOLS[cell.outcome], detail)
