"""What the numbers that kernels leave come to."""

from __future__ import annotations

from functools import lru_cache

from driftwalk.dtypes import Array
from driftwalk.measure.reduction import Reduced
from driftwalk.measure.sums import Sums
from driftwalk.measure.ulp import bucket_of, start_of

from .fields import EDGES, HEAD

_LOW, _TINY = 2.0**-80, 1e-30
"""Below the first squares may be lost to float32; below the second, digits."""
_HEAD = HEAD.value


def read(told: Array, count: int, width: int, fast: bool) -> Reduced | None:
    """The numbers of `count` rows by name; None where something is left to the host.

    `fast` tells that both states are float16, for which float32 is wide enough.
    """
    # fmt: off
    (
        dd, rc, abs_d, *above, far, poison, beyond, max_rel, exceeded,
        first, scale, floor, rr, cc, _, least_rel, _, least_rtol, place, worst_r, worst_c,
    ) = told[:_HEAD].tolist()
    # fmt: on
    lost = 0 < floor < _TINY or 0 < least_rel < _TINY or 0 < least_rtol < _TINY
    wide = fast or (rr > _LOW and cc > _LOW and (floor > 0 or least_rtol == 0))
    elements = count * width
    p99 = _percentile(first, above, far, elements)
    if poison or lost or not wide or p99 is None:
        return None
    if dd < 1e-3 * rr:
        # Of states this near, the small difference says more than a large product.
        rc = (rr + cc - dd) / 2
    sums = Sums(
        count=elements,
        abs_d=abs_d,
        dd=dd,
        rr=rr,
        cc=cc,
        rc=rc,
        max_abs=abs(worst_c - worst_r),
        max_rel=max_rel,
        worst_at=divmod(int(place), width),
        exceeded=exceeded,
        mismatched=int(beyond),
        ulp_max=far,
        ulp_p99=p99,
        row_l2=[told[_HEAD:]],
    )
    return Reduced(sums, scale, (worst_r, worst_c))


def _percentile(first: float, above: list[float], far: float, elements: int) -> float | None:
    """The 99th of the distances, as driftwalk.measure.ulp has it; None if it was not counted for.

    `above` are the numbers of distances from each edge on, `first` the first edge.
    """
    most = elements - 0.99 * elements
    if above[0] <= most:
        return 0.0 if first <= 1 else None
    edges = _edges(first)
    for edge, more in zip(edges, above[1:], strict=False):
        if more <= most:
            return min(edge, far)
    return min(edges[-2], far) if far < edges[-1] else None


@lru_cache(maxsize=256)
def _edges(first: float) -> tuple[float, ...]:
    """The distances that were counted from, and the next."""
    edges = [first]
    for _ in range(EDGES.value):
        edges.append(max(start_of(bucket_of(edges[-1]) + 1), edges[-1] + 1))
    return tuple(edges)
