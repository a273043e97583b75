"""Two graphs, no torch model: `verify("a.onnx", candidate="onnxruntime,file=b.onnx")`.

The model is a graph. Its blocks, or its nodes, are walked in topological order, a group of tensors
at a time; of both graphs no more than that is in memory. The outputs are compared in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..errors import BackendError, DriftwalkError, UsageError
from ..layer_drift import Culprit, LayerDrift
from ..make_report import Terms, report_of, unrun_report
from ..measure.decisions import Decisions, decision_impact
from ..meeting import Inspect
from ..observing import observe
from ..progress import Progress
from ..registry import create
from ..result import Observer, Report
from ..spec import Spec
from ..stage import Setting, is_graph, or_why_not
from ..states import Probe, same_bits
from ..tolerance import Policy, Tolerance
from .by_truth import Witnesses
from .own_doing import OwnDoing
from .rows import Account, NodeJudge, unmatched
from .weighing import Weighing, within_rooms
from .witness import AS_WRITTEN, GraphWitness

if TYPE_CHECKING:
    from driftwalk_backends.onnx.graph import OnnxGraph
    from driftwalk_backends.onnx.pairs.model import OnnxModel
    from driftwalk_backends.onnx.pairs.runtime import GraphRuntime

NO_TRUTH = "No float64 truth could be made of this graph, so the dtype table decided: {}."
NO_BLAME = "A graph's layers are not replayed in float64: its root cause is the first guilty node."
QUANTISED = (
    "The candidate is quantised, and the graph that it is compared with rounds nothing. Give "
    "--policy fixed:ATOL,RTOL, or verify it against the torch model that it came from."
)
_TORCH = ("torch", "emulated", "truth")


@dataclass(frozen=True)
class Walked:
    """What a walk over two graphs found."""

    rows: tuple[LayerDrift, ...]
    way: str
    notes: tuple[str, ...]
    outputs: dict[str, Any]
    theirs: dict[str, Any]
    decisions: Decisions | None
    guilty: tuple[OwnDoing, ...] = ()
    """Nodes that introduced more than honest arithmetic explains, where that was asked."""


def default_reference(model: object, given: object) -> tuple[object]:
    """The reference, where none was named: PyTorch; for a graph, itself as written."""
    return (given if given is not None else AS_WRITTEN if is_graph(model) else "torch",)


def verify_graphs(
    setting: Setting,
    sides: Sequence[object],
    terms: Terms,
    depth: str,
    blame: bool | str,
    show: Progress,
    inspect: Sequence[Inspect] = (),
) -> tuple[list[Report], Probe]:
    """`verify_all` where the model is a graph: the first of the sides is the reference."""
    show.expect(2 * len(sides))
    with show.stage("reading the graph"):
        loaded = cast("OnnxModel", setting.open_model())
    reports = []
    several = len(sides) > 2
    with ExitStack() as opened:
        first = _opened(sides[0], loaded, opened, depth)
        made = (partial(_opened, side, loaded, opened, depth) for side in sides[1:])
        others = [or_why_not(one, several) for one in made]
        with show.stage("making the probe"):
            fixed = setting.make_probe(loaded)
        terms = replace(terms, model=loaded.describe(), notes=fixed.notes)
        witness, why = None, ""
        if terms.policy.calibrated and not first.draws:
            with show.stage("truth: the graph in float64", extra=True):
                witness, why = _witness(loaded, first, fixed, opened)
        for named, other in zip(sides[1:], others, strict=True):
            pair = partial(TwoGraphs, first, probe=fixed, policy=terms.policy, witness=witness)
            one = partial(_reported, pair, other, _in_name(terms, why), depth, blame, show)
            report = or_why_not(one, several)
            if not isinstance(report, Report):
                report = unrun_report(named, report, fixed, first.info, terms)
            elif not isinstance(other, DriftwalkError):
                for look in inspect:
                    look(report, other, fixed, partial(_rows, pair, depth, terms))
            reports.append(report)
    return reports, fixed


def _opened(given: object, model: OnnxModel, opened: ExitStack, depth: str) -> GraphRuntime:
    """A backend for a graph; what needs the torch model is refused in so many words."""
    from driftwalk_backends.onnx.pairs.runtime import GraphRuntime

    made = given
    if isinstance(given, str) and Spec.parse(given).name not in _TORCH:
        made = opened.enter_context(create(given, model))
    if not isinstance(made, GraphRuntime):
        raise UsageError(
            f"{given if isinstance(given, str) else type(given).__name__}: {model.refusal}"
        )
    made.look(depth)
    return made


def _witness(
    model: OnnxModel, first: GraphRuntime, probe: Probe, opened: ExitStack
) -> tuple[GraphWitness | None, str]:
    """Truth and yardstick; or why there are none."""
    try:
        witness = GraphWitness(model, first, probe)
    except BackendError as error:
        return None, str(error).rstrip(". ")
    opened.callback(witness.close)
    return witness, ""


def _in_name(terms: Terms, why_no_truth: str) -> Terms:
    """The terms under the name of what decides: the table, where there is no truth."""
    if not why_no_truth:
        return terms
    notes = (*terms.notes, NO_TRUTH.format(why_no_truth))
    name = "dtype" if terms.policy.name == "calibrated" else terms.policy.name
    return replace(terms, policy=replace(terms.policy, name=name), notes=notes)


def _reported(
    pair: Callable[[GraphRuntime], TwoGraphs],
    other: GraphRuntime | DriftwalkError,
    terms: Terms,
    depth: str,
    blame: bool | str,
    show: Progress,
) -> Report:
    """One candidate compared with the reference."""
    if isinstance(other, DriftwalkError):
        raise other
    graphs = pair(other)
    first = graphs.first
    with show.stage(f"walking: {first.spec} and {other.spec}"):
        walked = graphs.walk(depth, terms.allow_missing)
    with show.stage("observer check"):
        report = graphs.report(walked, terms)
    if blame is not False and report.verdict == "drift":
        with show.stage("blame: looking at every node", extra=True):
            report = graphs.accused(report, walked)
    if blame is True:
        report = replace(report, notes=(*report.notes, NO_BLAME))
    timings = {"reference": dict(first.seconds), "candidate": dict(other.seconds)}
    return replace(report, timings=timings, finer_depth="op" if depth == "block" else "")


def _rows(pair: Callable[[Any], TwoGraphs], depth: str, terms: Terms, made: Any) -> Any:
    """The rows of one more candidate, by the same truth."""
    return pair(made).walk(depth, terms.allow_missing).rows


@dataclass(frozen=True, eq=False)
class TwoGraphs:
    """Two graphs, the reference's first; what both are given, and how they are judged."""

    first: GraphRuntime
    other: GraphRuntime
    probe: Probe
    policy: Policy
    witness: GraphWitness | None = None
    """Truth and yardstick; none: the dtype table decides."""

    @property
    def _dtypes(self) -> tuple[str, str]:
        return self.first.graph.dtype, self.other.graph.dtype

    def walk(self, depth: str, allow_missing: Sequence[str] = ()) -> Walked:
        """Compare the graphs at every tensor they share, and at their outputs."""
        from driftwalk_backends.onnx.pairs.plan import MOST_BYTES, plan

        first, other, probe, policy = self.first, self.other, self.probe, self.policy
        made = plan(first, other, probe, depth)
        judge = NodeJudge(policy, probe, self._dtypes)
        rows: list[LayerDrift] = []
        peak, spent = 0, 0.0
        outputs: dict[str, Any] = {}
        theirs: dict[str, Any] = {}
        tensors: dict[str, str] = {}
        for group in made.groups or ((),):
            asked = [pair.reference for pair in group]
            mine, outputs = first.tensors(probe, asked, packed=first.optimises)
            given, theirs = other.tensors(probe, [pair.candidate for pair in group])
            peak = max(peak, sum(a.nbytes for side in (mine, given) for a in side.values()))
            tensors |= {
                pair.point.name: pair.tensor if self.witness else pair.reference for pair in group
            }
            both = [
                (pair, mine[pair.reference], given[pair.candidate])
                for pair in group
                if pair.reference in mine and pair.candidate in given
                if pair.point.name not in outputs
            ]
            seen = self._seen({pair.tensor: array for pair, array, _ in both})
            start = time.perf_counter()
            rows += judge.inner(both, seen)
            spent += time.perf_counter() - start
        # What was rewritten into another shape is no partner after all; the outputs tell a fault.
        reshaped = [row.point.name for row in rows if row.verdict == "shape"]
        rows = [row for row in rows if row.verdict != "shape"]
        decisions, seen = None, self._seen(outputs)
        for name, array in outputs.items():
            if name in theirs:
                rows.append(judge.output(name, array, theirs[name], seen.get(name)))
                decisions = decisions or self._decided(rows[-1], array, theirs[name])
        rows += unmatched(outputs, theirs, allow_missing)
        policy.check_rules([row.point.name for row in rows])
        inside = len(rows) - len(outputs)
        notes = [
            f"{inside} tensors inside and {len(outputs)} outputs were compared ({made.way}), with "
            f"{len(made.groups) or 1} session(s) a side in {spent:.2g} s; at most "
            f"{peak / 2**20:.1f} MB of states were in memory at once (bound: "
            f"{MOST_BYTES >> 20} MB).",
            *made.notes,
        ]
        if reshaped:
            notes.append(
                f"{len(reshaped)} tensors, {reshaped[0]!r} the first, have another shape in the "
                "candidate and were not compared."
            )
        notes += [self.witness.note] if self.witness else []
        weighed = self._weighed(rows, judge.beyond, tensors)
        notes += [weighed.note] if weighed.note else []
        numbered = tuple(replace(row, index=index) for index, row in enumerate(weighed.rows))
        return Walked(numbered, made.way, tuple(notes), outputs, theirs, decisions, weighed.guilty)

    def _seen(self, known: Mapping[str, Any]) -> dict[str, Witnesses]:
        """What truth and yardstick have for some tensors of the model's graph."""
        return self.witness.of(list(known), known) if self.witness is not None else {}

    def _weighed(
        self,
        rows: Sequence[LayerDrift],
        beyond: Mapping[str, LayerDrift],
        tensors: Mapping[str, str],
    ) -> Account:
        """The rows, less those that only inherit; asked where some drift, and no rule says so."""
        first = self.first
        if not self.policy.calibrated or first.draws:
            return Account(tuple(rows))
        written = self.witness.written if self.witness is not None else first
        known = dict(tensors)
        for row in rows:
            own = written.partners.get(row.point.name.partition("[")[0])
            if row.point.name not in known and own is not None:
                known[row.point.name] = own[0]
        known = {
            name: tensor
            for name, tensor in known.items()
            if tensor in written.graph.producers and not self.policy.has_rule(name)
        }
        sides = [self.other] if written is first else [first, self.other]
        return Weighing(written, sides, self.probe, self._dtypes).weighed(rows, beyond, known)

    def _decided(self, row: LayerDrift, reference: Any, candidate: Any) -> Decisions | None:
        """What it means for the choice made, where the output is one."""
        if row.point.name != "logits" or row.metrics is None or reference.dtype.kind != "f":
            return None
        if row.tolerance is None or reference.ndim < 2 or row.metrics.nonfinite.reference:
            return None
        tolerance = Tolerance(row.tolerance.atol, row.tolerance.rtol)
        keep = self.probe.keep(row.point.name, reference.shape)
        return decision_impact(reference, candidate, keep, tolerance, row.tolerance.scale)

    def report(self, walked: Walked, terms: Terms) -> Report:
        """The report on a walk, after both sides have run once more, plain."""
        first, other, probe = self.first, self.other, self.probe
        observer: dict[str, Observer] = {}
        if first.optimises:  # as written there is no fusion that looking could break
            observer["reference"] = self._observed(first, walked.outputs, walked)
        observer["candidate"] = self._observed(other, walked.theirs, walked)
        notes = walked.notes
        if other.graph.quantised and not first.graph.quantised:
            notes = (*notes, QUANTISED)
        sides = first.info, other.info
        own = replace(terms, notes=(*terms.notes, *notes))
        report = report_of(walked.rows, probe, sides, own, observer, walked.decisions)
        if not report.coverage.compared and any(row.verdict == "shape" for row in walked.rows):
            # Outputs of other shapes are a finding, not a lack of one.
            report = replace(report, verdict="drift", reason="")
        if first.draws or report.verdict != "pass":
            # The reference must give again what it gave; where looking may matter, plain by plain.
            again = dict(first.run(probe))
            same = not first.draws and same_bits(again, walked.outputs)
            if not same and not same_bits(again, dict(first.run(probe))):
                drawn = f" (it draws random numbers: {', '.join(first.draws)})"
                reason = (
                    "the reference differs from itself in two runs on the same probe"
                    f"{drawn if first.draws else ''}, so nothing can be held against it"
                )
                report = replace(report, verdict="unverified", reason=reason)
        return report

    def _observed(self, side: GraphRuntime, traced: dict[str, Any], walked: Walked) -> Observer:
        """The observer check; what it may change, is what the outputs themselves may be off."""
        seen = observe(side, self.probe, traced, self.policy, walked.way)
        if seen.within_tolerance or not seen.checked or not self.policy.calibrated:
            return seen
        fits = within_rooms(side.run(self.probe), traced, walked.rows)
        return replace(seen, within_tolerance=fits)

    def accused(self, report: Report, walked: Walked) -> Report:
        """The first node that diverges, and the row that it lies in."""
        from driftwalk_backends.onnx.structure import NODES, points_of

        graph, nodes = self.first.model_graph, walked
        if walked.way != NODES and not walked.guilty:
            wide = tuple(rule for rule in self.policy.rules if rule.glob == "*")
            nodes = replace(self, policy=replace(self.policy, rules=wide)).walk("op")
        guilty = first_node(nodes, graph)
        if guilty is None:
            return report
        cause, culprit = guilty
        names = [row.point.name for row in walked.rows]
        if walked.way == NODES and cause not in names:
            after = (name for name in names if graph.depends(name, cause))
            bad = _first_bad(walked.rows)
            cause = next(after, bad.point.name if bad else cause)
        elif walked.way != NODES:
            at = graph.producers.get(cause, -1)
            tensors = {p.name: tensor for p, tensor in points_of(graph, "block").tensors.items()}
            within = (n for n in names if graph.producers.get(tensors.get(n, n), -1) >= at)
            cause = next(within, names[-1])
        return replace(report, cause=cause, culprit=culprit)


