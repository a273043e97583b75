"""Puts it together: a model, a probe, two backends, one report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .adapter import Backend, InRanges, MayBeClosed, Prepares, SkipsOutputs
from .budget import kept, parse_size
from .environment import environment
from .errors import DriftwalkError, UsageError
from .exercised import NOT_RUN, exercised
from .graphs.nodes import with_nodes
from .graphs.verify import default_reference, verify_graphs
from .judge.accusation import accuse
from .judge.drill import finer_depth, look
from .judge.witness import Witness, witness_device
from .layer_drift import Side
from .make_report import Terms, assemble, unrun_report
from .measure.reduction import holding, not_held
from .meeting import Rows, Run, Standards
from .memory_plan import NO_BUDGET, Plan, planned
from .names import is_output
from .observing import Observation, observe
from .progress import Progress
from .registry import create
from .remarks import CLOSED, on_given, on_unsteady
from .result import Report
from .stage import Setting, Stage, is_graph, open_model, open_stage, or_why_not
from .states import Probe, Trace
from .tolerance import DEFAULT_POLICY, Policy, PolicyLike, make_policy
from .traces.spill import Spill, spilled_trace

DEPTHS = ("block", "sublayer", "module", "op")


class Addition:
    """What a task adds to a verification when asked; tasks know this module, never the reverse."""

    def refuse_graph(self) -> None:
        """Raise a UsageError where it needs more than an ONNX graph."""

    def begin(self, run: Run) -> None:
        """Called before the first candidate runs."""

    def add(self, report: Report, candidate: Backend, run: Run) -> Report:
        """The report of one candidate, with what is added, while all backends are open."""
        return report

    def inspect(self, report: Report, candidate: Backend, probe: Probe, rows: Rows) -> None:
        """Have other runs judged as the candidate's was, while all backends are open."""

    def finish(
        self, reports: list[Report], setting: Setting, sides: Sequence[object], show: Progress
    ) -> list[Report]:
        """All reports, after the backends were closed; the setting has the probe that was run."""
        return reports


def verify_all(
    model: object,
    candidates: Sequence[object],
    reference: object = None,
    probe: object = None,
    policy: PolicyLike = DEFAULT_POLICY,
    depth: str = "block",
    blame: bool | str = "auto",
    *,
    allow_missing: Sequence[str] = (),
    cache: bool = True,
    spill: bool | int = False,
    witness: str = "auto",
    budget: str | int | None = None,
    command: str = "",
    keep_going: bool = False,
    progress: Progress | None = None,
    additions: Sequence[Addition] = (),
    **setting: Any,
) -> list[Report]:
    """Verify several candidates against one reference, whose trace is made once.

    No reference means `torch`; for an ONNX graph, the graph as it is written (graphs/). Of several
    candidates, one that cannot run has a report, `unverified`, that says why; a lone one raises,
    unless this is to `keep_going`.
    `allow_missing` are globs of points that may lack a partner; `cache=False` calibrates afresh;
    `spill` sends the reference's states to a temporary file, or those beyond so many bytes;
    `witness` is where truth and yardsticks run: cpu, cuda, or auto, the GPU of a side. `budget` is
    what this process may take of the host's memory, `8GiB`: kept, or refused beforehand with the
    number that would do. The `setting` is what `stage.Setting` takes: `blocks`,
    `trust_remote_code`, `batch`, `length`, `seed` and `stream`.
    """
    if depth not in DEPTHS:
        raise UsageError(f"depth={depth!r}: only {', '.join(DEPTHS)} can be walked.")
    if blame not in ("auto", True, False):
        raise UsageError(f"blame={blame!r}: expected 'auto', True or False.")
    if not candidates:
        raise UsageError("No candidate to verify; name at least one backend.")
    show, limit = progress or Progress(), None if budget is None else parse_size(budget)
    given = Setting.asked(model, probe, mapped=limit is not None, **setting)
    sides = (*default_reference(model, reference), *candidates)
    terms = Terms(make_policy(policy), tuple(allow_missing), command)
    with kept(limit):
        if is_graph(model):
            _refuse_graph(given, limit, additions)
            inspect = [addition.inspect for addition in additions]
            reports, fixed = verify_graphs(given, sides, terms, depth, blame, show, inspect)
        else:
            how = _How(depth, blame, spill, cache, witness, limit, keep_going)
            reports, stage = _verified_modules(given, sides, terms, how, show, additions)
            fixed = stage.probe
            # A model that only this process has is not opened again.
            given = given if isinstance(model, str) else replace(given, model=stage.model)
        ran = [report for report in reports if report.layers]
        sides = (sides[0], *(s for s, r in zip(candidates, reports, strict=True) if r.layers))
        for addition in additions if ran else ():
            ran = addition.finish(ran, replace(given, probe=fixed), sides, show)
    finished = iter(ran)
    return [next(finished) if report.layers else report for report in reports]


