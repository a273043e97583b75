"""The noise of a quantised model, pooled over its layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from ..measure.norms import ZERO, Norms, ratio
from ..names import layer_of
from .calibrate import Calibration
from .honest import ROOM, Honest, limits


def pooled(calibration: Calibration, everywhere: bool = False) -> Calibration:
    """Every layer allowed, for its size, what the noisiest is; every point, if `everywhere`.

    In a quantised model a rounding tips over by chance, here or there: that none did in a layer of
    the yardstick does not mean that none may, nor that few tokens of it did that many may not.
    """

    def raised_to_worst(points: Mapping[str, Honest]) -> dict[str, Honest]:
        points = {name: _anywhere(one) for name, one in points.items()}
        layers = {name: one for name, one in points.items() if layer_of(name)}
        shares = (one.noise.each(ratio, one.size) for one in layers.values())
        worst = reduce(Norms.or_larger, shares, ZERO)
        alone = max((one.alone for one in layers.values()), default=1.0)
        raised = {
            name: replace(
                one,
                noise=one.noise.or_larger(worst.times(one.size)),
                alone=max(one.alone, alone),
            )
            for name, one in (points if everywhere else layers).items()
        }
        return {name: raised.get(name, one) for name, one in points.items()}

    return replace(
        calibration, total=raised_to_worst(calibration.total), own=raised_to_worst(calibration.own)
    )


def _anywhere(known: Honest) -> Honest:
    """The worst token may be any token, the worst channel any channel.

    A single number that tips over is all of its channel: as far as it may go, the channel may, if
    that is due to a few of its numbers. All of them together are held to what channels have.
    """
    noise, most = known.noise, limits(known.roundoff, known.rows, known.width, known.apart)
    further = most.peak * ROOM.peak / (most.channel * ROOM.channel)
    alone = ratio(noise.peak * further / math.sqrt(max(1, known.rows)), noise.channel)
    worst = noise.token_worst
    noise = replace(noise, token_middle=worst, token_upper=worst, channel_middle=noise.channel)
    return replace(known, noise=noise, alone=min(max(1.0, alone), further))
