"""Puts it together: a model, a probe, two backends, one report. It knows all three rooms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .adapter import Backend
from .asking import Ask
from .assembly import Terms, assemble
from .dtypes import Array
from .environment import environment
from .errors import UsageError
from .exercised import NOT_RUN, exercised
from .graphs.nodes import with_nodes
from .graphs.verify import default_reference, is_graph, verify_graphs
from .judge.accusation import accuse
from .judge.drill import look, looking
from .judge.walk import Walk
from .judge.witness import Witness
from .measure.reduction import holding, not_held
from .observing import Observation, observe
from .progress import Progress
from .registry import backend_class, create
from .result import Observer, Report
from .spec import Spec
from .states import Probe, Trace
from .studies.effects import Effects, with_effects
from .tolerance import DEFAULT_POLICY, Policy, PolicyLike, make_policy
from .traces.spill import Spill, spilled_trace

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

DEPTHS = ("block", "sublayer", "module", "op")


def verify(
    model: object,
    candidate: object = "onnxruntime",
    reference: object = None,
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
    reference: object = None,
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
    contrast: object = None,
    propagation: bool = False,
    patch: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> list[Report]:
    """Verify several candidates against one reference, whose trace is made once.

    No reference means `torch`; for an ONNX graph, the graph as it is written (graphs/).
    `blocks` names the stack of blocks by hand; `allow_missing` are globs of points that may lack a
    partner; `batch`, `length` and `seed` shape the default probe; `cache=False` calibrates afresh;
    `bench` is how many plain runs of each backend are timed afterwards; `spill` sends the
    reference's states to a temporary file, or those beyond so many bytes. `contrast` is a pair of
    inputs, or True for the built-in one: drift is then also told as a share of their distance.
    `propagation` holds the drift against what the truth's Jacobian predicts; `patch` counts the
    flips that each restored layer of the candidate takes away, one run for each.
    """
    if depth not in DEPTHS:
        raise UsageError(f"depth={depth!r}: only {', '.join(DEPTHS)} can be walked.")
    if blame not in ("auto", True, False):
        raise UsageError(f"blame={blame!r}: expected 'auto', True or False.")
    if not candidates:
        raise UsageError("No candidate to verify; name at least one backend.")
    effects = Effects(propagation, patch)
    show = progress or Progress()
    ask = Ask(probe, batch, length, seed)
    sides = (*default_reference(model, reference), *candidates)
    if is_graph(model):
        if blocks is not None:
            raise UsageError("--blocks names a stack of torch modules; a graph has none.")
        if contrast:
            raise UsageError("A contrast needs a torch model, for its tokenizer; this is a graph.")
        effects.refuse_graph()
        terms = Terms(make_policy(policy), tuple(allow_missing), command)
        reports, fixed = verify_graphs(model, sides, ask, terms, depth, blame, show)
        timed = {"rounds": bench}
        return _with_benchmarks(reports, model, sides, fixed, show, **timed) if bench else reports
    nodes, depth = depth == "op", "block" if depth == "op" else depth
    judged = make_policy(policy)
    show.expect(3 + 2 * len(candidates))
    source = _Source(model, blocks, trust_remote_code)
    with ExitStack() as opened:
        stage = _set_stage(source, sides, ask, depth, show, opened)
        first, *others = stage.backends
        # A truth is on the host, and so must be what is held against it; a spilled trace is, too.
        on_device = False
        if not judged.calibrated and spill is False:
            on_device = opened.enter_context(holding(first, others))
        with show.stage(f"reference: {first.spec}"):
            against = _reference(stage, judged, depth, spill, opened)
            trace = against.trace
        unit = _unit(stage, contrast) if contrast else None
        witness = Witness(stage.model, stage.probe, cache, show, depth)
        opened.callback(witness.close)
        left = not_held(trace) if on_device else ()
        terms = Terms(judged, tuple(allow_missing), command, notes=left)
        reports = [
            _verified(stage, against, other, witness, terms, blame, depth, show) for other in others
        ]
        if nodes:
            pairs = zip(reports, others, strict=True)
            reports = [with_nodes(report, b, stage.probe, judged, show) for report, b in pairs]
        if unit is not None:
            reports = [unit(report) for report in reports]
        if effects:
            pairs = zip(reports, others, strict=True)
            reports = [with_effects(*pair, effects, trace, witness, show) for pair in pairs]
    if not bench:
        return reports
    # A model that only this process has is timed here; one with a name, each in its own process.
    named = model if isinstance(model, str) else stage.model
    options = {"rounds": bench, "blocks": blocks, "trust_remote_code": trust_remote_code}
    return _with_benchmarks(reports, named, sides, stage.probe, show, **options)


@dataclass(frozen=True)
class _Source:
    """What the user calls the model."""

    model: object
    blocks: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, eq=False)
class _Stage:
    """All that must be there before anything runs."""

    model: LoadedModel
    backends: tuple[Backend, ...]
    probe: Probe


def _set_stage(
    source: _Source,
    sides: Sequence[object],
    ask: Ask,
    depth: str,
    show: Progress,
    opened: ExitStack,
) -> _Stage:
    """Load the model, make the backends and the probe; each mistake is found as early as can be."""
    from driftwalk_backends.sources import open_model

    check_names(sides)
    with show.stage("loading the model"):
        loaded = open_model(
            source.model, blocks=source.blocks, trust_remote_code=source.trust_remote_code
        )
    loaded.evidence.forget()
    opened.callback(loaded.evidence.forget)
    # All backends are made, and refuse what they cannot do, before anything slow runs.
    backends = tuple(open_backend(item, loaded, opened) for item in sides)
    for backend in backends:
        opened.enter_context(looking(backend, depth))
    if ask.given is None:
        ask = replace(ask, given=next((b.own_probe for b in backends if b.own_probe), None))
    with show.stage("making the probe"):
        fixed = ask.made_for(loaded)
    return _Stage(loaded, backends, fixed)


def _unit(stage: _Stage, contrast: object) -> Callable[[Report], Report]:
    """What adds drift in units of meaning to a report; both inputs are run on the reference."""
    from .studies.units import measure, with_meaning

    found = measure(stage.model, stage.backends[0], contrast)
    return lambda report: with_meaning(report, found)


@dataclass(frozen=True, eq=False)
class _Reference:
    """What the candidates are held against, and whether looking at it changed anything."""

    trace: Trace
    observer: Observer


def _reference(
    stage: _Stage, policy: Policy, depth: str, spill: bool | int, opened: ExitStack
) -> _Reference:
    """Trace the reference and run it plain, while no candidate has loaded its weights yet."""
    first, probe = stage.backends[0], stage.probe
    trace = _traced(first, probe, spill, opened)
    stage.model.evidence.offer(first, trace)
    return _Reference(trace, observe(first, probe, trace.outputs, policy, depth))


def _traced(reference: Backend, probe: Probe, spill: bool | int, opened: ExitStack) -> Trace:
    """The reference's trace, in a file where that was asked for."""
    if spill is False:
        return reference.trace(probe)
    kept = opened.enter_context(closing(Spill(0 if spill is True else spill)))
    return spilled_trace(reference, probe, kept)


