"""The observer check: looking at a backend's states must not change what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from .adapter import Backend
from .dtypes import FORMATS, Array, dtype_name
from .metrics import measure
from .result import Observer
from .states import Probe, same_bits
from .tolerance import Policy

_observed: WeakKeyDictionary[Backend, dict[tuple[str, str, Policy], Observer]] = WeakKeyDictionary()
"""What was seen, by probe, depth and policy: looking twice at the same run teaches nothing."""


def observe(
    seen: Backend, probe: Probe, traced: Mapping[str, Array], policy: Policy, depth: str
) -> Observer:
    """Run plain, once, and hold the outputs against those of the instrumented run."""
    if not seen.observable:
        return Observer(checked=False)
    known, key = _observed.setdefault(seen, {}), (probe.sha256, depth, policy)
    if key not in known:
        known[key] = _compare_outputs(seen, probe, traced, policy)
    return known[key]


def _compare_outputs(
    seen: Backend, probe: Probe, traced: Mapping[str, Array], policy: Policy
) -> Observer:
    plain = seen.run(probe)
    if same_bits(plain, traced):
        return Observer(checked=True)
    worst, output, within = 0.0, "", plain.keys() == traced.keys()
    for name in plain.keys() & traced.keys():
        if plain[name].shape != traced[name].shape:
            within, output = False, name
            continue
        formats = [FORMATS[n] for n in (seen.info.dtype, dtype_name(plain[name])) if n in FORMATS]
        tolerance = policy.tolerance("logits", *formats)
        keep = probe.keep("logits", plain[name].shape)
        metrics = measure(plain[name], traced[name], tolerance, keep).metrics
        within = within and not metrics.mismatched
        if metrics.max_abs >= worst:
            worst, output = metrics.max_abs, name
    return Observer(True, False, within, worst, output)
