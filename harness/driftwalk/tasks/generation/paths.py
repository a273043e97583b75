"""Each side's decoding against its own run on the whole sequence: is the cache to be trusted?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...layer_drift import LayerDrift, Side
from ...measure.halves import widened
from ...names import is_of_cache
from ...states import Trace
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
        most = float((off if keep is None else off[keep]).max(initial=0.0))
        room = allowed.atol + allowed.rtol * allowed.scale
        equal = equal and most == 0
        used[name] = most / room if room else 0.0 if most == 0 else np.inf
    point = max(used, key=lambda name: used[name], default="")
    worst = used.get(point, 0.0)
    agreement: Agreement = "broken"
    if equal:
        agreement = "bit-exact"
    elif worst <= BOTH:
        agreement = "within noise"
    return CachePath(agreement, worst, point)
