"""From a walk to a report: what was found, and all that is said of where it came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from .adapter import Backend, BackendInfo
from .environment import environment, now, this_tool
from .errors import DriftwalkError
from .judge.gate import run_verdict
from .judge.walk import Walk, coverage
from .layer_drift import LayerDrift, both_or_one
from .measure.decisions import Decisions
from .other_inputs import in_words
from .result import InputInfo, Observer, PolicyInfo, ProbeInfo, Report, RuleInfo
from .spec import Spec
from .states import Probe, Trace
from .tolerance import Policy


@dataclass(frozen=True)
class Terms:
    """What a run is judged by, and what its report says of where it came from."""

    policy: Policy
    allow_missing: tuple[str, ...] = ()
    command: str = ""
    model: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    doubt: str = ""
    """Why no truth is trusted, so that the dtype table decided."""
    left_to_chance: str = ""
    """Why a run without drift is not verified: choices that tipped over left too little ..."""
    chance: frozenset[str] = frozenset()
    """... and the points at which they did."""


def assemble(
    walk: Walk,
    trace: Trace,
    candidate: BackendInfo,
    terms: Terms,
    observer: Mapping[str, Observer],
) -> Report:
    """One report of a walk that has met all of the candidate's states."""
    layers, sides = walk.layers(), (trace.backend, candidate)
    terms = replace(terms, left_to_chance=walk.left_to_chance, chance=walk.chance)
    report = report_of(layers, trace.probe, sides, terms, observer, walk.decisions)
    return replace(report, embeddings=walk.embeddings)


def report_of(
    layers: tuple[LayerDrift, ...],
    probe: Probe | ProbeInfo,
    sides: tuple[BackendInfo, BackendInfo],
    terms: Terms,
    observer: Mapping[str, Observer],
    decisions: Decisions | None,
) -> Report:
    """One report of rows that were judged; `sides` are the reference and the candidate."""
    covered = coverage(layers)
    verdict, reason = run_verdict(
        layers, covered, observer, terms.doubt, terms.left_to_chance, terms.chance
    )
    doubted = f"Judged by the dtype table, for want of a truth: {terms.doubt}."
    rules = tuple(
        RuleInfo(r.glob, *((r.tolerance.atol, r.tolerance.rtol) if r.tolerance else (None, None)))
        for r in terms.policy.rules
    )
    return Report(
        tool=this_tool(),
        created=now(),
        command=terms.command,
        model=terms.model,
        probe=probe if isinstance(probe, ProbeInfo) else probe_info(probe),
        reference=sides[0],
        candidate=sides[1],
        policy=PolicyInfo(terms.policy.name, rules, terms.allow_missing),
        verdict=verdict,
        reason=reason,
        layers=layers,
        outputs=decisions,
        observer=observer,
        coverage=covered,
        environment=environment(),
        notes=(
            *terms.notes,
            *((doubted,) if terms.doubt else ()),
            *_idle(terms.allow_missing, layers),
        ),
        at_fault=both_or_one({side for row in layers for side in row.sides_at_fault}),
    )


def _idle(allow_missing: Iterable[str], layers: Iterable[LayerDrift]) -> list[str]:
    """What to say of patterns that stand for no point: a typo allows nothing, without a word."""
    names = [layer.point.name for layer in layers]
    idle = [glob for glob in allow_missing if not any(fnmatchcase(name, glob) for name in names)]
    return [f"No point matches the pattern {glob!r} of what may be missing." for glob in idle]


def probe_info(probe: Probe) -> ProbeInfo:
    """A probe without its arrays."""
    inputs = {n: InputInfo(a.shape, a.dtype.name) for n, a in probe.inputs.items()}
    others = {name: in_words(value) for name, value in probe.others.items()}
    return ProbeInfo(probe.sha256, probe.origin, inputs, probe.texts, probe.tokens, others)


def unrun_report(
    candidate: object, error: DriftwalkError, probe: Probe, reference: BackendInfo, terms: Terms
) -> Report:
    """A report without layers, `unverified`, of a candidate that gave no states."""
    info = _info(candidate)
    report = report_of((), probe, (reference, info), replace(terms, allow_missing=()), {}, None)
    return replace(report, reason=f"{info.spec} could not run: {str(error).rstrip('. ')}")


def _info(candidate: object) -> BackendInfo:
    if isinstance(candidate, Backend):
        return candidate.info
    if not isinstance(candidate, str):
        name = getattr(candidate, "__name__", type(candidate).__name__)
        return BackendInfo(name, name, "", "")
    spec = Spec.parse(candidate)
    return BackendInfo(str(spec), spec.name, spec.device, spec.dtype)
