"""How far both sides of a pair of tensors are from the truth, and how far they may be.

With x the graph in float64, y the same graph as written (the yardstick), s a side, u units of
roundoff and the scale of `rows`:

    drift at s   <=>   |s - x|  >  min( NODE_NOISES |y - x| u_s / u_y,  sqrt(u_s) scale )  +  floor
    floor         =    a few u_s times the scale

in max-abs and in L2. A side in a coarser format may be off by as much as its units are larger; at
least half of the digits of its format must be right in any case. One run of the yardstick is one
draw of honest noise: what is beyond is asked where it comes from before it counts (`weighing`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..dtypes import FORMATS, Array, Format, format_of, loosest
from ..judge.constants import NODE_NOISES, TIE_OF_GRAPHS
from ..layer_drift import Allowed, Closer, LayerDrift, Side, TruthErrors
from ..measure.norms import Norms
from .own_doing import noise_of


@dataclass(frozen=True, eq=False)
class Witnesses:
    """One tensor as the truth has it, and as the yardstick has it."""

    truth: Array
    yardstick: Array


def by_truth(
    row: LayerDrift,
    sides: Mapping[Side, Array],
    witnesses: Witnesses,
    scale: float,
    dtypes: Mapping[Side, str],
) -> LayerDrift:
    """The row, judged by how far each side is from the truth; `scale` is that of an element.

    As it is, where the truth is no measure of it: of another shape, or nowhere finite.
    """
    x, y = witnesses.truth.astype(np.float64), witnesses.yardstick
    shapes = {x.shape, y.shape, *(side.shape for side in sides.values())}
    if row.verdict not in ("ok", "drift") or len(shapes) > 1 or not x.size:
        return row
    kept = np.isfinite(x) & np.isfinite(y)
    for side in sides.values():
        kept &= np.isfinite(side)
    if not kept.any():
        return row
    true, noise = x[kept], _norms(y[kept] - x[kept])
    errors = {name: _norms(side[kept] - true) for name, side in sides.items()}
    size, count = _norms(true), math.sqrt(true.size)
    scales = Norms(max(size.l2, scale * count), max(size.max_abs, scale))
    yard = format_of(y) or FORMATS["fp32"]
    used: dict[str, Allowed] = {}
    limits: dict[str, Norms] = {}
    for name, error in errors.items():
        own = _format(sides[name], dtypes[name], mixed=len(set(dtypes.values())) > 1)
        most = limits[name] = _allowed(noise, scales, own, yard)
        needed, norm = max(
            (_over(error.max_abs, most.max_abs), "max_abs"), (_over(error.l2, most.l2), "l2")
        )
        used[name] = Allowed(most.max_abs, 0.0, 1.0, needed, NODE_NOISES, norm, name)
    worst = max(used.values(), key=lambda one: one.needed)
    mine, theirs = errors["reference"].l2, errors["candidate"].l2
    ratio = _over(getattr(errors["candidate"], worst.norm), getattr(noise, worst.norm))
    norms: dict[str, Norms] = {str(name): error for name, error in errors.items()}
    norms |= {"yardstick": noise, "allowed": limits["candidate"]}
    told = TruthErrors(mine, theirs, noise.l2, size.l2, ratio, _closer(mine, theirs), norms)
    drifts = not worst.needed <= 1
    metrics = row.metrics
    if metrics is not None and not drifts:
        metrics = replace(metrics, mismatched=0)
    return replace(
        row,
        verdict="drift" if drifts else "ok",
        metrics=metrics,
        tolerance=worst,
        truth=told,
        sides=used,
        tokens=row.tokens if drifts else None,
    )


def _allowed(noise: Norms, scales: Norms, own: Format, yard: Format) -> Norms:
    coarser = max(1.0, own.roundoff / yard.roundoff)
    ceiling, floor = math.sqrt(own.roundoff), noise_of(own)

    def most(of_noise: float, scale: float) -> float:
        return min(NODE_NOISES * of_noise * coarser, ceiling * scale) + floor * scale

    return Norms(most(noise.l2, scales.l2), most(noise.max_abs, scales.max_abs))


def _format(side: Array, dtype: str, mixed: bool) -> Format:
    """What a side computes in: by its tensor; where the graphs differ, also by its weights."""
    known = [f for f in (format_of(side),) if f is not None]
    if mixed and dtype in FORMATS:
        known.append(FORMATS[dtype])
    return loosest(known)


def _norms(difference: Array) -> Norms:
    flat = difference.reshape(-1).astype(np.float64, copy=False)
    return Norms(float(np.linalg.norm(flat)), float(np.max(np.abs(flat), initial=0.0)))


def _over(error: float, most: float) -> float:
    return 0.0 if error == 0 else error / most if most > 0 else math.inf


def _closer(reference: float, candidate: float) -> Closer:
    if max(reference, candidate) <= TIE_OF_GRAPHS * min(reference, candidate):
        return "tie"
    return "candidate" if candidate < reference else "reference"
