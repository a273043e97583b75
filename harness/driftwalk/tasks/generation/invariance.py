"""Invariance: what deployments change, and the states of a sequence should not notice.

    prefill = decode       one run on all tokens, and step by step
    cached = recomputed    step by step on a cache, and with all tokens so far fed again
    chunked = whole        all tokens in pieces on a cache, and at once
    batched = alone        a row of the batch, and that row by itself
    padded = unpadded      a row with padding on its left, and without

Two runs of one side are bit-exact, within noise (each may be as far from the truth as is allowed),
or broken. Where float64 breaks as well, the model itself depends on the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...adapter import Backend, Decodes
from ...decoding import TOKENS, Decoding
from ...dtypes import Array
from ...errors import DriftwalkError
from ...judge.calibrate import Calibration
from ...layer_drift import LayerDrift, Side, both_or_one
from ...measure.halves import widened
from ...names import is_of_cache, is_shared
from ...states import Point, Probe, State, Trace
from ..constants import TWO_PATHS_APART
from .cells import token_ratios
from .feeding import pieces
from .prompt import MASKS, positions_of
from .result import Agreement, Generation, Invariance

CHUNK = 4
"""Tokens of a piece, where none was asked for."""
PADDING = 3
"""Tokens of padding, where the prompt has none."""
NOTHING_KEPT = "nothing is kept between steps"


@dataclass(frozen=True)
class Sequences:
    """The whole sequence, and what is to be known of its inputs."""

    probe: Probe
    tokens: str
    """The input that holds it."""
    prompt: int
    cache: str
    chunk: int
    takes: frozenset[str]
    """What the model's forward takes."""

    @property
    def ids(self) -> Array:
        return self.probe.inputs[self.tokens]

    @property
    def padding(self) -> Array:
        """Of each row, on its left."""
        mask = self.probe.inputs.get(MASKS[self.tokens])
        none: Array = np.zeros(len(self.ids), np.int64)
        return none if mask is None or mask.shape != self.ids.shape else (mask == 0).sum(1)

    @property
    def looked_at(self) -> int:
        """The row that is compared by itself: the one with most padding, or the last."""
        return int(self.padding.argmax()) if self.padding.any() else len(self.ids) - 1

    def plan(self, longer: int = 0) -> Decoding:
        """Step by step, with a prompt that is longer by some padding, or shorter."""
        steps = self.ids.shape[1] - self.prompt
        return Decoding((self.prompt + longer, *(1,) * steps), self.cache)

    def along(self) -> dict[str, Array]:
        """Inputs that have something for each token."""
        own = self.tokens == TOKENS[1]
        return {
            name: array
            for name, array in self.probe.inputs.items()
            if array.shape[:2] == self.ids.shape and (own or name.startswith("decoder_"))
        }

    def row(self, number: int) -> dict[str, Array]:
        """The inputs of one row."""
        rows = len(self.ids)
        return {
            name: array[number : number + 1] if array.ndim and len(array) == rows else array
            for name, array in self.probe.inputs.items()
        }

    def made(self, inputs: Mapping[str, Array]) -> Probe:
        return Probe(inputs, self.probe.origin, others=self.probe.others)


@dataclass(frozen=True, eq=False)
class Run:
    """One way to run a sequence, and which tokens of it are looked at."""

    probe: Probe
    plan: Decoding
    row: int | None = None
    """The one row that is looked at; None: all of them."""
    last: int = 0
    """How many tokens of it, from the end."""

    def states(self, trace: Trace, ids: str) -> dict[str, Array]:
        if self.row is None:
            return {state.point.name: state.array for state in trace}
        shape = self.probe.inputs[ids].shape
        return {
            state.point.name: state.array[self.row : self.row + 1, -self.last :]
            for state in trace
            if state.array.ndim >= 3 and state.shape[:2] == shape
        }


Change = tuple[str, tuple[Run, Run] | str]
"""Its name, and two runs that should agree; or why there are none."""


