"""`driftwalk repair MODEL --candidate S --goal kl=0.01`: measured, not guessed from error norms.

Each run is the declared model (formats/) in float64 with some parts back in float, held against
the truth at the outputs. That is what the format costs; what a kernel adds is not asked here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...adapter import Backend, BringsModel, LeavesOut, Prepares
from ...api import verify
from ...dtypes import Array
from ...environment import head
from ...errors import BackendError, DriftwalkError, UsageError
from ...formats import Declared, decibels
from ...judge.format_split import decided_otherwise, split
from ...names import LOGITS, is_output
from ...progress import Progress
from ...registry import create
from ...stage import Setting, open_stage
from ...states import Probe, State, Trace
from .result import Goal, Part, Repair, Stage
from .search import Found, search
from .words import lists_for

if TYPE_CHECKING:
    from driftwalk_backends.formats.restoring import Restoring
    from driftwalk_backends.sources import LoadedModel

BY = ("block", "module")


def repair(
    model: object,
    candidate: object,
    goal: str = "kl=0.01",
    by: str = "block",
    probe: object = None,
    *,
    command: str = "",
    progress: Progress | None = None,
    **options: Any,
) -> Repair:
    """Which parts of a quantised candidate to leave in float, so that its format meets a goal.

    `goal` is `kl=X`, the mean KL divergence from the truth at most, or `snr=DB`, decibels at the
    worst output at least. Parts are blocks, or with by="module" single modules. All other options
    are those of `stage.Setting` (`batch`, `length`, `seed`, `blocks`, `trust_remote_code`).
    """
    asked, show = read_goal(goal), progress or Progress()
    if by not in BY:
        raise UsageError(f"by={by!r}: parts are by {' or by '.join(BY)}.")
    setting = Setting.asked(model, probe, **options)
    with open_stage(setting, [candidate], show=show) as stage:
        (side,) = stage.backends
        declared, says = _declared(side, stage.probe)
        whole = _whole(stage.torch_model, stage.probe)
        true = _ends(whole)
        if asked.kind == "kl" and not _decides(true):
            raise UsageError(
                "goal kl=: the model decides nothing (it has no logits), so that there is no KL "
                "divergence; ask for an SNR instead: snr=30."
            )
        parts = _parts(says, [state.point.module for state in whole], by)
        show.expect(len(parts) + 1)
        restoring = _restoring(stage.torch_model, declared)
        with create("truth", restoring.model) as wide:
            cost = _Cost(restoring, wide, true, asked, show)
            found = search(
                {name: sum(says.saved[path] for path in paths) for name, paths in parts.items()},
                lambda chosen: cost.of([path for name in chosen for path in parts[name]]),
                cost.goal,
            )
        reached = found.loss <= cost.goal
        chosen = found.chosen if reached else ()
        modules = [path for name in chosen for path in parts[name]]
        some = 0 < len(chosen) < len(parts)  # with all of them in float nothing is quantised
        remade = side.leaving_out(modules) if some and isinstance(side, LeavesOut) else None
        made = Repair(
            **head(command, stage.model.describe(), (*stage.model.notes, *stage.probe.notes)),
            candidate=side.info,
            goal=asked,
            before=cost.measure(found.before),
            after=cost.measure(found.loss),
            bytes=sum(one.bytes for one in says.stored),
            parts=_told(found, parts, says, cost),
            steps=tuple(Stage(s.part, cost.measure(s.loss), s.bytes) for s in found.steps),
            chosen=chosen,
            reached=reached,
            runs=found.runs,
            lists=lists_for(side.info.name, modules, says.sources),
        )
        loaded, given = stage.torch_model, stage.probe
    if remade is None:
        return made
    with show.stage("the candidate made anew", extra=True):
        return _verified(made, remade, loaded, given)


def read_goal(text: str) -> Goal:
    """`kl=0.01` or `snr=30`."""
    kind, _, number = text.partition("=")
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if kind == "kl" and limit >= 0 and math.isfinite(limit):
        return Goal("kl", limit)
    if kind == "snr" and math.isfinite(limit):
        return Goal("snr", limit)
    raise UsageError(f"goal {text!r}: expected kl=X (zero or more) or snr=DECIBELS.")


def _declared(side: Backend, probe: Probe) -> tuple[LoadedModel, Declared]:
    """The candidate as it declares itself, in torch, module by module."""
    if isinstance(side, Prepares):
        side.prepare(probe)
    made = side.honest_model() if isinstance(side, BringsModel) else None
    if made is None or made.declared is None or not made.declared.saved:
        raise BackendError(
            f"{side.spec} declares no format whose weights could be put back into float one by "
            "one: it is not quantised, or not in a way that driftwalk reads (docs/quantised.md)."
        )
    return made, made.declared


def _restoring(model: LoadedModel, declared: LoadedModel) -> Restoring:
    from driftwalk_backends.formats.restoring import Restoring

    return Restoring(model, declared)


def _whole(model: object, probe: Probe) -> Trace:
    with create("truth", model) as truth:
        return truth.trace(probe)


def _ends(whole: Trace) -> Trace:
    """The outputs; of a model that has none of its own, its last state."""
    ends = tuple(state for state in whole if is_output(state.point.name))
    return replace(whole, states=ends or whole.states[-1:])


def _decides(true: Trace) -> bool:
    logits = true.state(LOGITS)
    return logits is not None and logits.array.ndim >= 2 and logits.array.shape[-1] > 1


class _Cost:
    """What the format costs with some modules in float, as a loss; and as the goal's measure."""

    def __init__(
        self, restoring: Restoring, wide: Backend, true: Trace, asked: Goal, show: Progress
    ) -> None:
        self._restoring, self._wide = restoring, wide
        self._true, self._asked, self._show = true, asked, show

    @property
    def goal(self) -> float:
        asked = self._asked
        return asked.limit if asked.kind == "kl" else 10 ** (-asked.limit / 20)

    def measure(self, loss: float) -> float:
        """A loss in the goal's own unit."""
        return loss if self._asked.kind == "kl" else decibels(loss)

    def of(self, modules: Sequence[str]) -> float:
        made: dict[str, Array] = {}

        def sink(state: State) -> None:
            if self._true.state(state.point.name) is not None:
                made[state.point.name] = state.array

        stage = self._show.stage(f"{len(modules)} modules in float", extra=True)
        with stage, self._restoring.restored(modules):
            self._wide.stream(self._true.probe, sink)
        if self._asked.kind == "kl":
            return self._kl(made)
        return max((self._relative(name, array) for name, array in made.items()), default=math.inf)

    def _kl(self, made: Mapping[str, Array]) -> float:
        before, after = self._true[LOGITS], made.get(LOGITS)
        if after is None:
            return math.inf
        found = decided_otherwise(before, after, self._true.probe)
        return found.kl_mean if found is not None else math.inf

    def _relative(self, name: str, array: Array) -> float:
        true = self._true[name]
        if array.shape != true.shape:
            return math.inf
        cost = split(array, array, true, self._true.probe.keep(name, true.shape))
        return cost.format / cost.scale if cost.scale > 0 else float(np.sign(cost.format))


