"""The noise of a quantised model, pooled over its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from ..measure.norms import ZERO, Norms, ratio
from ..names import layer_of
from .calibrate import Calibration
from .honest import Honest


def pooled(calibration: Calibration, everywhere: bool = False) -> Calibration:
    """Every layer allowed, for its size, what the noisiest is; every point, if `everywhere`.

    In a quantised model a rounding tips over by chance, here or there: that none did in a layer of
    the yardstick does not mean that none may, nor that few tokens of it did that many may not.
    """

    def raised_to_worst(points: Mapping[str, Honest]) -> dict[str, Honest]:
        points = {name: replace(one, noise=_anywhere(one.noise)) for name, one in points.items()}
        layers = {name: one for name, one in points.items() if layer_of(name)}
        shares = (one.noise.each(ratio, one.size) for one in layers.values())
        worst = reduce(Norms.or_larger, shares, ZERO)
        raised = {
            name: replace(one, noise=one.noise.or_larger(worst.times(one.size)))
            for name, one in (points if everywhere else layers).items()
        }
        return {name: raised.get(name, one) for name, one in points.items()}

    return replace(
        calibration, total=raised_to_worst(calibration.total), own=raised_to_worst(calibration.own)
    )


def _anywhere(noise: Norms) -> Norms:
    """The worst token may be any token, the worst channel any channel."""
    worst = noise.token_worst
    return replace(noise, token_middle=worst, token_upper=worst, channel_middle=noise.channel)
