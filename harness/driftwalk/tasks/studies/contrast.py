"""How far two near-identical inputs are apart, token by token and layer by layer.

That distance is what a difference in meaning looks like inside this model, and so a unit for drift:
a candidate that strays by a thousandth of it will hardly take Paris for Berlin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...adapter import Backend
from ...dtypes import Array
from ...errors import ModelError, UsageError
from ...measure.tokens import TokenErrors
from ...progress import Progress
from ...stage import make_probe
from ...states import OUTPUT, Point, Probe, State
from .causality import Causality, causality, leak
from .contrast_result import Contrast, ContrastLayer
from .pairs import IDS, Pair, paired, single_row
from .running import head, opened

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

DEFAULT_PAIR = ("The capital of France is Paris.", "The capital of Germany is Berlin.")


def contrast(
    model: object,
    probe_a: object = None,
    probe_b: object = None,
    *,
    backend: object = "torch",
    candidate: object = None,
    blocks: str | None = None,
    trust_remote_code: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Contrast:
    """The difference between two inputs at every point of one backend; without any, a default pair.

    With a candidate, also its drift from that backend on both inputs, as a share of the difference.
    Sentences of different length are aligned by position up to the end of the shorter.
    """
    show = progress or Progress()
    sides = (backend,) if candidate is None else (backend, candidate)
    show.expect(1 + len(sides))
    with opened(model, *sides, blocks=blocks, trust_remote_code=trust_remote_code) as stage:
        with show.stage("making the inputs"):
            probes = make_pair(stage.model, probe_a, probe_b)
            known = causality_of(stage.model, stage.backends[0], probes[0])
            pairs = paired(*probes, cut=known.causal is True)
        with show.stage(f"both inputs on {stage.backends[0].spec}"):
            traced = [_traced(stage.backends[0], pair, known) for pair in pairs]
        drifts: dict[str, list[float]] = {}
        findings = [text for one in traced for text in one.findings]
        other = stage.backends[1] if candidate is not None else None
        if other is not None:
            with show.stage(f"both inputs on {other.spec}"):
                for pair, one in zip(pairs, traced, strict=True):
                    findings += _drifted(other, pair, one, known, drifts)
        top = head(stage.model, stage.backends[0], command)
        top["notes"] = (*top["notes"], *_notes(pairs, known))
        return Contrast(
            **top,
            rows=tuple(pair.row for pair in pairs),
            hashes=(probes[0].sha256, probes[1].sha256),
            causal=known.causal,
            causal_by=known.by,
            finding=findings[0] if findings else "",
            candidate=other.info if other is not None else None,
            layers=_layers(pairs, traced, drifts if other is not None else None, known),
        )


def distances(
    model: LoadedModel, backend: Backend, probes: tuple[Probe, Probe]
) -> dict[str, float]:
    """How far two inputs are apart at each point: root mean square per token that can differ."""
    known = causality_of(model, backend, probes[0])
    pairs = paired(*probes, cut=known.causal is True)
    traced = [_traced(backend, pair, known) for pair in pairs]
    return {layer.point.name: layer.distance for layer in _layers(pairs, traced, None, known)}


def causality_of(model: LoadedModel, backend: Backend, probe: Probe) -> Causality:
    """Of a model, seen where need be on the first row of a probe."""
    return causality(model, backend, single_row(probe, 0) if IDS in probe.inputs else probe)


def make_pair(model: LoadedModel, first: object, second: object) -> tuple[Probe, Probe]:
    """Both probes, checked against the model; the default pair where none is given."""

    if (first is None) != (second is None):
        raise UsageError("A contrast needs two inputs, or none for the default pair.")
    if first is not None:
        return make_probe(model, first), make_probe(model, second)
    if has_tokenizer(model):
        return make_probe(model, DEFAULT_PAIR[0]), make_probe(model, DEFAULT_PAIR[1])
    probe = make_probe(model, None, batch=1)
    if IDS not in probe.inputs:
        return probe, make_probe(model, None, batch=1, seed=1)
    ids = np.array(probe.inputs[IDS])
    middle = ids.shape[1] // 2
    ids[0, middle] = ids[0, middle] - 1 if ids[0, middle] > 0 else 1
    origin = f"{probe.origin}, token {middle} changed"
    return probe, make_probe(model, Probe({**probe.inputs, IDS: ids}, origin))


def has_tokenizer(model: LoadedModel) -> bool:
    try:
        return model.tokenizer is not None
    except ModelError:
        return False


@dataclass(eq=False)
class _Traced:
    """One pair on one backend: the states of both inputs, and leaks that were found."""

    states: tuple[dict[str, State], dict[str, State]]
    findings: list[str] = field(default_factory=list)


def _traced(backend: Backend, pair: Pair, known: Causality) -> _Traced:
    one, two = (
        {s.point.name: s for s in backend.trace(p).states if not s.point.name.startswith(OUTPUT)}
        for p in pair.probes
    )
    both = _Traced((one, two))
    both.findings += _leaks(backend, pair, one, two, known)
    return both


def _leaks(
    backend: Backend,
    pair: Pair,
    one: Mapping[str, State],
    two: Mapping[str, State],
    known: Causality,
) -> list[str]:
    """Points of a causal model where tokens differ before the inputs do; the first is told."""
    start = pair.row.start
    if not known.causal or not start:
        return []
    for name, state in one.items():
        other = two.get(name)
        if other is None or not _has_tokens(state, pair) or state.shape != other.shape:
            continue
        found = leak(state.array, other.array, start, known.slack)
        if found != 0:
            return [
                f"{backend.spec}: the model is causal ({known.by}), but at {name} states before "
                f"token {start}, the first that differs, are not the same (by up to {found:.3g}): "
                "they see later tokens. Look for an attention mask that is lost or shifted."
            ]
    return []


def _has_tokens(state: State, pair: Pair) -> bool:
    """Whether the second axis of a state is that of the tokens."""
    long = {probe.inputs[IDS].shape[1] for probe in pair.probes if IDS in probe.inputs}
    return len(state.shape) >= 3 and state.shape[1] in long


def _drifted(
    candidate: Backend,
    pair: Pair,
    traced: _Traced,
    known: Causality,
    drifts: dict[str, list[float]],
) -> list[str]:
    """Adds the squared drift of every token that can differ; returns leaks of the candidate."""
    seen = _traced(candidate, pair, known)
    for ours, theirs in zip(traced.states, seen.states, strict=True):
        for name, state in ours.items():
            other = theirs.get(name)
            if other is not None and other.shape == state.shape:
                found = lengths_of(state.array, other.array)[0]
                drifts.setdefault(name, []).extend(_counted(found, pair, known) ** 2)
    return seen.findings


def lengths_of(one: Array, other: Array) -> tuple[Array, Array, Array]:
    """L2, mean and standard deviation of the difference: [row, token], to the shorter's end."""
    a, b = (_by_token(state) for state in (one, other))
    common = min(a.shape[1], b.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):
        apart = a[:, :common].astype(np.float64) - b[:, :common].astype(np.float64)
        spread = apart.std(axis=-1, ddof=1) if apart.shape[-1] > 1 else np.zeros(apart.shape[:2])
        return np.sqrt(np.square(apart).sum(axis=-1)), apart.mean(axis=-1), spread


