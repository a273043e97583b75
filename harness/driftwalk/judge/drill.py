"""Drill-down: the judgement of blame.py once more, inside the guilty layer, module by module.

    introduced at m   =   c_m - X_m(the candidate's states before m)
    guilty            <=>   |introduced| > YARDSTICKS * |the yardstick's own| + floor

The truth's modules get what the candidate's modules gave, so an error stays where it was made. What
is computed between modules has a name of its own where a module takes it in:
`layer.5.mlp.c_proj:in` is what `mlp` did before it called `c_proj`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np

from ..adapter import Backend, LooksInside
from ..dtypes import Array
from ..errors import UsageError
from ..layer_drift import ChannelErrors, Culprit, LayerDrift
from ..measure.norms import Norms, difference, distance, norms_of
from ..names import layer_of
from ..spec import NEEDS_TEXT
from ..states import Point, Probe, State, Trace
from .calibrate import Calibration, honest_layers
from .constants import CLEARLY_WRONG, NAMED_SHARE, NAMED_TIMES_EVEN, YARDSTICKS
from .depth import lacking_before
from .exact import measurable
from .replay import replay_pairs

MOST_CHANNELS = 256
"""Of more channels, neighbours are kept as one."""


SPREAD = "; no module inside stands out"
FUSED = "; no state inside it could be compared"
VANISHED = "; gone when the states inside are exposed: suspect a fusion, or the export itself"

_INPUT = ":in"


def look(backend: Backend, depth: str, layer: str = "") -> tuple[str, str]:
    """Have a backend look closer from now on; gives back how it looked before."""
    if isinstance(backend, LooksInside):
        before = backend.looks_at
        backend.look(depth, layer)
        return before
    if depth != "block":
        raise UsageError(f"Backend {backend.spec} cannot look inside blocks; use depth='block'.")
    return "block", ""


def finer_depth(
    depth: str, sides: Iterable[Backend], root: LayerDrift | None, inside: Culprit | None
) -> str:
    """The depth at which more of all sides is seen; empty where there is none.

    What a program does when it is asked is only known once it gave states inside of a layer.
    """
    drilled = root is not None and inside is not None and inside.module != root.point.module
    seen = (isinstance(s, LooksInside) and (drilled or s.name not in NEEDS_TEXT) for s in sides)
    return "module" if depth != "module" and all(seen) else ""


@contextmanager
def looking(backend: Backend, depth: str, layer: str = "") -> Iterator[None]:
    """Have a backend look closer for a while."""
    before = look(backend, depth, layer)
    try:
        yield
    finally:
        look(backend, *before)


@dataclass(frozen=True)
class Concentration:
    """Where in a state the error lies: one channel, one (row, position), both, or all over."""

    channel: int | None = None
    token: tuple[int, int] | None = None
    channels: ChannelErrors | None = field(default=None, compare=False)
    """Where a channel is named: the error of each."""

    @property
    def words(self) -> str:
        places = []
        if self.channel is not None:
            places.append(f"channel {self.channel}")
        if self.token is not None:
            places.append(f"row {self.token[0]} token {self.token[1]}")
        if not places:
            return "all channels and tokens (suspect an operation or a dtype)"
        suspect = "a weight" if self.channel is not None else "a position or a mask"
        return f"{', '.join(places)} (suspect {suspect})"


@dataclass(frozen=True)
class Drilled:
    """What was found inside a layer."""

    culprit: Culprit
    after_others: bool = False
    """Whether a state inside the layer, before the culprit, was given to it: no layer before may
    have made what it made."""


@dataclass(frozen=True)
class Introduced:
    """What one point made itself: how much, on what scale, and where in the state."""

    point: Point
    error: Norms
    scale: Norms
    where: Concentration
    tokens: int = 0
    """How many there are, rows counted apart."""


def concentration(difference: Array, keep: Array | None = None) -> Concentration:
    """Name the channel (last axis) and the (row, position) that hold most of a difference."""
    with np.errstate(all="ignore"):
        squares = np.square(difference.astype(np.float64))
    broken = ~np.isfinite(squares)
    if broken.any():  # nothing weighs more than what is not a number
        squares = broken.astype(np.float64)
    if keep is not None:
        squares = squares * keep.reshape(keep.shape + (1,) * (squares.ndim - 2))
    if squares.ndim < 2:
        return Concentration()
    sums = squares.reshape(-1, squares.shape[-1]).sum(0)
    channel = _most(sums, squares.shape[-1])
    named = channel is not None and not broken.any()
    per_channel = squares.size / squares.shape[-1] * (1.0 if keep is None else float(keep.mean()))
    channels = by_channel(np.sqrt(sums / max(1.0, per_channel))) if named else None
    if squares.ndim < 3:
        return Concentration(channel, None, channels)
    rows, positions = squares.shape[:2]
    counted = rows * positions if keep is None else int(keep.sum())
    place = _most(squares.reshape(rows * positions, -1).sum(1), counted)
    return Concentration(channel, None if place is None else divmod(place, positions), channels)


def by_channel(rms: Array) -> ChannelErrors:
    """A number for each channel; of many, the largest of neighbours."""
    step = -(-len(rms) // MOST_CHANNELS)
    return ChannelErrors(
        len(rms), tuple(np.maximum.reduceat(rms, range(0, len(rms), step)).tolist())
    )


def _most(shares: Array, of: int) -> int | None:
    """The one that holds most of the total, if it stands out among `of`."""
    total, largest = float(shares.sum()), int(shares.argmax())
    share = float(shares[largest]) / total if total > 0 else 0.0
    return largest if share > max(NAMED_SHARE, NAMED_TIMES_EVEN / of) else None


def introduced(
    truth: object, trace: Trace, calibration: Calibration | None = None
) -> dict[str, Introduced]:
    """What each point of a trace made itself, by one replay; only numbers are kept."""
    found: dict[str, Introduced] = {}

    def meet(state: State, made: State) -> None:
        if not measurable(state):
            return
        name, own, true = made.point.name, state.array, made.array
        keep = trace.probe.keep(name, true.shape)
        if calibration is None:
            error = distance(own, true, keep)
        else:
            error = calibration.own_error(name, own, true)
        where = concentration(difference(own, true), keep)
        tokens = int(keep.sum()) if keep is not None else true.size // max(1, true.shape[-1])
        found[name] = Introduced(made.point, error, norms_of(true, keep), where, tokens)

    with np.errstate(all="ignore"):
        replay_pairs(truth, trace, meet)
    return found


def drill(
    truth: Backend,
    yardstick: Backend,
    candidate: Backend,
    trace: Trace,
    calibration: Calibration,
    cause: Point,
) -> Drilled:
    """Where inside the root cause: a module where the candidate can say, else the point itself.

    `trace` is the candidate's, at the depth of the run; `cause` is guilty in it.
    """
    layer, remark = layer_of(cause.name), ""
    if layer is not None and isinstance(candidate, LooksInside):
        closer, found, ratios, order = _by_module(
            truth, yardstick, candidate, trace.probe, calibration, layer
        )
        guilty = _guilty({n: ratios[n] for n in found if layer_of(n) == layer})
        if guilty is not None:
            who = between(guilty, layer, order, found) or subject(guilty, layer, found)
            if not any(name.startswith(f"{layer}.") for name in found):
                remark = FUSED if who != layer else ""
                who = layer
            after = any(layer_of(name) == layer for name in _until(guilty, found))
            return Drilled(culprit(found[guilty], ratios[guilty], who, remark), after)
        again = excess(introduced(truth, closer, calibration), calibration).get(cause.name, 0.0)
        remark = SPREAD if again > YARDSTICKS else VANISHED
    found = introduced(truth, trace, calibration)
    ratio = excess(found, calibration)[cause.name]
    return Drilled(culprit(found[cause.name], ratio, cause.name, remark))


def _until(name: str, found: Iterable[str]) -> Iterator[str]:
    """The points that were met before another."""
    return takewhile(lambda other: other != name, found)


def _guilty(ratios: Mapping[str, float]) -> str | None:
    """The first that is clearly wrong; if none is, the first that is guilty."""
    # Where the yardstick overflows too, the ratio is no number.
    beyond = (
        next((n for n in ratios if not ratios[n] <= most), None)
        for most in (CLEARLY_WRONG, YARDSTICKS)
    )
    return next((name for name in beyond if name is not None), None)


def first_guilty_layer(
    truth: Backend, yardstick: Backend, candidate: Backend, probe: Probe, calibration: Calibration
) -> tuple[str | None, tuple[str, ...]]:
    """The layer of the first module that is guilty, for drift that no whole block explains; and the
    layers right before that module in which none was seen."""
    _, _, ratios, order = _by_module(truth, yardstick, candidate, probe, calibration)
    guilty = next((name for name, ratio in ratios.items() if not ratio <= YARDSTICKS), None)
    if guilty is None:
        return None, ()
    layer = layer_of(guilty) or guilty
    return layer, tuple(other for other in unseen_layers(guilty, order, ratios) if other != layer)


def unseen_layers(name: str, order: Sequence[str], measured: Container[str]) -> tuple[str, ...]:
    """The layers of the points right before one, in order, that were not measured."""
    lacking = lacking_before(name, order, measured)
    return tuple(dict.fromkeys(layer_of(other) or other for other in lacking))


def clearly_wrong(
    truth: Backend,
    yardstick: Backend,
    candidate: Backend,
    probe: Probe,
    calibration: Calibration,
    points: Iterable[str],
) -> dict[str, float]:
    """Points inside whose layer a module is clearly wrong, and how many times CLEARLY_WRONG."""
    found: dict[str, float] = {}
    for point in points:
        layer = layer_of(point)
        if layer is None or point != layer:
            continue
        _, _, ratios, _ = _by_module(truth, yardstick, candidate, probe, calibration, layer)
        worst = max((ratio for n, ratio in ratios.items() if layer_of(n) == layer), default=0.0)
        if worst > CLEARLY_WRONG:
            found[point] = worst / CLEARLY_WRONG
    return found


def _by_module(
    truth: Backend,
    yardstick: Backend,
    candidate: Backend,
    probe: Probe,
    calibration: Calibration,
    layer: str = "",
) -> tuple[Trace, dict[str, Introduced], dict[str, float], tuple[str, ...]]:
    """The candidate's trace of the modules inside a layer, or inside all, what each of them
    introduced, that in units of the yardstick's own, and all modules that the yardstick has."""
    with ExitStack() as looks:
        for backend in (truth, yardstick, candidate):
            looks.enter_context(looking(backend, "module", layer))
        honest = yardstick.trace(probe)
        inside = replace(calibration, own=honest_layers(truth, honest, calibration.mixture))
        trace = candidate.trace(probe)
        found = introduced(truth, trace, inside)
    return trace, found, excess(found, inside), honest.names


