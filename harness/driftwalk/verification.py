"""Puts it together: a model, a probe, two backends, one report. It knows all three rooms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .adapter import Backend, BackendInfo
from .drill import look, looking
from .dtypes import FORMATS, Array, dtype_name
from .environment import environment, now, this_tool
from .errors import UsageError
from .gate import run_verdict
from .metrics import measure
from .progress import Progress
from .registry import backend_class, create
from .result import InputInfo, Observer, PolicyInfo, ProbeInfo, Report, RuleInfo
from .spec import Spec
from .spill import Spill, spilled_trace
from .states import Probe, Trace, same_bits
from .tolerance import Policy, PolicyLike, make_policy
from .walk import Walk, coverage
from .witness import Witness

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

DEFAULT_POLICY = "calibrated"
DEPTHS = ("block", "sublayer", "module")


@dataclass(frozen=True)
class _Terms:
    """What a run is judged by, and what its report says of where it came from."""

    policy: Policy
    allow_missing: tuple[str, ...] = ()
    command: str = ""
    model: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


_observed: WeakKeyDictionary[Backend, dict[tuple[str, str, Policy], Observer]] = WeakKeyDictionary()
"""What was seen, by probe, depth and policy: looking twice at the same run teaches nothing."""


def verify(
    model: object,
    candidate: object = "onnxruntime",
    reference: object = "torch",
    probe: object = None,
    policy: PolicyLike = DEFAULT_POLICY,
    depth: str = "block",
    blame: bool | str = "auto",
    **options: Any,
) -> Report:
    """Run one model on two backends and walk their layer states; see `verify_all` for options."""
    return verify_all(model, [candidate], reference, probe, policy, depth, blame, **options)[0]


def verify_all(
    model: object,
    candidates: Sequence[object],
    reference: object = "torch",
    probe: object = None,
    policy: PolicyLike = DEFAULT_POLICY,
    depth: str = "block",
    blame: bool | str = "auto",
    *,
    blocks: str | None = None,
    allow_missing: Sequence[str] = (),
    trust_remote_code: bool = False,
    batch: int | None = None,
    length: int | None = None,
    seed: int = 0,
    cache: bool = True,
    spill: bool | int = False,
    bench: int = 0,
    command: str = "",
    progress: Progress | None = None,
) -> list[Report]:
    """Verify several candidates against one reference, whose trace is made once.

    `blocks` names the stack of blocks by hand; `allow_missing` are globs of points that may lack a
    partner; `batch`, `length` and `seed` shape the default probe; `cache=False` calibrates afresh;
    `bench` is how many plain runs of each backend are timed afterwards; `spill` sends the
    reference's states to a temporary file, or those beyond so many bytes.
    """
    from driftwalk_backends.probes import BATCH, LENGTH, make_probe
    from driftwalk_backends.sources import open_model

    if depth not in DEPTHS:
        raise UsageError(f"depth={depth!r}: only {', '.join(DEPTHS)} can be walked.")
    if blame not in ("auto", True, False):
        raise UsageError(f"blame={blame!r}: expected 'auto', True or False.")
    if not candidates:
        raise UsageError("No candidate to verify; name at least one backend.")
    judged = make_policy(policy)
    for spec in (reference, *candidates):
        if isinstance(spec, str):
            backend_class(Spec.parse(spec).name)  # a typo is found before a model is loaded
    show = progress or Progress()
    show.expect(3 + 2 * len(candidates))
    with show.stage("loading the model"):
        loaded = open_model(model, blocks=blocks, trust_remote_code=trust_remote_code)
    reports = []
    with ExitStack() as opened:
        # All backends are made, and refuse what they cannot do, before anything slow runs.
        first, *others = [_opened(item, loaded, opened) for item in (reference, *candidates)]
        for seen in (first, *others):
            opened.enter_context(looking(seen, depth))
        with show.stage("making the probe"):
            fixed = make_probe(
                loaded, probe, batch=batch or BATCH, length=length or LENGTH, seed=seed
            )
        with show.stage(f"reference: {first.spec}"):
            if spill is False:
                trace = first.trace(fixed)
            else:
                kept = opened.enter_context(closing(Spill(0 if spill is True else spill)))
                trace = spilled_trace(first, fixed, kept)
        witness = Witness(loaded, fixed, cache, show, depth)
        opened.callback(witness.close)
        for other in others:
            known = witness.calibration(other.info.dtype) if judged.calibrated else None
            walk = Walk(trace, other.info, judged, allow_missing, known)
            with show.stage(f"candidate: {other.spec}"):
                outputs = _walk(walk, first, other, fixed)
            with show.stage("observer check"):
                observer = {
                    "reference": _observe(first, fixed, trace.outputs, judged, depth),
                    "candidate": _observe(other, fixed, outputs, judged, depth),
                }
            terms = _Terms(judged, tuple(allow_missing), command, loaded.describe(), loaded.notes)
            report = _assemble(walk, trace, other.info, terms, observer)
            if blame is True or (blame == "auto" and report.verdict == "drift"):
                layers, cause, culprit = witness.accuse(other, report.layers)
                report = replace(report, layers=layers, cause=cause, culprit=culprit)
            timings = {"reference": dict(first.seconds), "candidate": dict(other.seconds)}
            if witness.seconds:
                timings["calibration"] = dict(witness.seconds)
            notes = (*report.notes, *witness.notes(other.info.dtype))
            reports.append(replace(report, timings=timings, notes=notes))
    if not bench:
        return reports
    # A model that only this process has is timed here; one with a name, each in its own process.
    named = model if isinstance(model, str) else loaded
    sides = (reference, *candidates)
    options = {"rounds": bench, "blocks": blocks, "trust_remote_code": trust_remote_code}
    return _with_benchmarks(reports, named, sides, fixed, show, **options)


def _with_benchmarks(
    reports: Sequence[Report],
    model: object,
    sides: Sequence[object],
    probe: Probe,
    show: Progress,
    **options: Any,
) -> list[Report]:
    """The same reports, with the timings of both sides."""
    from .bench import bench as time_all

    timed = time_all(model, sides, probe, progress=show, **options)
    first, *others = (entry.bench for entry in timed.cases[0].entries)
    return [
        replace(
            report,
            benchmarks={"reference": first, "candidate": other},
            notes=(*report.notes, *timed.notes),
        )
        for report, other in zip(reports, others, strict=True)
    ]


def _walk(walk: Walk, reference: Backend, candidate: Backend, probe: Probe) -> Mapping[str, Array]:
    """Have the walk meet the candidate's states, each also against the reference's own block."""
    if not walk.can_replay(reference):
        return candidate.stream(probe, walk.meet)
    met = candidate.trace(probe)
    walk.meet_all(met, reference)
    return met.outputs


def _opened(given: object, model: LoadedModel, opened: ExitStack) -> Backend:
    """A backend that is closed with the run, unless the caller made it."""
    made = as_backend(given, model)
    return made if made is given else opened.enter_context(made)


def as_backend(given: object, model: LoadedModel) -> Backend:
    """A backend from a spec, a Backend, or an nn.Module that is another implementation."""
    from torch import nn

    from driftwalk_backends.torch_eager import TorchEager

    if isinstance(given, Backend):
        return given
    if isinstance(given, nn.Module):
        return TorchEager.around(given)
    if isinstance(given, str):
        return create(given, model)
    raise UsageError(
        f"Cannot take {given!r} for a backend; give a spec, a Backend or an nn.Module."
    )


def backend(spec: str, model: object, depth: str = "block", **options: Any) -> Backend:
    """The common interface on its own: `backend("torch:cuda:fp16", model).trace(probe)`."""
    from driftwalk_backends.sources import open_model

    made = create(spec, open_model(model, **options))
    look(made, depth)
    return made


def compare(
    reference: Trace,
    candidate: Trace,
    policy: PolicyLike = DEFAULT_POLICY,
    allow_missing: Sequence[str] = (),
) -> Report:
    """A report from two traces alone; no model runs."""
    if reference.probe.sha256 != candidate.probe.sha256:
        raise UsageError(
            "The two traces were made from different probes "
            f"({reference.probe.sha256[:12]} and {candidate.probe.sha256[:12]})."
        )
    judged = make_policy(policy)
    walk = Walk(reference, candidate.backend, judged, allow_missing)
    for state in candidate:
        walk.meet(state)
    alone = "Two traces alone have no truth to be calibrated by: the dtype table decided."
    notes = (alone,) if judged.calibrated else ()
    terms = _Terms(judged, tuple(allow_missing), model={"label": "two traces"}, notes=notes)
    return _assemble(walk, reference, candidate.backend, terms, {})


def _assemble(
    walk: Walk,
    trace: Trace,
    candidate: BackendInfo,
    terms: _Terms,
    observer: Mapping[str, Observer],
) -> Report:
    layers = walk.layers()
    covered = coverage(layers)
    verdict, reason = run_verdict(layers, covered, observer)
    return Report(
        tool=this_tool(),
        created=now(),
        command=terms.command,
        model=terms.model,
        probe=_probe_info(trace.probe),
        reference=trace.backend,
        candidate=candidate,
        policy=_policy_info(terms.policy, terms.allow_missing),
        verdict=verdict,
        reason=reason,
        layers=layers,
        outputs=walk.decisions,
        observer=observer,
        coverage=covered,
        environment=environment(),
        notes=terms.notes,
    )


def _observe(
    seen: Backend, probe: Probe, traced: Mapping[str, Array], policy: Policy, depth: str
) -> Observer:
    """Run plain, once, and hold the outputs against those of the instrumented run."""
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


def _probe_info(probe: Probe) -> ProbeInfo:
    inputs = {n: InputInfo(a.shape, a.dtype.name) for n, a in probe.inputs.items()}
    return ProbeInfo(probe.sha256, probe.origin, inputs, probe.texts, probe.tokens)


def _policy_info(policy: Policy, allow_missing: Iterable[str]) -> PolicyInfo:
    rules = tuple(
        RuleInfo(r.glob, *((r.tolerance.atol, r.tolerance.rtol) if r.tolerance else (None, None)))
        for r in policy.rules
    )
    return PolicyInfo(policy.name, rules, tuple(allow_missing))