def _by_token(state: Array) -> Array:
    """[row, token, value]; what has no axis of tokens counts as one token."""
    if state.ndim == 3:
        return state
    return state.reshape(state.shape[0] if state.ndim > 1 else 1, 1, -1)


def _counted(values: Array, pair: Pair, known: Causality) -> Array:
    """The tokens that can differ: in a causal model, none before the first that does."""
    start = (pair.row.start or 0) if known.causal and values.shape[1] > 1 else 0
    return values[:, start : len(pair.row.differs) or None].ravel()


def _layers(
    pairs: list[Pair],
    traced: list[_Traced],
    drifts: Mapping[str, list[float]] | None,
    known: Causality,
) -> tuple[ContrastLayer, ...]:
    found: dict[str, tuple[Point, list[tuple[Array, Array, Array]], list[float]]] = {}
    for pair, one in zip(pairs, traced, strict=True):
        for name, state in one.states[0].items():
            other = one.states[1].get(name)
            if other is None:
                continue
            _, rows, squares = found.setdefault(name, (state.point, [], []))
            told = lengths_of(state.array, other.array)
            rows.append(told)
            squares.extend(_counted(told[0], pair, known) ** 2)
    layers = []
    for name, (point, rows, squares) in found.items():
        distance = _rms(squares)
        drift = _rms(drifts[name]) if drifts is not None and name in drifts else None
        l2, mean, std = (_nested([row[i] for row in rows]) for i in range(3))
        layers.append(
            ContrastLayer(point, l2, mean, std, distance, drift, share_of(drift, distance))
        )
    return tuple(layers)


def share_of(drift: float | None, distance: float) -> float | None:
    """Drift in units of a distance; none where there is no distance to speak of."""
    return drift / distance if drift is not None and distance > 0 else None


def _rms(squares: Any) -> float:
    return float(np.sqrt(np.mean(squares))) if len(squares) else 0.0


def _nested(rows: list[Array]) -> TokenErrors:
    """Rows of all pairs, filled with None to the longest."""
    flat = [row for several in rows for row in several]
    width = max(len(row) for row in flat)
    return tuple((*map(float, row), *[None] * (width - len(row))) for row in flat)


def _notes(pairs: list[Pair], known: Causality) -> list[str]:
    told = []
    for number, pair in enumerate(pairs):
        one, two = pair.row.lengths
        if one != two:
            told.append(
                f"Row {number}: one input has {one} tokens, the other {two}: compared position by "
                f"position up to token {min(one, two) - 1}; {abs(one - two)} have no partner"
                + (", and were cut off, which earlier states cannot see." if known.causal else ".")
            )
    return told