def _parts(says: Declared, blocks: Sequence[str], by: str) -> dict[str, list[str]]:
    """What is restored at once, by name: the modules of a block, or of one stored tensor."""
    parts: dict[str, list[str]] = {}
    shared: dict[str, str] = {}
    for path in says.saved:
        inside = [block for block in blocks if block and path.startswith(f"{block}.")]
        name = max(inside, key=len) if inside and by == "block" else path
        if path in says.sources:
            name = shared.setdefault(says.sources[path], name)
        parts.setdefault(name, []).append(path)
    return parts


def _told(
    found: Found, parts: Mapping[str, Sequence[str]], says: Declared, cost: _Cost
) -> tuple[Part, ...]:
    ranks = {name: rank for rank, name in enumerate(found.ranking, 1)}
    return tuple(
        Part(
            name=name,
            modules=tuple(paths),
            bytes=sum(says.saved[path] for path in paths),
            alone=cost.measure(found.alone[name]),
            rank=ranks[name],
        )
        for name, paths in parts.items()
    )


def _verified(made: Repair, remade: object, model: LoadedModel, probe: Probe) -> Repair:
    """With the verdict of the candidate that was made anew, the goal its limit."""
    limits: dict[str, Any] = {"max_format_kl": None, "min_format_snr": None}
    limits["max_format_kl" if made.goal.kind == "kl" else "min_format_snr"] = made.goal.limit
    try:
        report = verify(model, remade, probe=probe, **limits)
    except DriftwalkError as error:
        note = f"The candidate could not be verified without them: {error}"
        return replace(made, notes=(*made.notes, note))
    return replace(made, remade=report.candidate.spec, verdict=report.verdict)
