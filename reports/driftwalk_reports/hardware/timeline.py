"""The timeline as geometry: repeats in a lane for each check, sensors below, along one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftwalk.tasks.hardware.result import DeviceResult, Mismatch, Reading

WIDTH, LEFT, RIGHT = 1000.0, 108.0, 14.0
LANE, SENSOR, GAP = 26.0, 84.0, 26.0
MOST_TICKS = 900
"""Repeats drawn in one lane; of more, every so many-th, and all that differ."""
SENSORS = {"temperature": "°C", "clock": "MHz", "power": "W"}


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class Lane:
    """The repeats of one check."""

    name: str
    y: float
    path: str
    """Small strokes for the repeats that agree."""
    wrong: tuple[tuple[float, str], ...]
    """Places of those that do not, with what is said when one is pointed at."""


@dataclass(frozen=True)
class Sensor:
    """One sensor's line."""

    name: str
    top: float
    bottom: float
    line: str
    low: str
    high: str


@dataclass(frozen=True)
class Timeline:
    height: float
    bottom: float
    lanes: tuple[Lane, ...]
    sensors: tuple[Sensor, ...]
    ticks: tuple[Tick, ...]
    said: str
    """For those who do not see it."""


def timeline(device: DeviceResult) -> Timeline | None:
    """All of one device along its clock; None where nothing was repeated."""
    moments = [r.at + r.seconds for r in device.rounds] + [r.at for r in device.readings]
    if not device.rounds:
        return None
    end = max(moments) or 1.0
    names = list(dict.fromkeys(done.check for done in device.rounds))
    lanes = [_lane(device, name, 30.0 + LANE * i, end) for i, name in enumerate(names)]
    top = 30.0 + LANE * len(names) + 14.0
    sensors = []
    for name, unit in SENSORS.items():
        if drawn := _sensor(name, unit, device.readings, top, end):
            sensors.append(drawn)
            top += SENSOR + GAP
    bottom = top if sensors else 30.0 + LANE * len(names)
    wrong = sum(not done.ok for done in device.rounds)
    said = (
        f"{len(device.rounds)} repeats of {', '.join(names)} over {end:.0f} seconds; {wrong} differ"
    )
    return Timeline(bottom + 34.0, bottom, tuple(lanes), tuple(sensors), _ticks(end), said)


def _lane(device: DeviceResult, name: str, y: float, end: float) -> Lane:
    rounds = [done for done in device.rounds if done.check == name]
    fine = [done for done in rounds if done.ok]
    step = -(-len(fine) // MOST_TICKS)
    strokes = [f"M{_x(done.at, end)} {y + 5}v12" for done in fine[:: step or 1]]
    found = {(m.case, m.repeat): m for m in device.mismatches if m.check == name}
    wrong = [
        (_x(done.at, end), _told(done.case, done.repeat, found.get((done.case, done.repeat))))
        for done in rounds
        if not done.ok
    ]
    return Lane(name, y, "".join(strokes), tuple(wrong[:MOST_TICKS]))


def _told(case: str, repeat: int, mismatch: Mismatch | None) -> str:
    where = f": {mismatch.state}" if mismatch is not None else ""
    return f"{case}, repeat {repeat}{where}"


def _sensor(
    name: str, unit: str, readings: Sequence[Reading], top: float, end: float
) -> Sensor | None:
    told = [(r.at, r.values[name]) for r in readings if name in r.values]
    if not told:
        return None
    low, high = min(value for _, value in told), max(value for _, value in told)
    span = (high - low) or 1.0
    first, last = top + 20.0, top + SENSOR
    line = " ".join(
        f"{_x(at, end)},{round(last - (value - low) / span * (last - first), 1)}"
        for at, value in told
    )
    return Sensor(f"{name} ({unit})", first, last, line, f"{low:.0f}", f"{high:.0f}")


def _x(at: float, end: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, at / end)), 1)


def _ticks(end: float) -> tuple[Tick, ...]:
    steps = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
    step = next((s for s in steps if end / s <= 10), 86400)
    unit, size = ("s", 1) if step < 60 else ("min", 60) if step < 3600 else ("h", 3600)
    return tuple(
        Tick(_x(at, end), f"{at // size:.0f} {unit}") for at in range(0, int(end) + 1, step)
    )