def _verified(
    stage: _Stage,
    against: _Reference,
    candidate: Backend,
    witness: Witness,
    terms: Terms,
    blame: bool | str,
    depth: str,
    show: Progress,
) -> Report:
    """One candidate held against the reference's trace."""
    reference, probe, policy = stage.backends[0], stage.probe, terms.policy
    trace = against.trace
    candidate.prepare(probe)
    base, witness = witness, witness.of(candidate)
    ours = theirs = None
    if policy.calibrated:
        ours, theirs = witness.calibration(candidate.info), base.judged(trace)
        doubt = witness.doubt(candidate.info) or base.doubt(trace.backend)
        terms = replace(terms, doubt=doubt)
    # Both sides are judged, or none: an unjudged reference would pass whatever it is.
    both = (ours, theirs) if ours is not None and theirs is not None else (None, None)
    walk = Walk(trace, candidate.info, policy, terms.allow_missing, *both)
    looked_at = Observation(candidate, probe, policy, depth)
    with show.stage(f"candidate: {candidate.spec}"):
        looked_at.keep(_walk(walk, reference, candidate, probe))
        if both[0] is not None and witness.has_own_model:
            walk.judge_layers(witness.introduced(candidate, both[0]))
    with show.stage("observer check"):
        observer = {"reference": against.observer, "candidate": looked_at.check()}
    told = (*stage.model.notes, *probe.notes)
    terms = replace(terms, model=stage.model.describe(), notes=(*told, *terms.notes))
    report = assemble(walk, trace, candidate.info, terms, observer)
    skipped = dict.fromkeys((*reference.outputs_skipped, *candidate.outputs_skipped))
    report = replace(report, coverage=replace(report.coverage, outputs_skipped=tuple(skipped)))
    if blame is True or (blame == "auto" and report.verdict == "drift"):
        report = accuse(report, {"candidate": (candidate, witness), "reference": (reference, base)})
    timings = {"reference": dict(reference.seconds), "candidate": dict(candidate.seconds)}
    if witness.seconds:
        timings["calibration"] = dict(witness.seconds)
    of_both = (*witness.notes(candidate.info), *base.notes(trace.backend))
    calibrated = (*dict.fromkeys(of_both), *witness.caution(candidate.info))
    used = exercised(stage.model, (reference, candidate), probe)
    notes = (*report.notes, *calibrated, *(() if used else (NOT_RUN,)))
    covered = replace(report.coverage, exercised=used)
    return replace(report, timings=timings, notes=notes, coverage=covered)


def _with_benchmarks(
    reports: Sequence[Report],
    model: object,
    sides: Sequence[object],
    probe: Probe,
    show: Progress,
    **options: Any,
) -> list[Report]:
    """The same reports, with the timings of both sides."""
    from .bench.run import bench as time_all

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


def check_names(sides: Sequence[object]) -> None:
    """A typo in a spec is found before a model is loaded."""
    for spec in sides:
        if isinstance(spec, str):
            backend_class(Spec.parse(spec).name)


def open_backend(given: object, model: LoadedModel, opened: ExitStack) -> Backend:
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
        return TorchEager.around(given, blocks=model.blocks)
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


def record(
    model: object,
    backend: object = "torch",
    probe: object = None,
    depth: str = "block",
    *,
    blocks: str | None = None,
    trust_remote_code: bool = False,
    batch: int | None = None,
    length: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Trace:
    """A trace to save: with the model it was made from, and the machine it was made on."""
    show = progress or Progress()
    show.expect(3)
    source, ask = _Source(model, blocks, trust_remote_code), Ask(probe, batch, length, seed)
    with ExitStack() as opened:
        stage = _set_stage(source, (backend,), ask, depth, show, opened)
        (seen,) = stage.backends
        with show.stage(f"recording: {seen.spec}"):
            made = seen.trace(stage.probe)
    wanted = ("label", "class", "fingerprint")
    kept = {name: told for name, told in stage.model.describe().items() if name in wanted}
    return replace(made, model=kept, environment=environment())
