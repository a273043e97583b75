"""`driftwalk weights A B`: all weights of two models, one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ...environment import head
from ...layer_drift import Dtypes
from ...progress import Progress
from ...weight_change import TiedOn, WeightChange, WeightVerdict
from ...weight_source import WeightSource
from .compare import compare
from .pairing import Pair, pair
from .result import WeightReport, WeightSide


def weights(
    a: object,
    b: object,
    *,
    trust_remote_code: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> WeightReport:
    """Compare the weights of `b` with those of `a`, the reference.

    Each is an nn.Module, a folder or a file of safetensors, an .onnx file, or what else other
    commands take for a model. Folders and files are mapped: one weight is in memory at a time.
    """
    from driftwalk_backends.weight_sources import open_weights

    show = progress or Progress()
    with show.stage("opening both", extra=True):
        first = open_weights(a, trust_remote_code=trust_remote_code)
        other = open_weights(b, trust_remote_code=trust_remote_code)
    with show.stage("matching names", extra=True):
        pairs = pair(first, other)
    show.expect(len(pairs))
    changes = []
    for one in pairs:
        with show.stage(one.name):
            changes.append(change(one, first, other))
    changes += without_partner(pairs, first, other)
    return WeightReport(
        **head(command, {"label": first.label}, (*first.notes, *other.notes)),
        reference=_side(first),
        candidate=_side(other),
        changes=in_order(changes, first),
    )


def in_order(changes: Iterable[WeightChange], first: WeightSource) -> tuple[WeightChange, ...]:
    """As the reference has them; what only the candidate has comes last."""
    order = {name: place for place, name in enumerate(first.tensors)}
    return tuple(sorted(changes, key=lambda one: order.get(one.name, len(order))))


def _side(source: WeightSource) -> WeightSide:
    distinct = [one for name, one in source.tensors.items() if name not in source.ties]
    entries = sum(math.prod(one.shape) for one in distinct)
    return WeightSide(source.label, source.kind, len(source.tensors), entries)


def change(one: Pair, first: WeightSource, other: WeightSource) -> WeightChange:
    """What became of one weight; both are read here, and let go."""
    a, b = first.tensors[one.name].read(), other.tensors[one.other].read()
    made = compare(a, b.T if one.turned else b, one.name, one.other)
    turned = made.turned or one.turned
    # A graph's product may take the matrix the other way round: that is no difference.
    if made.verdict == "transposed" and (first.kind == "graph") != (other.kind == "graph"):
        made = compare(a, b.T, one.name, one.other)
    return replace(
        made,
        matched=one.matched,
        turned=turned,
        shapes=(a.shape, b.shape),
        tied=_tied(one, first, other),
    )


def _tied(one: Pair, first: WeightSource, other: WeightSource) -> TiedOn:
    """The side on which alone it shares its memory with another; only modules can tell."""
    if first.kind != "module" or other.kind != "module":
        return ""
    ours, theirs = one.name in first.ties, one.other in other.ties
    return "" if ours == theirs else "reference" if ours else "candidate"


def without_partner(
    pairs: Iterable[Pair], first: WeightSource, other: WeightSource
) -> list[WeightChange]:
    """Weights that only one side has; one that is tied to a weight with a partner needs none."""
    known = tuple(pairs)
    ours = {name for one in known for name in first.group(one.name)}
    theirs = {name for one in known for name in other.group(one.other)}
    # Whether a graph lacks a weight, or has folded it into another, cannot be told.
    one_graph = (first.kind == "graph") != (other.kind == "graph")
    found = []
    for name, stored in first.tensors.items():
        if name not in ours and not (one_graph and first.kind == "graph"):
            dtypes, verdict = Dtypes(stored.dtype, None), _lacking(one_graph, "missing")
            found.append(WeightChange(name, "", verdict, "", (stored.shape, None), dtypes))
    for name, stored in other.tensors.items():
        if name not in theirs and not (one_graph and other.kind == "graph"):
            dtypes, verdict = Dtypes(None, stored.dtype), _lacking(one_graph, "extra")
            found.append(WeightChange("", name, verdict, "", (None, stored.shape), dtypes))
    return found


def _lacking(one_graph: bool, verdict: WeightVerdict) -> WeightVerdict:
    return "absent" if one_graph else verdict
