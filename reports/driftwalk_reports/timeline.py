"""The timeline of a hardware check as geometry: repeats in a lane for each check, sensors below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from driftwalk.tasks.hardware.result import DeviceResult, Reading

from .chart import Axis, Tick

AXIS = Axis(108.0, 986.0)
LANE, SENSOR, GAP = 26.0, 84.0, 26.0
MOST_STROKES = 900
"""Repeats drawn in one lane; of more, every so many-th, and all that differ."""
SENSORS = {"temperature": "°C", "clock": "MHz", "power": "W"}
STEPS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
"""Seconds from one tick of the clock to the next."""


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
    bottom: float
    lanes: tuple[Lane, ...]
    sensors: tuple[Sensor, ...]
    ticks: tuple[Tick, ...]
    said: str
    """For those who do not see it."""


def timeline(device: DeviceResult) -> Timeline | None:
    """All of one device along its clock; None where nothing was repeated."""
    if not device.rounds:
        return None
    end = max([r.at + r.seconds for r in device.rounds] + [r.at for r in device.readings]) or 1.0
    names = list(dict.fromkeys(done.check for done in device.rounds))
    lanes = [_lane(device, name, 30.0 + LANE * i, end) for i, name in enumerate(names)]
    bottom = 30.0 + LANE * len(names)
    sensors: list[Sensor] = []
    for name, unit in SENSORS.items():
        top = bottom if sensors else bottom + 14.0
        if drawn := _sensor(f"{name} ({unit})", name, device.readings, top, end):
            sensors.append(drawn)
            bottom = top + SENSOR + GAP
    wrong = sum(not done.ok for done in device.rounds)
    said = f"{len(device.rounds)} repeats of {', '.join(names)} over {end:.0f} seconds"
    return Timeline(
        bottom, tuple(lanes), tuple(sensors), tuple(_ticks(end)), f"{said}; {wrong} differ"
    )


def _lane(device: DeviceResult, name: str, y: float, end: float) -> Lane:
    rounds = [done for done in device.rounds if done.check == name]
    fine = [done for done in rounds if done.ok]
    step = -(-len(fine) // MOST_STROKES) or 1
    strokes = "".join(f"M{AXIS.at(done.at / end)} {y + 5}v12" for done in fine[::step])
    states = {(m.case, m.repeat): f": {m.state}" for m in device.mismatches if m.check == name}
    wrong = [
        (
            AXIS.at(done.at / end),
            f"{done.case}, repeat {done.repeat}{states.get((done.case, done.repeat), '')}",
        )
        for done in rounds
        if not done.ok
    ]
    return Lane(name, y, strokes, tuple(wrong[:MOST_STROKES]))


def _sensor(
    label: str, name: str, readings: Sequence[Reading], top: float, end: float
) -> Sensor | None:
    values = [(r.at, r.values[name]) for r in readings if name in r.values]
    if not values:
        return None
    low, high = min(value for _, value in values), max(value for _, value in values)
    first, last = top + 20.0, top + SENSOR
    scale = (last - first) / ((high - low) or 1.0)
    line = " ".join(
        f"{AXIS.at(at / end)},{round(last - (value - low) * scale, 1)}" for at, value in values
    )
    return Sensor(label, first, last, line, f"{low:.0f}", f"{high:.0f}")


def _ticks(end: float) -> Iterator[Tick]:
    step = next((s for s in STEPS if end / s <= 10), STEPS[-1])
    unit, size = ("s", 1) if step < 60 else ("min", 60) if step < 3600 else ("h", 3600)
    for at in range(0, int(end) + 1, step):
        yield Tick(AXIS.at(at / end), f"{at // size} {unit}")
