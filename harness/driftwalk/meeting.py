"""A candidate meets the reference's trace: by which standards, and what each layer comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .adapter import Backend
from .dtypes import Array
from .formats import HonestSides, Misstored
from .judge.calibrate import Calibration
from .judge.exact import ByChance
from .judge.format_split import FormatSplit
from .judge.in_float import another_computation
from .judge.routers import Routes
from .judge.sides import JudgedSide
from .judge.walk import Walk
from .judge.witness import Witness
from .layer_drift import LayerDrift, Side
from .make_report import Terms
from .progress import Progress
from .result import Observer, Report
from .stage import Stage
from .states import Probe, State, Trace
from .tolerance import Policy

Rows = Callable[[Backend], tuple[LayerDrift, ...]]
"""The layers of one more run, judged by the same standards; no calibration is made anew."""
Inspect = Callable[[Report, Backend, Probe, Rows], None]
"""What looks at a report, its candidate and others like that, while all is open."""


UNSEEN = (
    "What the candidate computes between its roundings was not held against the model: {}. "
    "It was judged by what it declares"
)


@dataclass(frozen=True, eq=False)
class Run:
    """A verification under way: the reference has run, all backends are open."""

    stage: Stage
    trace: Trace
    """The reference's."""
    observer: Observer
    """Whether looking at the reference changed anything."""
    witness: Witness
    depth: str
    show: Progress


@dataclass(frozen=True, eq=False)
class Standards:
    """What the candidate and the reference are judged by; made once, they fit other runs too."""

    witness: Witness
    ours: Calibration | None = None
    theirs: JudgedSide | None = None
    chance: ByChance | None = None
    doubt: str = ""
    split: FormatSplit | None = None

    @classmethod
    def of(cls, run: Run, candidate: Backend, policy: Policy) -> Standards:
        """Those for a candidate: no calibration where the policy asks for none."""
        base, witness, trace = run.witness, run.witness.of(candidate), run.trace
        if not policy.calibrated:
            return cls(witness)
        ours, theirs = _both_or_none(witness.calibration(candidate.info), base.judged(trace))
        doubt = witness.doubt(candidate.info) or base.doubt(trace.backend)
        chance = witness.by_chance(candidate.info).joined(base.by_chance(trace.backend))
        split = FormatSplit.between(theirs, ours, witness.declared)
        if split is not None and witness.sides is not None:
            found = _in_float(base, witness, witness.sides, candidate)
            split = split.also(found)
        return cls(witness, ours, theirs, chance, doubt, split)

    def walk(self, run: Run, candidate: Backend, terms: Terms) -> Walk:
        allowed = terms.policy, terms.allow_missing, self.ours, self.theirs, self.chance
        return Walk(run.trace, candidate.info, *allowed)

    def meet(self, run: Run, walk: Walk, candidate: Backend) -> Mapping[str, Array]:
        """Have a candidate run, and its layers judged; gives its outputs."""
        reference, witness = run.stage.backends[0], self.witness
        outputs = _walked(walk, reference, candidate, run.stage.probe, self.split)
        if self.ours is not None and witness.has_own_model:
            introduced = witness.introduced(candidate, self.ours)
            walk.judge_layers(introduced, may_be_copy=witness.tips, by_chance=witness.many_tip)
        elif points := walk.worth_a_closer_look:
            walk.raise_layers(witness.clearly_wrong(candidate, points))
        if self.split is not None:
            walk.raise_layers(self.split.misstored)
        return outputs

    def rows(self, run: Run, terms: Terms, candidate: Backend) -> tuple[LayerDrift, ...]:
        """What one more run gives: of the same candidate, or of one that is like it."""
        walk = self.walk(run, candidate, terms)
        self.meet(run, walk, candidate)
        rows = walk.layers()
        if all(row.ok for row in rows):
            return rows
        reference = run.stage.backends[0], run.witness
        routes = self.routes({"candidate": (candidate, self.witness), "reference": reference})
        return rows if routes is None else routes.without_ties(rows)

    def routes(self, sides: Mapping[Side, tuple[Backend, Witness]]) -> Routes | None:
        """What both sides chose, where a calibration says what honest arithmetic would choose."""
        if self.ours is None or self.theirs is None:
            return None
        return Routes.of(sides, {"candidate": self.ours, "reference": self.theirs.calibration})


def _in_float(
    base: Witness, own: Witness, sides: HonestSides, candidate: Backend
) -> tuple[str, Misstored] | None:
    """Where a graph that rounds between its products is another model, if it is."""
    calibration = base.calibration(candidate.info)
    if calibration is None:
        return None
    try:
        with base.stage("the quantised graph in float"):
            return another_computation(sides, calibration, base.probe)
    except Exception as error:  # a graph of others' may have anything in it
        own.note(candidate.info, UNSEEN.format(error))
        return None


def _both_or_none(
    ours: Calibration | None, theirs: JudgedSide | None
) -> tuple[Calibration, JudgedSide] | tuple[None, None]:
    """Both sides are judged, or none: an unjudged reference would pass whatever it is."""
    return (None, None) if ours is None or theirs is None else (ours, theirs)


def _walked(
    walk: Walk, reference: Backend, candidate: Backend, probe: Probe, split: FormatSplit | None
) -> Mapping[str, Array]:
    """Have the walk meet the candidate's states, each also against the reference's own block."""
    if split is not None:

        def meet(state: State) -> None:
            walk.meet(state)
            split.meet(state)

        return candidate.stream(probe, meet)
    if not walk.can_replay(reference):
        return candidate.stream(probe, walk.meet)
    met = candidate.trace(probe)
    walk.meet_all(met, reference)
    return met.outputs
