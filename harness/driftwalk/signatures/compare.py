"""A report from two traces of which one, or both, are known by their signatures only.

A point passes when the upper bound of its difference is within tolerance, drifts when the lower
bound is beyond it, and is `unknown` when the tolerance lies between the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ..dtypes import FORMATS, Format
from ..errors import UsageError
from ..judge.exact import NOTE
from ..layer_drift import Allowed, Bounds, Dtypes, LayerDrift, PointVerdict
from ..make_report import Terms, report_of
from ..measure.metric_list import METRICS, Metrics, Nonfinite
from ..mixture import nominal_formats
from ..result import Report
from ..states import Point, Trace
from ..tolerance import Policy, PolicyLike, make_policy
from .bounds import CHANCE, as_bounds, difference, needed, needed_l2
from .data import Signature
from .state import StateSignature

L2 = "l2:"
"""Before a number: the policy that a signature can decide best, relative L2."""

SAYS = (
    "Compared by signature: the numbers are bounds, not measurements. Each holds but for a chance "
    f"of {CHANCE:g}; `≤` stands before the upper, `≥` before the lower, and points that are equal "
    "bit by bit are so by their hashes."
)


@dataclass(frozen=True)
class Judge:
    """A policy, and the formats both backends compute in."""

    policy: Policy
    l2: float | None
    nominal: Mapping[str, tuple[Format, ...]]

    def bounds(
        self, reference: StateSignature, candidate: StateSignature, same_seed: bool
    ) -> tuple[Bounds, Allowed]:
        """Between what the difference lies, and what was allowed (needed: the upper bound)."""
        found, rms = difference(reference, candidate, same_seed), reference.moments.rms
        if self.l2 is not None:
            low, high = needed_l2(reference, found, self.l2)
            return as_bounds(found, low, high), Allowed(self.l2, 0.0, rms, high, norm="l2")
        names = (reference.dtype, candidate.dtype)
        formats = [FORMATS[name] for name in names if name in FORMATS]
        formats += self.nominal[reference.name]
        room = self.policy.tolerance(reference.name, *formats)
        scale = rms if room.scale == "rms" else 1.0
        low, high = needed(reference, found, room, scale)
        return as_bounds(found, low, high), Allowed(room.atol, room.rtol, scale, high)


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
    judge = _judge(policy, ours, theirs)
    if judge.l2 is None:
        judge.policy.check_rules(ours.names)
    allow = tuple(allow_missing)
    rows = [
        _row(state, theirs.state(state.name), judge, allow, ours.seed == theirs.seed)
        for state in ours.states
    ]
    rows += [
        _alone(state, "extra", allow) for state in theirs.states if ours.state(state.name) is None
    ]
    told = [SAYS, *notes]
    if ours.seed != theirs.seed:
        told.append("The signatures have different seeds: their projections say nothing together.")
    model = {"label": "two traces", **(ours.model or theirs.model)}
    terms = Terms(judge.policy, allow, model=model, notes=tuple(told))
    numbered = tuple(replace(row, index=index) for index, row in enumerate(rows))
    return report_of(numbered, ours.probe, (ours.backend, theirs.backend), terms, {}, None)


def _judge(policy: PolicyLike, ours: Signature, theirs: Signature) -> Judge:
    nominal = nominal_formats(ours.names, ours.backend, theirs.backend)
    if isinstance(policy, str) and policy.startswith(L2):
        return Judge(Policy(policy), l2_limit(policy), nominal)
    return Judge(make_policy(policy), None, nominal)


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
    same_seed: bool,
) -> LayerDrift:
    if candidate is None:
        return _alone(reference, "missing", allow)
    point, dtypes = _point(reference), Dtypes(reference.dtype, candidate.dtype)
    if (reference.shape, reference.counted) != (candidate.shape, candidate.counted):
        note = f"reference {list(reference.shape)}, candidate {list(candidate.shape)}"
        return LayerDrift(point, 0, reference.shape, dtypes, "shape", note=note)
    if reference.dtype not in FORMATS or candidate.dtype not in FORMATS:
        return _exact(point, dtypes, reference, candidate)
    bounds, allowed = judge.bounds(reference, candidate, same_seed)
    verdict = _verdict(candidate, bounds)
    if verdict == "drift":
        allowed = replace(allowed, needed=bounds.needed_low)
    return LayerDrift(
        point,
        0,
        reference.shape,
        dtypes,
        verdict,
        _metrics(reference, candidate, bounds, verdict == "drift"),
        allowed,
        note="" if bounds.exact else _words(bounds, verdict),
        bounds=bounds,
    )


def _exact(
    point: Point, dtypes: Dtypes, reference: StateSignature, candidate: StateSignature
) -> LayerDrift:
    """Whole numbers: the same hash, or drift by who knows how much."""
    same = (reference.dtype, reference.sha256) == (candidate.dtype, candidate.sha256)
    low, high = (0.0, 0.0) if same else (1.0, math.inf)
    needed = 0.0 if same else math.inf
    l2_high = high * math.sqrt(max(1, reference.counted))
    bounds = Bounds(same, 0.0 if same else math.nan, low, l2_high, low, high, needed, needed, 0.0)
    return LayerDrift(
        point,
        0,
        reference.shape,
        dtypes,
        "ok" if same else "drift",
        _metrics(reference, candidate, bounds, not same),
        Allowed(0.0, 0.0, 1.0, needed),
        note=NOTE,
        bounds=bounds,
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
    relative = l2 / size if size > 0 else (math.inf if l2 > 0 else 0.0)
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


def _alone(state: StateSignature, verdict: PointVerdict, allow: tuple[str, ...]) -> LayerDrift:
    missing = verdict == "missing"
    note = (
        "the candidate gave no state here"
        if missing
        else "the candidate has this point, the reference does not"
    )
    sides = Dtypes(state.dtype, None) if missing else Dtypes(None, state.dtype)
    allowed = any(fnmatchcase(state.name, glob) for glob in allow)
    return LayerDrift(_point(state), 0, state.shape, sides, verdict, note=note, allowed=allowed)


def _point(state: StateSignature) -> Point:
    return Point(state.name, state.module)
