"""Each layer's error as two bars on one log scale: the format's below, the kernel's above.

Both halves have decades of one height, so that their bars can be compared. On that scale the
format's bars look much alike; below them, on a linear scale, is what each layer adds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from driftwalk.formats import decibels
from driftwalk.result import Report

from .chart import NARROW, WIDE, Axis, Column, Hit, Sheet, Tick, name_labels
from .format_costs import TITLE, CostRow, cost_view
from .format_words import MOST_RANKED
from .numbers import number

TOP, BAND, HEIGHT, GROWTH = 24.0, 30.0, 210.0, 84.0
"""Above the bars; between panels; of both halves of the log scale together; of what is added."""
ROOM = 12.0
"""Below the title of what is added, for the rank of the longest bar."""
_FEWEST = 2
"""Decades that a half shows at least."""


@dataclass(frozen=True)
class Bar:
    """One layer's bars, and what stands at their ends; a path is empty where there is nothing."""

    x: float
    above: str
    below: str
    added: str
    ok: bool
    symbol: str
    top: float
    """Of the kernel's bar, for the symbol."""
    peak: float
    """Of what is added, for the rank."""
    rank: int | None


@dataclass(frozen=True)
class CostDrawing:
    """The bars on one sheet."""

    sheet: Sheet
    axis: Axis
    height: float
    above: float
    """Where the kernel's bars stand."""
    below: float
    """Where the format's bars hang."""
    growth: float
    """Where the title of what is added stands."""
    end: float
    """Where the bars of what is added stand."""
    ticks: tuple[Tick, ...]
    """Relative errors, on the left."""
    levels: tuple[Tick, ...]
    """The same as decibels, on the right."""
    bars: tuple[Bar, ...]
    labels: tuple[Tick, ...]
    limit: Tick | None
    hits: tuple[Hit, ...]


@dataclass(frozen=True)
class CostChart:
    label: str
    drawings: tuple[CostDrawing, ...]


def cost_chart(report: Report) -> CostChart | None:
    """None where there is no format, or nothing of it was measured."""
    view = cost_view(report)
    rows = view.rows if view is not None else ()
    if not any(_is_size(row.cost.relative_format) for row in rows):
        return None
    failed = {layer.point.name for layer in report.layers if not layer.ok}
    sheets = (replace(WIDE, axis=Axis(68.0, 930.0)), replace(NARROW, axis=Axis(58.0, 312.0)))
    limit = report.policy.min_format_snr
    return CostChart(
        f"{TITLE}, below, and what the kernel adds, above, at each point, on a log scale; the "
        "table has the same numbers.",
        tuple(_drawn(sheet, rows, failed, limit) for sheet in sheets),
    )


def _is_size(value: float) -> bool:
    return 0 < value < math.inf


@dataclass(frozen=True)
class _Scale:
    """Decades from `low`, up from one line and down from another."""

    low: int
    up: int
    down: int
    above: float
    below: float

    @property
    def unit(self) -> float:
        return HEIGHT / (self.up + self.down)

    def length(self, error: float, most: int) -> float:
        """Of a bar; what is not finite fills its half."""
        if not error > 0 and not math.isnan(error):
            return 0.0
        decades = math.log10(error) - self.low if math.isfinite(error) else most
        return round(max(0.02, min(most, decades)) * self.unit, 1)


def _scale(rows: Sequence[CostRow], limit: float | None) -> _Scale:
    kernels = [r.cost.relative_kernel for r in rows if _is_size(r.cost.relative_kernel)]
    formats = [r.cost.relative_format for r in rows if _is_size(r.cost.relative_format)]
    formats += [] if limit is None else [10 ** (-limit / 20)]
    low = math.ceil(math.log10(min(kernels + formats)) - 1e-9) - 1  # so that each has a bar
    up = math.ceil(math.log10(max(kernels))) - low if kernels else 0
    down = math.ceil(math.log10(max(formats))) - low
    up, down = max(_FEWEST, up), max(_FEWEST, down)
    above = TOP + HEIGHT * up / (up + down)
    return _Scale(low, up, down, above, above + BAND)