def _first_bad(rows: Iterable[LayerDrift]) -> LayerDrift | None:
    return next((row for row in rows if row.verdict in ("drift", "nonfinite", "shape")), None)


def first_node(walked: Walked, graph: OnnxGraph) -> tuple[str, Culprit] | None:
    """The first tensor that diverges, by name and in words: operation, inputs, attributes, module.

    Where nodes were found guilty, it is the first of them that the first bad row comes from.
    """
    from driftwalk_backends.onnx.pairs.plan import described
    from driftwalk_backends.onnx.structure import NODES, scope_by_tensor

    bad = _first_bad(walked.rows)
    if bad is None:
        return None
    row = bad.point.name
    guilty = [own for own in walked.guilty if own.tensor in graph.producers]
    if row in graph.producers:  # a block's name is no tensor's: what it comes from is not known
        guilty = [own for own in guilty if own.tensor == row or graph.depends(row, own.tensor)]
    own = guilty[0] if guilty else None
    name = own.tensor if own else row
    scope = scope_by_tensor(graph).get(name, "")
    times = own.needed if own else bad.tolerance.needed if bad.tolerance else float("inf")
    sentence = f"first diverging node: {described(graph, name) or 'output'} \u2192 {name!r}"
    sentence += f" in {scope}" if scope else ""
    sentence += f", {times:.3g}\u00d7 what was allowed" if own or bad.tolerance else ""
    if walked.way == NODES:
        compared = {one.point.name.partition("[")[0] for one in walked.rows}
        sentence += _not_compared(graph, name, compared)
    return name, Culprit(scope or name, times, None, None, sentence)


def _not_compared(graph: OnnxGraph, tensor: str, compared: Container[str]) -> str:
    """What lies before a tensor and was fused away, so that it may be at fault as well."""
    unseen, known, ahead = [], [], [tensor]
    while ahead:
        node = graph.maker(ahead.pop())
        for name in dict.fromkeys(node.inputs) if node is not None else ():
            if name in compared:
                known.append(name)
            elif name in graph.producers and name not in unseen:
                unseen.append(name)
                ahead.append(name)
    if not unseen:
        return ""
    start = ", ".join(repr(name) for name in dict.fromkeys(known)) or "the inputs"
    nodes = f"{len(unseen)} node{'s' if len(unseen) > 1 else ''}"
    return f"; between {start} and it {nodes} could not be compared (fused), and may be at fault"
