"""Two traces held against each other: no model runs, and no framework is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .assembly import Terms, assemble
from .errors import UsageError
from .result import Report
from .states import Trace
from .tolerance import DEFAULT_POLICY, PolicyLike, make_policy
from .walk import Walk


def compare(
    reference: Trace,
    candidate: Trace,
    policy: PolicyLike = DEFAULT_POLICY,
    allow_missing: Sequence[str] = (),
) -> Report:
    """A report from two traces alone; no model runs."""
    if reference.probe.sha256 != candidate.probe.sha256:
        raise UsageError(
            "The two traces were made from different probes: "
            f"{reference.probe.difference(candidate.probe)}."
        )
    _same_weights(reference.model, candidate.model)
    judged = make_policy(policy)
    walk = Walk(reference, candidate.backend, judged, allow_missing)
    walk.meet_trace(candidate)
    alone = "Two traces alone have no truth to be calibrated by: the dtype table decided."
    notes = [alone] if judged.calibrated else []
    notes += _machines(reference.environment, candidate.environment)
    model = {"label": "two traces", **(reference.model or candidate.model)}
    terms = Terms(judged, tuple(allow_missing), model=model, notes=tuple(notes))
    return assemble(walk, reference, candidate.backend, terms, {})


def _same_weights(reference: Mapping[str, str], candidate: Mapping[str, str]) -> None:
    """Refuse traces that are known to be of different models."""
    first, second = (told.get("fingerprint") for told in (reference, candidate))
    if first and second and first != second:
        names = [told.get("label", "a model") for told in (reference, candidate)]
        raise UsageError(
            "The two traces were made from different weights: "
            f"{names[0]} {first[:12]} and {names[1]} {second[:12]}."
        )


def _machines(reference: Mapping[str, str], candidate: Mapping[str, str]) -> list[str]:
    """In what the machines differ on which two traces were recorded, where both are known."""
    if not (reference and candidate):
        return []
    names = [n for n in {**reference, **candidate} if reference.get(n) != candidate.get(n)]
    told = [f"{n} {reference.get(n, '?')} and {candidate.get(n, '?')}" for n in names]
    return [f"Recorded on different machines: {'; '.join(told)}."] if told else []
