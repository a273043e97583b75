"""How far two near-identical inputs are apart, token by token and layer by layer.

That distance is what a difference in meaning looks like inside this model, and so a unit for drift:
a candidate that strays by a thousandth of it will hardly take Paris for Berlin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...adapter import Backend
from ...dtypes import FORMATS, Array
from ...environment import head
from ...measure.tokens import TokenErrors
from ...progress import Progress
from ...stage import Setting, open_sides
from ...states import OUTPUT, Point, Probe, State
from ..constants import CONTRAST_ROUNDOFFS
from .inputs import IDS, RowPair, make_pair, paired, single_row
from .results import AlignedRow, Contrast, ContrastLayer

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel


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
    show.expect(2 + len(sides))
    setting = Setting(model, blocks=blocks, trust_remote_code=trust_remote_code)
    with open_sides(setting, sides, show=show) as stage:
        loaded, (reference, *others) = stage.torch_model, stage.backends
        with show.stage("making the inputs"):
            probes = make_pair(loaded, probe_a, probe_b)
        with show.stage(f"both inputs on {reference.spec}"):
            causality, runs = _both_run(loaded, reference, probes)
        findings = [run.finding for run in runs]
        drifts: dict[str, list[float]] = {}
        for other in others:
            with show.stage(f"both inputs on {other.spec}"):
                findings += [_add_drift(drifts, other, run, causality) for run in runs]
        rows = tuple(run.pair.row for run in runs)
        notes = (*loaded.notes, *_length_notes(rows, causality.causal))
        return Contrast(
            **head(command, loaded.describe(), notes),
            backend=reference.info,
            rows=rows,
            hashes=(probes[0].sha256, probes[1].sha256),
            causal=causality.causal,
            causal_by=causality.by,
            finding=next(filter(None, findings), ""),
            candidate=others[0].info if others else None,
            layers=_layers(runs, drifts, causality),
        )


def distances(
    model: LoadedModel, backend: Backend, probes: tuple[Probe, Probe]
) -> dict[str, float]:
    """How far two inputs are apart at each point: root mean square per token that can differ."""
    causality, runs = _both_run(model, backend, probes)
    return {layer.point.name: layer.distance for layer in _layers(runs, {}, causality)}


# ---- may a state depend on later tokens? ----


@dataclass(frozen=True)
class Causality:
    """Whether a state may depend on later tokens: said by the model, or seen in a run.

    A model's own words are needed to call a leak a fault: of a run alone one can only say what is.
    """

    causal: bool | None
    """None: it cannot be said, because two stacks look at each other or there are no tokens."""
    by: str
    slack: float = 0.0
    """By how much, relative to a token's norm, equal tokens may still differ."""


def declared_causal(model: LoadedModel) -> bool | None:
    """What the model says: all its attention modules, or its config."""
    flags = {bool(m.is_causal) for m in model.module.modules() if hasattr(m, "is_causal")}
    if flags:
        return flags.pop() if len(flags) == 1 else None
    return True if getattr(model.config, "is_decoder", False) is True else None


def _causality(model: LoadedModel, backend: Backend, probe: Probe) -> Causality:
    """Of one model; a single row is run twice where the model itself says nothing."""
    from driftwalk_backends.precision import has_experts

    ids = probe.inputs.get(IDS)
    if ids is None or ids.ndim != 2 or any(name.startswith("decoder_") for name in probe.inputs):
        return Causality(None, "inputs are not one row of tokens that one stack reads")
    number = FORMATS.get(backend.info.dtype)
    slack = CONTRAST_ROUNDOFFS * number.roundoff if number and has_experts(model.module) else 0.0
    declared = declared_causal(model)
    if declared is not None:
        return Causality(declared, "the model's attention says so", slack)
    row = single_row(probe, 0)
    if row.inputs[IDS].shape[1] < 2:
        return Causality(None, "one token alone says nothing")
    seen = _seen_causal(backend, row, slack)
    return Causality(seen, "seen when only the last token was changed", slack)


def _seen_causal(backend: Backend, probe: Probe, slack: float) -> bool:
    """Whether nothing but the last token's states changes with the last token."""
    ids = np.array(probe.inputs[IDS])
    ids[0, -1] = ids[0, -2] if ids[0, -2] != ids[0, -1] else max(0, ids[0, -1] - 1)
    if ids[0, -1] == probe.inputs[IDS][0, -1]:
        ids[0, -1] += 1
    kept: dict[str, Array] = {}
    backend.stream(probe, lambda state: kept.update({state.point.name: state.array}))
    same: list[bool] = []
    last = ids.shape[1] - 1

    def check(state: State) -> None:
        old = kept.pop(state.point.name, None)
        if old is not None and old.ndim >= 3 and old.shape[1] == last + 1:
            same.append(_leak(old, state.array, last, slack) == 0)

    backend.stream(Probe({**probe.inputs, IDS: ids}, others=probe.others), check)
    return bool(same) and all(same)