def changes(given: Sequences) -> Iterator[Change]:
    """Every change, for one sequence or several."""
    whole, stepped = Run(given.probe, Decoding()), Run(given.probe, given.plan())
    keeps = given.cache != "none"
    yield "prefill = decode", (whole, stepped)
    again = Run(given.probe, replace(given.plan(), cache="none"))
    yield "cached = recomputed", (stepped, again) if keeps else NOTHING_KEPT
    length = given.ids.shape[1]
    in_pieces = Run(given.probe, Decoding(pieces(length, given.chunk or CHUNK), given.cache))
    yield "chunked = whole", (whole, in_pieces) if keeps else NOTHING_KEPT
    row = given.looked_at
    alone = Run(given.made(given.row(row)), given.plan(), 0, length)
    yield "batched = alone", (_batched(given, row), alone)
    yield "padded = unpadded", _padded(given, row, alone)


def _batched(given: Sequences, row: int) -> Run:
    """A row among others; where it is the only one, beside itself read backwards."""
    if len(given.ids) > 1:
        return Run(given.probe, given.plan(), row, given.ids.shape[1])
    inputs = {
        name: np.concatenate([array, array]) if array.ndim and len(array) == 1 else array
        for name, array in given.probe.inputs.items()
    }
    inputs[given.tokens][1] = inputs[given.tokens][1, ::-1].copy()
    return Run(given.made(inputs), given.plan(), 0, given.ids.shape[1])


def _padded(given: Sequences, row: int, alone: Run) -> tuple[Run, Run] | str:
    """A row with its padding, or some, and without."""
    mask, length = MASKS[given.tokens], given.ids.shape[1]
    if mask not in given.takes:
        return f"the model takes no {mask}"
    own, along = int(given.padding[row]), given.along()
    inputs = given.row(row)
    if own:
        cut = {name: inputs[name][:, own:] for name in along}
        bare = Run(given.made({**inputs, **cut}), given.plan(-own), 0, length - own)
        return replace(alone, last=length - own), bare
    wider = {
        name: np.pad(inputs[name], ((0, 0), (PADDING, 0), *((0, 0),) * (inputs[name].ndim - 2)))
        for name in along
    }
    kept = np.pad(np.ones((1, length), np.int64), ((0, 0), (PADDING, 0)))
    wider[mask] = kept
    positions = positions_of(given.tokens)
    if positions in given.takes:
        wider[positions] = np.maximum(kept.cumsum(1) - 1, 0).astype(np.int64)
    padded = Run(given.made({**inputs, **wider}), given.plan(PADDING), 0, length)
    return padded, alone


@dataclass(frozen=True, eq=False)
class Judge:
    """What is allowed one side."""

    side: Side
    rows: Sequence[LayerDrift]
    calibration: Calibration | None
    shape: tuple[int, int]
    """Rows and tokens of the sequence."""

    def compare(
        self, one: Mapping[str, Array], other: Mapping[str, Array], row: int | None
    ) -> tuple[dict[str, float], bool]:
        """By point, how far two runs are apart in units of what is allowed; and whether at all."""
        used, equal = {}, True
        for layer in self.rows:
            name, allowed = layer.point.name, layer.sides.get(self.side, layer.tolerance)
            a, b = one.get(name), other.get(name)
            if a is None or b is None or allowed is None or is_of_cache(name) or is_shared(name):
                continue
            if a.shape != b.shape:
                used[name], equal = np.inf, False
                continue
            if row is not None:
                a, b = self._in_place(a, row), self._in_place(b, row)
            keep = self._keep(name, a)
            with np.errstate(all="ignore"):
                off = np.abs(widened(a).astype(np.float64) - widened(b))
            most = float((off if keep is None else off[keep]).max(initial=0.0))
            if most == 0:
                used[name] = 0.0
                continue
            room = allowed.atol + allowed.rtol * allowed.scale
            equal, used[name] = False, float(most / room) if room else np.inf
            used[name] = max(used[name], self._by_token(layer, a, b, keep))
        return used, equal

    def _keep(self, name: str, array: Array) -> Array | None:
        truth = self.calibration.truth if self.calibration is not None else None
        return None if truth is None else truth.probe.keep(name, array.shape)

    def _in_place(self, array: Array, row: int) -> Array:
        """The states of one row among those of all rows, which are zero."""
        whole = np.zeros((*self.shape, *array.shape[2:]), array.dtype)
        whole[row : row + 1, self.shape[1] - array.shape[1] :] = array
        return whole

    def _by_token(self, layer: LayerDrift, a: Array, b: Array, keep: Array | None) -> float:
        name = layer.point.name
        known = self.calibration.total.get(name) if self.calibration is not None else None
        if known is None or self.calibration is None or a.ndim < 3:
            return 0.0
        most = self.calibration.allowed(name).token_worst
        state = State(Point(name), b)
        return float(token_ratios(state, widened(a), known, most, keep).max(initial=0.0))