def excess(found: Mapping[str, Introduced], calibration: Calibration) -> dict[str, float]:
    """Introduced errors in units of the yardstick's own; guilty above YARDSTICKS: blame.py."""
    room = calibration.room({name: item.error for name, item in found.items()})
    return {
        name: YARDSTICKS * item.error.over(calibration.allowed_own(name, room))[0]
        for name, item in found.items()
    }


def subject(name: str, layer: str, names: Iterable[str]) -> str:
    """A point inside a layer in words: `layer.5 mlp.c_proj`, `layer.5 attn, before c_proj`."""
    path = name.removeprefix(layer).removeprefix(".")
    if path.endswith(_INPUT):
        outer, _, inner = path.removesuffix(_INPUT).rpartition(".")
        return f"{layer} {outer}".strip() + f", before {inner}"
    has_modules = any(other.startswith(f"{name}.") for other in names)
    return f"{layer} {path}".strip() + (", after its modules" if has_modules else "")


def between(name: str, layer: str, order: Sequence[str], measured: Container[str]) -> str:
    """Where an error may lie if what comes right before a point was not measured; else nothing.

    `layer.5, between attn and its end`: a graph that fuses modules has no states of them, and what
    they do wrong first shows at the next point that it has.
    """
    place = order.index(name) if name in order else 0
    start = place
    while start > 0 and order[start - 1] not in measured and layer_of(order[start - 1]) == layer:
        start -= 1
    if start == place:
        return ""
    before = order[start - 1] if start else ""
    first = _place(before, layer) if before.startswith(f"{layer}.") else "its input"
    return f"{layer}, between {first} and {_place(name, layer)}"


def _place(name: str, layer: str) -> str:
    path = name.removeprefix(layer).removeprefix(".")
    if path.endswith(_INPUT):
        return f"the input of {path.removesuffix(_INPUT)}"
    return path or "its end"


def culprit(found: Introduced, ratio: float, who: str, remark: str = "") -> Culprit:
    """The verdict in one sentence."""
    amount = f"{ratio:.0f}" if 10 <= ratio < 1e5 else f"{ratio:.2g}"
    what = f"introduced {amount}\u00d7 the yardstick" if math.isfinite(ratio) else "made NaN or Inf"
    sentence = f"{who}: {what}, {found.where.words}{remark}"
    where = found.where
    return Culprit(found.point.module, ratio, where.channel, where.token, sentence, where.channels)
