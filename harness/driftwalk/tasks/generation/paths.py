"""Each side's decoding against its own run on the whole sequence: is the cache to be trusted?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...layer_drift import LayerDrift, Side
from ...measure.halves import widened
from ...names import is_of_cache
from ...states import Trace
from .cells import room_of, shares
from .result import Agreement, CachePath

BOTH = 2.0
"""Each of two runs may be as far from the truth as is allowed: so far may they be apart."""


def cache_path(whole: Trace, decoded: Trace, rows: Iterable[LayerDrift], side: Side) -> CachePath:
    """How far the two runs of one side are apart, in units of what is allowed it."""
    used: dict[str, float] = {}
    equal = True
    for row in rows:
        name = row.point.name
        a, b = whole.state(name), decoded.state(name)
        allowed = row.sides.get(side, row.tolerance)
        if a is None or b is None or a.shape != b.shape or is_of_cache(name) or allowed is None:
            continue
        keep = whole.probe.keep(name, a.shape)
        with np.errstate(all="ignore"):
            off = np.abs(widened(a.array).astype(np.float64) - widened(b.array))
        equal = equal and not (off if keep is None else off[keep]).any()
        used[name] = float(shares(off, room_of(allowed, a.array), keep).max(initial=0.0))
    point = max(used, key=lambda name: used[name], default="")
    worst = used.get(point, 0.0)
    agreement: Agreement = "broken"
    if equal:
        agreement = "bit-exact"
    elif worst <= BOTH:
        agreement = "within noise"
    return CachePath(agreement, worst, point)
