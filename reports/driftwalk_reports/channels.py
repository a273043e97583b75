"""Where one channel is the finding: the error of every channel beside it, as bars."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from driftwalk.layer_drift import ChannelErrors
from driftwalk.result import Report

from .chart import NARROW, WIDE, Flag, Hit, LogScale, Sheet, Tick
from .chart import Column as Strip
from .numbers import cut, number

TOP, HEIGHT = 24.0, 150.0


@dataclass(frozen=True)
class ChannelBars:
    """The bars on one sheet."""

    sheet: Sheet
    bottom: float
    ticks: tuple[Tick, ...]
    labels: tuple[Tick, ...]
    others: str
    """All bars but the one that is named, as one path."""
    named: str
    flag: Flag
    hits: tuple[Hit, ...]


@dataclass(frozen=True)
class ChannelChart:
    sentence: str
    label: str
    drawings: tuple[ChannelBars, ...]
    top: float = TOP
    height: float = TOP + HEIGHT + 40


def channel_chart(report: Report) -> ChannelChart | None:
    """None where no channel stands out, or an older version did not write the others down."""
    culprit = report.culprit
    if culprit is None or culprit.channel is None or culprit.channels is None:
        return None
    found, channel = culprit.channels, culprit.channel
    if not 0 <= channel < found.of or not any(map(_is_size, found.rms)):
        return None
    where = cut(culprit.module, 80) or "the root cause"
    others = sorted(value for at, value in enumerate(found.rms) if at != channel // found.step)
    beside = f"; the median channel has {number(others[len(others) // 2])}" if others else ""
    own = number(found.rms[channel // found.step])
    return ChannelChart(
        f"Of the error that {where} made, channel {channel} of {found.of} has {own}{beside}.",
        f"Error of each of {found.of} channels of {where}, on a log scale.",
        tuple(_bars(sheet, found, channel) for sheet in (WIDE, NARROW)),
    )


def _is_size(value: float) -> bool:
    return 0 < value < math.inf


def _bars(sheet: Sheet, found: ChannelErrors, channel: int) -> ChannelBars:
    axis, named = sheet.axis, channel // found.step
    known = [value for value in found.rms if _is_size(value)]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    scale = LogScale(low, max(high, low + 1), TOP, TOP + HEIGHT, has_zero=0.0 in found.rms)
    wide = (axis.right - axis.left) / len(found.rms)
    gap, floor = wide * 0.2 if wide > 3 else 0.0, scale.bottom

    def bar(at: int) -> str:
        top = scale.y(found.rms[at])
        left, right = axis.left + at * wide + gap / 2, axis.left + (at + 1) * wide - gap / 2
        return f"M{left:.1f} {floor:.1f}V{top:.1f}H{max(right, left + 1):.1f}V{floor:.1f}z"

    x = axis.at((named + 0.5) / len(found.rms))
    return ChannelBars(
        sheet=sheet,
        bottom=scale.bottom,
        ticks=scale.ticks,
        labels=tuple(_labels(sheet, found.of)),
        others="".join(bar(at) for at in range(len(found.rms)) if at != named),
        named=bar(named),
        flag=Flag(x, 0, f"channel {channel}", x > sheet.turn * sheet.width),
        hits=tuple(
            Hit(
                0.0, round(axis.left + at * wide, 2), round(wide, 2), Strip(span), (span, number(v))
            )
            for at, v in enumerate(found.rms)
            for span in [_span(at, found)]
            if sheet is WIDE
        ),
    )


def _span(at: int, found: ChannelErrors) -> str:
    first, last = at * found.step, min(found.of, (at + 1) * found.step) - 1
    return f"channel {first}" if first == last else f"channels {first} to {last}, the largest"


def _labels(sheet: Sheet, count: int) -> Iterator[Tick]:
    """Round numbers of channels along the axis."""
    most = 10 if sheet is WIDE else 5
    step = next(s for p in range(12) for s in (10**p, 2 * 10**p, 5 * 10**p) if s * most >= count)
    for channel in range(0, count, step):
        yield Tick(sheet.axis.at((channel + 0.5) / count), str(channel))
