"""The observer check: looking at a backend's states must not change what it gives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import numpy as np

from .adapter import Backend
from .dtypes import FORMATS, Array, dtype_name
from .measure.metrics import measure
from .result import Observer
from .states import Probe
from .tolerance import Policy
from .workers import in_threads

_observed: WeakKeyDictionary[Backend, dict[tuple[str, str, Policy], Observer]] = WeakKeyDictionary()
"""What was seen, by probe, depth and policy: looking twice at the same run teaches nothing."""


MOST_OBSERVED = 1024
"""Runs of one backend that are remembered."""
SAME_VALUES = "other bits for equal values, such as the sign of a zero"


class Observation:
    """One backend, looked at and not: what the instrumented run gave is kept by its hashes."""

    def __init__(
        self, seen: Backend, probe: Probe, policy: Policy, depth: str, apart: float = 0.0
    ) -> None:
        """`apart`: as far apart (L2, relative) as two honest runs of it may be anyway."""
        self._seen, self._probe, self._policy, self._honest = seen, probe, policy, apart
        self._key = (probe.sha256, depth, policy)
        self._traced: dict[str, str] | None = None

    def keep(self, traced: Mapping[str, Array]) -> Observation:
        """Take note of the outputs of the instrumented run; nothing of them stays in memory."""
        if self._seen.observable and self._key not in _observed.get(self._seen, {}):
            self._traced = _hashes(traced)
        return self

    def check(self, traced: Mapping[str, Array] | None = None) -> Observer:
        """Run plain, once, and compare the outputs with those of the instrumented run.

        Where they differ, it is run instrumented again, unless what that gave is at hand: `traced`.
        """
        if not self._seen.observable:
            return Observer(checked=False)
        observed = _observed.setdefault(self._seen, {})
        if self._key not in observed:
            plain = dict(self._seen.run(self._probe))
            same = _hashes(plain) == self._traced
            if len(observed) >= MOST_OBSERVED:
                observed.clear()
            observed[self._key] = Observer(True) if same else self._apart(plain, traced)
        return observed[self._key]

    def _apart(self, plain: dict[str, Array], traced: Mapping[str, Array] | None) -> Observer:
        """By how much they differ: only now are the outputs of both runs needed at once."""
        if not traced:
            # What lies in a runtime's own memory keeps all of that alive, weights and all.
            for name in list(plain):
                plain[name] = plain[name].copy()
            traced = self._seen.stream(self._probe, lambda state: None)
        alone = sorted(plain.keys() ^ traced.keys())
        broken = dict.fromkeys(alone, "one of the two runs alone gives it")
        harmless: dict[str, str] = {}
        worst, output, within = 0.0, "", not alone
        for name in (name for name in plain if name in traced):
            if plain[name].shape != traced[name].shape:
                shapes = [str(list(side[name].shape)) for side in (plain, traced)]
                within, broken[name] = False, f"its shape was {' and became '.join(shapes)}"
                continue
            own = (self._seen.info.dtype, dtype_name(plain[name]))
            formats = [FORMATS[n] for n in own if n in FORMATS]
            tolerance = self._policy.tolerance("logits", *formats)
            keep = self._probe.keep("logits", plain[name].shape)
            metrics = measure(plain[name], traced[name], tolerance, keep).metrics
            finite = all(np.isfinite(side[name]).all() for side in (plain, traced))
            honest = finite and 0 < metrics.rel_l2 <= self._honest
            within = within and (not metrics.mismatched or honest)
            if metrics.max_abs > worst:
                worst, output = metrics.max_abs, name
            if metrics.mismatched and not metrics.max_abs:
                broken[name] = f"{metrics.mismatched} of its values are NaN or Inf in one run"
            elif not metrics.max_abs and _hashes({"": plain[name]}) != _hashes({"": traced[name]}):
                same = np.array_equal(plain[name], traced[name], equal_nan=True)
                harmless[name] = SAME_VALUES if same else "it differs at padding alone"
        changes = broken or ({} if worst else harmless)
        if not changes:
            return Observer(True, False, within, worst, output)
        output = next(iter(changes))
        return Observer(True, False, within, worst, output, changes[output])


def observe(
    seen: Backend, probe: Probe, traced: Mapping[str, Array], policy: Policy, depth: str
) -> Observer:
    """The check at once, for outputs that are at hand anyway."""
    return Observation(seen, probe, policy, depth).keep(traced).check(traced)


def _hashes(outputs: Mapping[str, Array]) -> dict[str, str]:
    """By name; equal where dtype, shape and every bit are. Mapped ones are let go of one by one."""

    def hash_of(name: str) -> str:
        array = outputs[name]
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return f"{dtype_name(array)}{array.shape}{hashlib.sha256(raw.data).hexdigest()}"

    return dict(zip(outputs, in_threads(hash_of, list(outputs)), strict=True))