def _leak(one: Array, other: Array, start: int, slack: float) -> float:
    """The largest difference before token `start`; zero where it is within the slack."""
    before, after = (state[:, :start].astype(np.float64) for state in (one, other))
    if start == 0 or np.array_equal(before, after, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.abs(before - after)
    largest = float(np.nanmax(apart, initial=0.0)) or float("nan")
    scale = float(np.sqrt(np.mean(np.square(before))))
    return 0.0 if largest <= slack * scale else largest


# ---- both inputs on one backend ----


@dataclass(frozen=True, eq=False)
class _PairRun:
    """One pair on one backend: the states of both inputs, and a leak that was found."""

    pair: RowPair
    states: tuple[dict[str, State], dict[str, State]]
    finding: str


def _both_run(
    model: LoadedModel, backend: Backend, probes: tuple[Probe, Probe]
) -> tuple[Causality, list[_PairRun]]:
    causality = _causality(model, backend, probes[0])
    pairs = paired(*probes, cut=causality.causal is True)
    return causality, [_run(backend, pair, causality) for pair in pairs]


def _run(backend: Backend, pair: RowPair, causality: Causality) -> _PairRun:
    one, two = (
        {s.point.name: s for s in backend.trace(p).states if not s.point.name.startswith(OUTPUT)}
        for p in pair.probes
    )
    finding, start = "", pair.row.start
    for name, state in one.items() if causality.causal and start else ():
        other = two.get(name)
        if other is None or not _has_tokens(state, pair) or state.shape != other.shape:
            continue
        apart = _leak(state.array, other.array, start or 0, causality.slack)
        if apart != 0:
            finding = (
                f"{backend.spec}: the model is causal ({causality.by}), but at {name} states "
                f"before token {start}, the first that differs, are not the same (by up to "
                f"{apart:.3g}): they see later tokens. Look for an attention mask that is lost "
                "or shifted."
            )
            break
    return _PairRun(pair, (one, two), finding)


def _has_tokens(state: State, pair: RowPair) -> bool:
    """Whether the second axis of a state is that of the tokens."""
    lengths = {probe.inputs[IDS].shape[1] for probe in pair.probes if IDS in probe.inputs}
    return len(state.shape) >= 3 and state.shape[1] in lengths


def _add_drift(
    drifts: dict[str, list[float]], candidate: Backend, run: _PairRun, causality: Causality
) -> str:
    """Add the squared drift of every token that can differ; returns a leak of the candidate."""
    theirs = _run(candidate, run.pair, causality)
    for expected, states in zip(run.states, theirs.states, strict=True):
        for name, state in expected.items():
            other = states.get(name)
            if other is not None and other.shape == state.shape:
                l2 = _lengths_of(state.array, other.array)[0]
                drifts.setdefault(name, []).extend(_counted(l2, run.pair, causality) ** 2)
    return theirs.finding


def _lengths_of(one: Array, other: Array) -> tuple[Array, Array, Array]:
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


def _counted(values: Array, pair: RowPair, causality: Causality) -> Array:
    """The tokens that can differ: in a causal model, none before the first that does."""
    start = (pair.row.start or 0) if causality.causal and values.shape[1] > 1 else 0
    return values[:, start : len(pair.row.differs) or None].ravel()


def _layers(
    runs: Sequence[_PairRun], drifts: Mapping[str, list[float]], causality: Causality
) -> tuple[ContrastLayer, ...]:
    lengths: dict[str, list[tuple[Array, Array, Array]]] = {}
    squares: dict[str, list[float]] = {}
    points: dict[str, Point] = {}
    for run in runs:
        first, second = run.states
        for name in (name for name in first if name in second):
            points.setdefault(name, first[name].point)
            apart = _lengths_of(first[name].array, second[name].array)
            lengths.setdefault(name, []).append(apart)
            squares.setdefault(name, []).extend(_counted(apart[0], run.pair, causality) ** 2)
    layers = []
    for name, point in points.items():
        distance = _rms(squares[name])
        drift = _rms(drifts[name]) if name in drifts else None
        l2, mean, std = (_nested(rows) for rows in zip(*lengths[name], strict=True))
        layers.append(
            ContrastLayer(point, l2, mean, std, distance, drift, share_of(drift, distance))
        )
    return tuple(layers)


def share_of(drift: float | None, distance: float) -> float | None:
    """Drift in units of a distance; none where there is no distance to speak of."""
    return drift / distance if drift is not None and distance > 0 else None


def _rms(squares: Any) -> float:
    return float(np.sqrt(np.mean(squares))) if len(squares) else 0.0


def _nested(rows: Sequence[Array]) -> TokenErrors:
    """Rows of all pairs, filled with None to the longest."""
    flat = [row for several in rows for row in several]
    width = max(len(row) for row in flat)
    return tuple((*map(float, row), *[None] * (width - len(row))) for row in flat)


def _length_notes(rows: Sequence[AlignedRow], causal: bool | None) -> list[str]:
    notes = []
    for number, (one, two) in enumerate(row.lengths for row in rows):
        if one != two:
            notes.append(
                f"Row {number}: one input has {one} tokens, the other {two}: compared position by "
                f"position up to token {min(one, two) - 1}; {abs(one - two)} have no partner"
                + (", and were cut off, which earlier states cannot see." if causal else ".")
            )
    return notes
