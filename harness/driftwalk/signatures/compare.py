"""A report from two traces of which one, or both, are known by their signatures only.

A point passes when the upper bound of its difference is within tolerance, drifts when the lower
bound is beyond it, and is `unknown` when the tolerance lies between the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..dtypes import FORMATS, Format
from ..errors import UsageError
from ..judge.constants import SIGNATURE_CHANCE
from ..judge.depth import alone, unlike
from ..judge.exact import NOTE
from ..layer_drift import Allowed, Bounds, Dtypes, LayerDrift, PointVerdict
from ..make_report import Terms, report_of
from ..measure.metric_list import METRICS, Metrics, Nonfinite
from ..measure.norms import ratio
from ..mixture import nominal_formats
from ..result import Report
from ..states import Trace
from ..tolerance import Policy, PolicyLike, make_policy
from .bounds import EQUAL, UNEQUAL, difference, needed, needed_l2
from .data import Signature
from .make import StateSignature

L2 = "l2:"
"""Before a number: the policy that a signature can decide best, relative L2."""

SAYS = (
    "Compared by signature: the numbers are bounds, not measurements. Each holds but for a chance "
    f"of {SIGNATURE_CHANCE:g}; `≤` stands before the upper, `≥` before the lower, and points that "
    "are equal bit by bit are so by their hashes."
)


@dataclass(frozen=True)
class Judge:
    """A policy, and the formats both backends compute in."""

    policy: Policy
    l2: float | None
    nominal: Mapping[str, tuple[Format, ...]]
    same_seed: bool

    def bounds(
        self, reference: StateSignature, candidate: StateSignature
    ) -> tuple[Bounds, Allowed]:
        """Between what the difference lies, and what was allowed (needed: the upper bound)."""
        bounds, samples = difference(reference, candidate, self.same_seed)
        rms = reference.moments.rms
        if self.l2 is not None:
            low, high = needed_l2(reference, bounds, self.l2)
            allowed = Allowed(self.l2, 0.0, rms, high, norm="l2")
        else:
            formats = (FORMATS[state.dtype] for state in (reference, candidate))
            nominal = self.nominal[reference.name]
            room = self.policy.tolerance(reference.name, *formats, *nominal)
            scale = rms if room.scale == "rms" else 1.0
            low, high = needed(reference, bounds, samples, room, scale)
            allowed = Allowed(room.atol, room.rtol, scale, high)
        return replace(bounds, needed_low=low, needed_high=high), allowed


def compare_signed(
    reference: Trace | Signature,
    candidate: Trace | Signature,
    policy: PolicyLike,
    allow_missing: Sequence[str] = (),
    notes: Iterable[str] = (),
) -> Report:
    """A report whose numbers are bounds; both sides are of one probe and, if known, one model."""
    seed = next(side.seed for side in (reference, candidate) if isinstance(side, Signature))
    ours, theirs = (
        s if isinstance(s, Signature) else Signature.of(s, seed) for s in (reference, candidate)
    )
    if isinstance(policy, str) and policy.startswith(L2):
        rules, limit = Policy(policy), l2_limit(policy)
    else:
        rules, limit = make_policy(policy), None
        rules.check_rules(ours.names)
    nominal = nominal_formats(ours.names, ours.backend, theirs.backend)
    judge = Judge(rules, limit, nominal, ours.seed == theirs.seed)
    allow = tuple(allow_missing)
    rows = [_row(state, theirs.state(state.name), judge, allow) for state in ours.states]
    extra = [state for state in theirs.states if ours.state(state.name) is None]
    rows += [alone(s.point, s.shape, s.dtype, "extra", allow) for s in extra]
    said = [SAYS, *notes]
    if not judge.same_seed:
        said.append("The signatures have different seeds: their projections say nothing together.")
    model = {"label": "two traces", **(ours.model or theirs.model)}
    terms = Terms(rules, allow, model=model, notes=tuple(said))
    numbered = tuple(replace(row, index=index) for index, row in enumerate(rows))
    return report_of(numbered, ours.probe, (ours.backend, theirs.backend), terms, {}, None)


def l2_limit(policy: str) -> float:
    """What `l2:TOLERANCE` says."""
    try:
        limit = float(policy.removeprefix(L2))
    except ValueError:
        limit = math.nan
    if not 0 <= limit < math.inf:
        raise UsageError(f"Cannot read policy {policy!r}; write l2:TOLERANCE, as l2:1e-5.")
    return limit


def _row(
    reference: StateSignature,
    candidate: StateSignature | None,
    judge: Judge,
    allow: tuple[str, ...],
) -> LayerDrift:
    shape = reference.shape
    if candidate is None:
        return alone(reference.point, shape, reference.dtype, "missing", allow)
    dtypes = Dtypes(reference.dtype, candidate.dtype)
    if (shape, reference.counted) != (candidate.shape, candidate.counted):
        return unlike(reference.point, shape, candidate.shape, dtypes)
    verdict: PointVerdict
    if reference.dtype in FORMATS and candidate.dtype in FORMATS:
        bounds, allowed = judge.bounds(reference, candidate)
        verdict = _verdict(candidate, bounds)
        note = "" if bounds.exact else _words(bounds, verdict)
    else:  # whole numbers: the same hash, or drift by who knows how much
        same = (reference.dtype, reference.sha256) == (candidate.dtype, candidate.sha256)
        bounds, verdict, note = (EQUAL, "ok", NOTE) if same else (UNEQUAL, "drift", NOTE)
        allowed = Allowed(0.0, 0.0, 1.0, bounds.needed_high)
    if verdict == "drift":
        allowed = replace(allowed, needed=bounds.needed_low)
    metrics = _metrics(reference, candidate, bounds, verdict == "drift")
    return LayerDrift(
        reference.point, 0, shape, dtypes, verdict, metrics, allowed, note=note, bounds=bounds
    )


def _verdict(candidate: StateSignature, bounds: Bounds) -> PointVerdict:
    if candidate.nonfinite:
        return "nonfinite"
    if bounds.needed_low > 1:
        return "drift"
    return "ok" if bounds.needed_high <= 1 else "unknown"


def _metrics(
    reference: StateSignature, candidate: StateSignature, bounds: Bounds, lower: bool
) -> Metrics:
    """The bounds that decided, in the place of what was measured: all else is not known."""
    l2 = bounds.l2_low if lower else bounds.l2_high
    size, root = reference.l2, math.sqrt(max(1, reference.counted))
    relative = ratio(l2, size)
    known = {
        "max_abs": bounds.max_abs_low if lower else bounds.max_abs_high,
        "rmse": l2 / root,
        "rel_l2": relative,
        "snr_db": -20 * math.log10(relative) if relative > 0 else math.inf,
    }
    unknown = {m.name: m.no_difference if bounds.exact else math.nan for m in METRICS}
    return Metrics(
        **(unknown | known),
        mismatched=int(lower),
        total=reference.counted,
        nonfinite=Nonfinite(reference.nonfinite, candidate.nonfinite),
        worst=None,
    )


def _words(bounds: Bounds, verdict: PointVerdict) -> str:
    """A point in words that say they are bounds."""
    used = f"between {bounds.needed_low:.2g} and {bounds.needed_high:.2g} of the allowance"
    text = {
        "ok": f"within tolerance: {used}",
        "drift": f"beyond tolerance: {used}",
        "unknown": f"cannot be told from a signature: {used}",
    }.get(verdict, "not finite")
    return (
        f"{text}; L2 of the difference between {bounds.l2_low:.2g} and {bounds.l2_high:.2g}, its "
        f"largest element between {bounds.max_abs_low:.2g} and {bounds.max_abs_high:.2g} (bounds)"
    )
