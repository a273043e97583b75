"""Two traces, or their signatures, against each other: no model runs, no framework is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .errors import UsageError
from .judge.walk import Walk
from .make_report import Terms, assemble
from .result import Report
from .signatures.compare import L2, compare_signed
from .signatures.data import Signature
from .states import Probe, Trace
from .tolerance import DEFAULT_POLICY, PolicyLike, make_policy


def compare(
    reference: Trace | Signature,
    candidate: Trace | Signature,
    policy: PolicyLike = DEFAULT_POLICY,
    allow_missing: Sequence[str] = (),
) -> Report:
    """A report from two traces alone; no model runs. A signature gives bounds, and says so.

    `policy="l2:1e-5"`, relative L2, is one more that signatures can be judged by.
    """
    _same_probe(reference, candidate)
    _same_weights(reference.model, candidate.model)
    machines = _machines(reference, candidate)
    if isinstance(reference, Signature) or isinstance(candidate, Signature):
        return compare_signed(reference, candidate, policy, allow_missing, machines)
    if isinstance(policy, str) and policy.startswith(L2):
        raise UsageError(
            f"Policy {policy!r} is for signatures; whole traces are compared element by element: "
            "dtype, or fixed:ATOL[,RTOL]."
        )
    judged = make_policy(policy)
    walk = Walk(reference, candidate.backend, judged, allow_missing)
    walk.meet_trace(candidate)
    alone = "Two traces alone have no truth to be calibrated by: the dtype table decided."
    notes = (alone, *machines) if judged.calibrated else tuple(machines)
    model = {"label": "two traces", **(reference.model or candidate.model)}
    terms = Terms(judged, tuple(allow_missing), model=model, notes=notes)
    return assemble(walk, reference, candidate.backend, terms, {})


def _same_probe(reference: Trace | Signature, candidate: Trace | Signature) -> None:
    """Refuse traces of different inputs, with the difference where both are at hand."""
    if reference.probe.sha256 == candidate.probe.sha256:
        return
    ours, theirs = probe_of(reference), probe_of(candidate)
    hashes = f"{reference.probe.sha256[:12]} and {candidate.probe.sha256[:12]}"
    difference = ours.difference(theirs) if ours and theirs else ""
    raise UsageError(f"The two traces were made from different probes: {difference or hashes}.")


def probe_of(side: Trace | Signature) -> Probe | None:
    """The inputs it was made from, where they were kept."""
    return side.inputs_as_probe() if isinstance(side, Signature) else side.probe


def _same_weights(reference: Mapping[str, str], candidate: Mapping[str, str]) -> None:
    """Refuse traces that are known to be of different models."""
    first, second = (model.get("fingerprint") for model in (reference, candidate))
    if first and second and first != second:
        raise UsageError(
            "The two traces were made from different weights: "
            f"{reference.get('label', 'a model')} {first[:12]} and "
            f"{candidate.get('label', 'a model')} {second[:12]}."
        )


def _machines(reference: Trace | Signature, candidate: Trace | Signature) -> list[str]:
    """In what the machines differ on which two traces were recorded, where both are known."""
    ours, theirs = dict(reference.environment), dict(candidate.environment)
    if not (ours and theirs):
        return []
    for name in reference.backend.versions.keys() & candidate.backend.versions.keys():
        ours[name] = reference.backend.versions[name]
        theirs[name] = candidate.backend.versions[name]
    differing = [n for n in sorted(ours.keys() & theirs.keys()) if ours[n] != theirs[n]]
    words = [f"{n} {ours[n]} and {theirs[n]}" for n in differing]
    return [f"Recorded on different machines: {'; '.join(words)}."] if words else []
