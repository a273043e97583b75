"""The second axis of a drift report: what `verify(contrast=...)` adds to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...adapter import Backend, BringsProbe
from ...effects import Meaning
from ...errors import UsageError
from ...layer_drift import LayerDrift
from ...result import Report
from ...verification import Addition, Run
from .contrast import distances, has_tokenizer, make_pair, share_of

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

DEFAULT = "default"
"""Stands for the built-in pair."""


@dataclass(frozen=True)
class Unit:
    """How far two inputs are apart on the reference."""

    first: str
    second: str
    distances: Mapping[str, float]


class InUnitsOfMeaning(Addition):
    """Each point's drift as a share of the distance between two inputs there."""

    def __init__(self, pair: object) -> None:
        self._pair = pair
        self._unit = Unit("", "", {})

    def refuse_graph(self) -> None:
        raise UsageError("A contrast needs a torch model, for its tokenizer; this is a graph.")

    def begin(self, run: Run) -> None:
        self._unit = measure(run.stage.torch_model, run.stage.backends[0], self._pair)

    def add(self, report: Report, candidate: Backend, run: Run) -> Report:
        return with_meaning(report, self._unit)


def read_pair(given: object) -> tuple[object, object]:
    """Two inputs from `a|b`, from a pair, or from `default`."""
    if given is True or given == DEFAULT:
        return None, None
    if isinstance(given, str):
        parts = [part.strip() for part in given.split("|")]
        if len(parts) != 2 or not all(parts):
            raise UsageError(
                f"--contrast {given!r}: write two inputs with one | between them, "
                f"'one text|another text', or {DEFAULT} for the built-in pair."
            )
        return parts[0], parts[1]
    if isinstance(given, Sequence) and len(given) == 2:
        return given[0], given[1]
    raise UsageError(f"contrast={given!r}: give a pair of inputs, 'a|b', or True.")


def measure(model: LoadedModel, backend: Backend, given: object) -> Unit:
    """Run both inputs on the reference."""
    if isinstance(backend, BringsProbe) and backend.own_probe is not None:
        raise UsageError(
            f"A contrast runs two more inputs on the reference, and {backend.spec} is a recording."
        )
    first, second = read_pair(given)
    if not has_tokenizer(model):
        first, second = (_as_ids(one) for one in (first, second))
    probes = make_pair(model, first, second)
    names = [probe.texts[0] if len(probe.texts) == 1 else probe.origin for probe in probes]
    return Unit(names[0], names[1], distances(model, backend, probes))


def _as_ids(given: object) -> object:
    """`5 17 3` is a row of ids where there is no tokenizer that could read it."""
    if not isinstance(given, str) or not given.replace(",", " ").replace(" ", "").isdigit():
        return given
    return [[int(word) for word in given.replace(",", " ").split()]]


def with_meaning(report: Report, unit: Unit) -> Report:
    """The same report, with each point's drift as a share of the distance there."""
    found = {}
    for layer in report.layers:
        share = share_of(per_token(layer), unit.distances.get(layer.point.name, 0.0))
        if share is not None and math.isfinite(share):
            found[layer.point.name] = share
    return replace(report, contrast=Meaning(unit.first, unit.second, unit.distances, found))


def per_token(layer: LayerDrift) -> float | None:
    """The root mean square of the tokens' errors; of rows, where a point has no tokens."""
    if layer.metrics is None or layer.verdict == "nonfinite":
        return None
    known = [v for row in layer.tokens or () for v in row if v is not None]
    if known:
        return math.sqrt(sum(v * v for v in known) / len(known))
    rows = layer.shape[0] if len(layer.shape) > 1 else 1
    return layer.metrics.rmse * math.sqrt(layer.metrics.total / max(1, rows))