@dataclass(frozen=True)
class _How:
    """What the user chose beside the model, its sides and what is allowed."""

    depth: str
    blame: bool | str
    spill: bool | int
    cache: bool
    witness: str
    budget: int | None
    keep_going: bool

    @property
    def walked(self) -> str:
        """The depth at which states are compared; nodes of a graph are looked at afterwards."""
        return "block" if self.depth == "op" else self.depth


def _verified_modules(
    given: Setting,
    sides: Sequence[object],
    terms: Terms,
    how: _How,
    show: Progress,
    additions: Sequence[Addition],
) -> tuple[list[Report], Stage]:
    """The reports on a model that torch runs, and the stage that they were made on."""
    reports: list[Report] = []
    reference, *candidates = sides
    show.expect(3 + 2 * len(candidates))
    several = how.keep_going or len(candidates) > 1
    with open_stage(given, sides, how.walked, show, several) as stage, ExitStack() as opened:
        place = _witness_at(how.witness, stage)
        plan = NO_BUDGET
        if how.budget is not None:
            calibrates = terms.policy.calibrated or how.blame is not False
            spills = how.spill is not False  # 0: every state
            plan = planned(how.budget, stage, how.walked, place, calibrates, spills, show)
        run, notes = _begun(stage, terms.policy, how, plan, place, show, opened)
        terms = replace(terms, notes=(*notes, *plan.notes))
        for addition in additions:
            addition.begin(run)
        for named, side in zip(candidates, stage.sides[1:], strict=True):
            remarks = on_given(named, (given.model, reference))
            own = replace(terms, notes=(*terms.notes, *remarks))
            one = partial(_reported, run, side, own, how, additions)
            made = or_why_not(one, several)
            reports.append(made if isinstance(made, Report) else _unrun(run, named, made, terms))
    return reports, stage


def _reported(
    run: Run,
    candidate: Backend | DriftwalkError,
    terms: Terms,
    how: _How,
    additions: Sequence[Addition],
) -> Report:
    """One candidate's report, with what is added to it."""
    if isinstance(candidate, DriftwalkError):
        raise candidate
    report, standards = _verified(run, candidate, terms, how.blame)
    rows = partial(standards.rows, run, terms)
    if how.depth == "op":
        report = with_nodes(report, candidate, run.stage.probe, terms.policy, run.show)
    for addition in additions:
        report = addition.add(report, candidate, run)
    for addition in additions:
        addition.inspect(report, candidate, run.stage.probe, rows)
    return report


def _unrun(run: Run, candidate: object, error: DriftwalkError, terms: Terms) -> Report:
    model, probe = run.stage.model, run.stage.probe
    notes = (*model.notes, *probe.notes)
    terms = replace(terms, model=model.describe(), notes=notes)
    return unrun_report(candidate, error, probe, run.trace.backend, terms)


def _refuse_graph(given: Setting, budget: int | None, additions: Sequence[Addition]) -> None:
    """An error for what cannot be asked of a graph."""
    if given.blocks is not None:
        raise UsageError("--blocks names a stack of torch modules; a graph has none.")
    if budget is not None:
        raise UsageError("A budget of memory is for models that PyTorch runs, not for a graph.")
    for addition in additions:
        addition.refuse_graph()


def _witness_at(asked: str, stage: Stage) -> str:
    """Where truth and yardsticks run; a GPU that was asked for and is not to be had is an error."""
    place = witness_device(asked, stage.backends)
    if place == asked != "cpu":
        create(f"truth:{place}", stage.torch_model).close()
    return place


def _begun(
    stage: Stage,
    policy: Policy,
    how: _How,
    plan: Plan,
    place: str,
    show: Progress,
    opened: ExitStack,
) -> tuple[Run, tuple[str, ...]]:
    """Trace the reference and run it plain, while no candidate has loaded its weights yet.

    Truth and yardsticks have their `place`. Also gives what to say of states that could not be left
    on a device.
    """
    first, *others = stage.backends
    depth, spill = how.walked, True if plan.spilled else how.spill
    # A truth is on the host, and so must be what is compared with it; a spilled trace is, too.
    on_device = False
    if not policy.calibrated and spill is False:
        on_device = opened.enter_context(holding(first, others))
    with show.stage(f"reference: {first.spec}"):
        if spill is False:
            trace = first.trace(stage.probe)
        else:
            kept = opened.enter_context(closing(Spill(0 if spill is True else spill)))
            trace = spilled_trace(first, stage.probe, kept)
        stage.torch_model.evidence.offer(first, trace)
        observer = observe(first, stage.probe, trace.outputs, policy, depth)
    model, ranged = stage.torch_model, [b for b in stage.backends if isinstance(b, InRanges)]
    ranges = next(filter(None, (side.ranges_of(model) for side in ranged)), "")
    given = model, stage.probe, how.cache, show, depth, place, ranges, plan.looks_inside
    witness = Witness(*given)
    opened.callback(witness.close)
    run = Run(stage, trace, observer, witness, depth, show)
    return run, not_held(trace) if on_device else ()