def _drawn(
    sheet: Sheet, rows: Sequence[CostRow], failed: set[str], limit: float | None
) -> CostDrawing:
    scale, axis = _scale(rows, limit), sheet.axis
    step = (axis.right - axis.left) / len(rows)
    gap = step * 0.3 if step > 3 else 0.0
    growth = TOP + HEIGHT + BAND
    end = growth + BAND + ROOM + GROWTH
    most = max((row.added or 0.0 for row in rows if _is_size(row.added or 0.0)), default=0.0)

    def bar(at: int, row: CostRow) -> Bar:
        left, right = axis.left + at * step + gap / 2, axis.left + (at + 1) * step - gap / 2
        right, x = max(right, left + 1), round((left + right) / 2, 1)
        up = scale.length(row.cost.relative_kernel, scale.up)
        down = scale.length(row.cost.relative_format, scale.down)
        own = round(min(1.0, (row.added or 0.0) / most) * GROWTH, 1) if most else 0.0
        ok = row.name not in failed
        return Bar(
            x,
            f"M{left:.1f} {scale.above:.1f}v{-up:.1f}H{right:.1f}v{up:.1f}z" if up else "",
            f"M{left:.1f} {scale.below:.1f}v{down:.1f}H{right:.1f}v{-down:.1f}z" if down else "",
            f"M{left:.1f} {end:.1f}v{-own:.1f}H{right:.1f}v{own:.1f}z" if own else "",
            ok,
            "" if ok else "✗",
            round(scale.above - up, 1),
            round(end - own, 1),
            row.rank if row.rank and row.rank <= MOST_RANKED else None,
        )

    columns = [Column(row.name, marks=_marks(row)) for row in rows]
    labels = name_labels(sheet, columns)
    deepest = max((len(tick.label) for tick in labels), default=0)
    ticks = tuple(_ticks(scale))
    linear = (Tick(end, "0"), Tick(end - GROWTH, number(most, 2))) if most else ()
    touched = sheet.most_hits is None or len(rows) <= sheet.most_hits
    return CostDrawing(
        sheet=sheet,
        axis=axis,
        height=round(end + 24 + deepest * 4.6, 1),
        above=round(scale.above, 1),
        below=round(scale.below, 1),
        growth=growth,
        end=end,
        ticks=(*ticks, *linear),
        levels=tuple(Tick(t.at, f"{number(decibels(float(t.label)))} dB") for t in ticks),
        bars=tuple(bar(at, row) for at, row in enumerate(rows)),
        labels=labels,
        limit=_limit(scale, limit),
        hits=tuple(
            Hit(
                round(axis.left + (at + 0.5) * step, 1),
                round(axis.left + at * step, 1),
                round(step, 1),
                columns[at],
                tuple(_tip(row)),
            )
            for at, row in enumerate(rows)
            if touched
        ),
    )


def _marks(row: CostRow) -> tuple[str, ...]:
    """What keeps a point's name on the axis."""
    return ("costs most",) if row.rank == 1 else ()


def _tip(row: CostRow) -> list[str]:
    cost = row.cost
    kernel = f"kernel adds {number(cost.relative_kernel)}"
    lines = [row.name, kernel, f"format costs {number(cost.relative_format)}, SNR {row.cells[2]}"]
    if row.added:
        place = f", place {row.rank}" if row.rank else ""
        lines.append(f"{number(row.added)} of it added here{place}")
    return lines


def _ticks(scale: _Scale) -> list[Tick]:
    """Decades of both halves; of many, every second or so, counted from the middle."""
    step = max(1, math.ceil((scale.up + scale.down) / 8))
    up = [(scale.above - d * scale.unit, d) for d in range(0, scale.up + 1, step)]
    down = [(scale.below + d * scale.unit, d) for d in range(0, scale.down + 1, step)]
    return [Tick(round(y, 1), f"{10.0 ** (scale.low + d):g}") for y, d in (*up, *down)]


def _limit(scale: _Scale, limit: float | None) -> Tick | None:
    """Where the outputs' bars must end, if the user says so."""
    if limit is None:
        return None
    y = scale.below + scale.length(10 ** (-limit / 20), scale.down)
    return Tick(round(y, 1), f"the outputs' limit: {number(limit)} dB")