class Matrix:
    """The changes of one sequence, on one backend after the other."""

    def __init__(self, given: Sequences, truth: Backend | None) -> None:
        self._given, self._truth = given, truth
        self._changes = list(changes(given))

    def lines(
        self, backend: Backend, judge: Judge, ready: Mapping[Decoding, Trace]
    ) -> Iterator[Invariance]:
        """One line a change; `ready` are runs on the sequence that were made already."""
        sha = self._given.probe.sha256
        own = {(sha, plan): trace for plan, trace in ready.items()}
        exact: dict[tuple[str, Decoding], Trace] = {}
        for name, runs in self._changes:
            if isinstance(runs, str):
                yield Invariance(name, judge.side, "not run", note=runs)
                continue
            try:
                line = self._line(name, runs, backend, judge, own)
                if line.agreement == "broken" and self._truth is not None:
                    again = self._line(name, runs, self._truth, judge, exact)
                    line = replace(line, by_model=again.agreement == "broken")
            except DriftwalkError as error:
                line = Invariance(name, judge.side, "not run", note=str(error)[:300])
            yield line

    def _line(
        self,
        name: str,
        runs: tuple[Run, Run],
        backend: Backend,
        judge: Judge,
        made: dict[tuple[str, Decoding], Trace],
    ) -> Invariance:
        one, other = (self._states(backend, run, made) for run in runs)
        used, equal = judge.compare(
            one, other, None if runs[0].row is None else self._given.looked_at
        )
        if not used:
            return Invariance(name, judge.side, "not run", note="no point could be compared")
        if equal:
            return Invariance(name, judge.side, "bit-exact")
        beyond = [point for point in used if not used[point] <= TWO_PATHS_APART]
        point = beyond[0] if beyond else max(used, key=lambda name: used[name])
        agreement: Agreement = "broken" if beyond else "within noise"
        return Invariance(name, judge.side, agreement, used[point], point)

    def _states(
        self, backend: Backend, run: Run, made: dict[tuple[str, Decoding], Trace]
    ) -> dict[str, Array]:
        key = run.probe.sha256, run.plan
        if key not in made:
            assert isinstance(backend, Decodes)
            backend.decode(run.plan)
            try:
                made[key] = backend.trace(run.probe)
            finally:
                backend.decode(None)
        return run.states(made[key], self._given.tokens)


def with_invariance(report: Generation, lines: Iterable[Invariance]) -> Generation:
    """The report with its matrix; one that is broken by a side's own doing is drift."""
    every = tuple(lines)
    broken = [one for one in every if one.agreement == "broken" and not one.by_model]
    made = replace(report, invariance=every)
    if not broken or report.verdict != "pass":
        return made
    first = next((one for one in broken if one.side == "candidate"), broken[0])
    apart = f"{float(f'{first.used:.3g}'):,g} times the allowance apart at {first.point}"
    reason = (
        f"{first.change} does not hold for the {first.side}: the two runs are {apart}, though "
        "every step agrees"
    )
    whose = both_or_one({one.side for one in broken})
    return replace(made, verdict="drift", reason=reason, at_fault=whose)