def _verified(
    run: Run, candidate: Backend, terms: Terms, blame: bool | str
) -> tuple[Report, Standards]:
    """One candidate compared with the reference's trace."""
    stage, trace, show = run.stage, run.trace, run.show
    reference, probe, policy = stage.backends[0], stage.probe, terms.policy
    if isinstance(candidate, Prepares):
        candidate.prepare(probe)
    closed = _inside_of_closed(reference, candidate, trace)
    terms = replace(terms, allow_missing=(*terms.allow_missing, *closed))
    base, standards = run.witness, Standards.of(run, candidate, policy)
    witness, ours, split = standards.witness, standards.ours, standards.split
    terms = replace(terms, doubt=standards.doubt)
    walk = standards.walk(run, candidate, terms)
    apart = ours.outputs_apart if ours is not None and witness.tips else 0.0
    looked_at = Observation(candidate, probe, policy, run.depth, apart)
    with show.stage(f"candidate: {candidate.spec}"):
        looked_at.keep(standards.meet(run, walk, candidate))
    with show.stage("observer check"):
        observer = {"reference": run.observer, "candidate": looked_at.check()}
    unsteady = on_unsteady({"reference": reference, "candidate": candidate}, observer, probe)
    notes = (*stage.model.notes, *probe.notes, *unsteady, *terms.notes)
    terms = replace(terms, model=stage.model.describe(), notes=notes)
    report = assemble(walk, trace, candidate.info, terms, observer)
    sides: dict[Side, tuple[Backend, Witness]] = {
        "candidate": (candidate, witness),
        "reference": (reference, base),
    }
    routes = standards.routes(sides)
    if routes is not None:
        routes, report = routes.judged(report, walk)
    if split is not None:
        report = replace(report, format=split.findings(decides=report.outputs is not None))
    if not closed and (blame is True or (blame == "auto" and report.verdict == "drift")):
        found = split is not None and split.misstored  # in the candidate, whatever blame finds
        report = accuse(report, {"candidate": sides["candidate"]} if found else sides)
        report = report if split is None else split.accused(report)
    if routes is not None:
        report = routes.told(report)
    timings = {"reference": dict(reference.seconds), "candidate": dict(candidate.seconds)}
    if witness.seconds:
        timings["calibration"] = dict(witness.seconds)
    used = exercised(stage.model, (reference, candidate), probe)
    skipping = [side for side in (reference, candidate) if isinstance(side, SkipsOutputs)]
    skipped = dict.fromkeys(name for side in skipping for name in side.outputs_skipped)
    covered = replace(report.coverage, outputs_skipped=tuple(skipped), exercised=used)
    of_both = dict.fromkeys((*witness.notes(candidate.info), *base.notes(trace.backend)))
    cautions = (*of_both, *witness.caution(candidate.info), *(() if used else (NOT_RUN,)))
    cautions = (*cautions, *((CLOSED.format(candidate.spec),) if closed else ()))
    notes = (*report.notes, *cautions)
    guilty = report.root_cause, report.culprit
    finer = "" if closed else finer_depth(run.depth, (reference, candidate), *guilty)
    report = replace(report, timings=timings, notes=notes, coverage=covered, finer_depth=finer)
    return report, standards


def _inside_of_closed(reference: Backend, candidate: Backend, trace: Trace) -> tuple[str, ...]:
    """The reference's points that a candidate cannot have, since only its outputs are seen."""
    hidden, seen = (isinstance(b, MayBeClosed) and b.is_closed for b in (candidate, reference))
    if not hidden or seen:
        return ()
    return tuple(name for name in trace.names if not is_output(name))


def backend(spec: str, model: object, depth: str = "block", **options: Any) -> Backend:
    """The common interface on its own: `backend("torch:cuda:fp16", model).trace(probe)`."""
    made = create(spec, open_model(model, **options))
    look(made, depth)
    return made


def record(
    model: object,
    backend: object = "torch",
    probe: object = None,
    depth: str = "block",
    *,
    progress: Progress | None = None,
    **setting: Any,
) -> Trace:
    """A trace to save: with the model it was made from, and the machine it was made on.

    The `setting` is what `stage.Setting` takes: `blocks`, `trust_remote_code`, `batch`, `length`,
    `seed`.
    """
    show = progress or Progress()
    show.expect(3)
    with open_stage(Setting.asked(model, probe, **setting), (backend,), depth, show) as stage:
        (seen,) = stage.backends
        with show.stage(f"recording: {seen.spec}"):
            made = seen.trace(stage.probe)
    wanted = ("label", "class", "fingerprint")
    kept = {name: text for name, text in stage.model.describe().items() if name in wanted}
    return replace(made, model=kept, environment=environment())
