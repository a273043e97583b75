"""`--depth op` for a torch model: its blocks against the reference, its nodes against themselves.

PyTorch has no nodes. So at this depth a run has two kinds of rows, in one topological order. Blocks
are held against the reference, as at any depth: that says whether the graph is the model. Every
node of the candidate's graph is held against the same graph run as written (opt=off, on the CPU):
that says whether the runtime computes the graph, and where it does not.
"""

from __future__ import annotations

from dataclasses import replace

from ..adapter import Backend
from ..errors import UsageError
from ..judge.gate import run_verdict
from ..judge.walk import coverage
from ..layer_drift import Culprit, LayerDrift
from ..progress import Progress
from ..result import Report
from ..states import Probe
from ..tolerance import Policy
from .verify import TwoGraphs, first_node

OPS = "op:"
"""Before the name of a node that a block's point bears already."""


def with_nodes(
    report: Report, candidate: Backend, probe: Probe, policy: Policy, show: Progress
) -> Report:
    """The report, with a row for every float tensor of the candidate's graph."""
    from driftwalk_backends.onnx.pairs.runtime import graphs_of

    graphs = graphs_of(candidate, probe)
    if not graphs:
        raise UsageError(
            f"--depth op: {candidate.spec} runs no graph whose nodes could be walked. Candidates "
            "that do are onnxruntime and onnxruntime,file=MODEL.onnx."
        )
    # Rules name points of the model; a node is judged by the table, or by a rule for all.
    table = replace(policy, rules=tuple(r for r in policy.rules if r.glob == "*"))
    rows, notes = list(report.layers), list(report.notes)
    culprit: Culprit | None = None
    names = {row.point.name for row in rows}
    for graph in graphs:
        file, nodes = graph.model.path.name, graph.model.graph
        with show.stage(f"nodes of {file}", extra=True), graph.opened() as (written, own):
            walked = TwoGraphs(written, own, graph.probe, table).walk("op")
            guilty = first_node(walked, nodes)
            culprit = culprit or (guilty[1] if guilty else None)
        inner = [_renamed(row, names) for row in walked.rows if row.point.module != "output"]
        rows = _merged(rows, inner, nodes.producers, graph.points)
        notes += [
            f"Nodes of {file} are held against the same graph run as written (opt=off); "
            "blocks against the reference.",
            *walked.notes,
        ]
    layers = tuple(replace(row, index=index) for index, row in enumerate(rows))
    covered = replace(coverage(layers), outputs_skipped=report.coverage.outputs_skipped)
    verdict, reason = run_verdict(layers, covered, report.observer)
    cause = report.cause
    if culprit is not None:
        notes.append(f"{culprit.sentence[0].upper()}{culprit.sentence[1:]}.")
        first = next((row for row in layers if not row.ok), None)
        cause = cause or (first.point.name if first else None)
    return replace(
        report,
        layers=layers,
        coverage=covered,
        verdict=verdict,
        reason=reason,
        cause=cause,
        culprit=report.culprit or culprit,
        finer_depth="",
        notes=tuple(notes),
    )


def _renamed(row: LayerDrift, taken: set[str]) -> LayerDrift:
    """A node whose tensor bears the name of a point gets one of its own."""
    if row.point.name not in taken:
        return row
    return replace(row, point=replace(row.point, name=f"{OPS}{row.point.name}"))


def _merged(
    blocks: list[LayerDrift],
    nodes: list[LayerDrift],
    order: dict[str, int],
    points: dict[str, str],
) -> list[LayerDrift]:
    """Nodes before the first block whose tensor is not made before them; blocks as they stand."""
    waiting = list(nodes)
    merged: list[LayerDrift] = []
    for block in blocks:
        at = order.get(points.get(block.point.name, ""))
        while at is not None and waiting:
            if order.get(waiting[0].point.name.removeprefix(OPS), -1) > at:
                break
            merged.append(waiting.pop(0))
        merged.append(block)
    return [*merged, *waiting]
