"""What was allowed, and what would have been enough: as numbers, and as rules one can copy."""

from __future__ import annotations

import glob
import math
import re

from driftwalk.layer_drift import Allowed, LayerDrift
from driftwalk.result import Report

from .numbers import number, round_up
from .point_words import name_of
from .sentences import bound


def allowance(tolerance: Allowed | None) -> str:
    """What an element was allowed, short: `1.2e-05 + 1.3e-06·|r|`."""
    if tolerance is None:
        return number(None)
    fixed, relative = number(tolerance.atol * tolerance.scale), f"{number(tolerance.rtol)}·|r|"
    if not tolerance.rtol:
        return fixed
    return f"{fixed} + {relative}" if tolerance.atol else relative


def would_pass(layer: LayerDrift) -> str:
    """The smallest tolerance that would let this point pass, as a rule one can copy."""
    if layer.verdict == "nonfinite":
        return "none: NaN and Inf never pass"
    if bound(layer):
        return "cannot be told from a signature"
    if layer.metrics is None or layer.tolerance is None:
        return "none"
    numbers = passing_tolerance(layer)
    return f"{glob_of(layer.point.name)}={','.join(numbers)}"


def glob_of(point: str) -> str:
    """A glob that matches a point's name, and can stand before the `=` of a rule."""
    return re.sub(r"=|\A\s|\s\Z", "?", glob.escape(point))


def passing_tolerance(layer: LayerDrift) -> tuple[str, ...]:
    """ATOL[, RTOL] that would pass, each rounded up, as numbers that multiply nothing."""
    metrics, tolerance = layer.metrics, layer.tolerance
    if metrics is None or tolerance is None:
        return ()
    # A hair more than needed, for `needed` is itself the result of a division.
    hair = 1 + 1e-9
    # Calibrated in other norms, or no multiple of a zero allowance is enough: a fixed rule.
    if tolerance.k is not None or not math.isfinite(tolerance.needed):
        return (round_up(metrics.max_abs * hair),)
    factor = tolerance.needed * hair
    found = [tolerance.atol * tolerance.scale * factor, tolerance.rtol * factor]
    return tuple(round_up(value) for value in (found if tolerance.rtol else found[:1]))


def overall_tolerance(report: Report) -> str:
    """By how much the tolerance would have to grow for everything compared to pass; or nothing."""
    beyond = [
        (layer.tolerance.needed, layer)
        for layer in report.layers
        if layer.verdict == "drift" and layer.tolerance
    ]
    if not beyond or any(bound(layer) for _, layer in beyond):  # a signature cannot tell
        return ""
    needed, worst = max(beyond, key=lambda pair: pair[0])
    if not math.isfinite(needed):
        return f"{name_of(worst)} differs where no difference at all is allowed."
    finite = "finite " if any(x.verdict == "nonfinite" for x in report.layers) else ""
    wider = f"A tolerance {round_up(needed, 3)} times as wide"
    return f"{wider} would let every {finite}point compared pass; {name_of(worst)} needs it."
