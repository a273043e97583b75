"""The worst input: the probe that uses most of its allowance, found by changing those of a set.

A run makes some mutants of one good probe, all of one shape, and looks at them at once (looks.py):
both sides run with all of them as rows of one batch, and no truth is run. That in which the sides
differ most is judged as ever, if they differ more than in its parent, and kept if it uses more of
its allowance. Kept is also the mutant that drives some module of the reference farther than any
probe before it: what saturates or overflows shows nothing until it does.

Each run has random numbers of its own, made of the seed and its number: a search that was stopped
goes on as if it had not been.

The mutants of some runs go uphill, by the gradient of what a module gives at most: of an
activation, or of the module where most of the allowance is used. Their parent is the probe that
drives it farthest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ...errors import DriftwalkError, UsageError
from ...progress import Progress
from ...result import Report
from ...stage import Setting, check_names, is_graph, torch_model
from ...states import Probe
from ...tolerance import make_policy
from ..constants import (
    FARTHER_TIMES,
    FARTHEST_PARENT_SHARE,
    KEPT_USE,
    PROMISING_SHARE,
    UNSCREENED_SHARE,
    UPHILL_SHARE,
    UPWARD_TIMES,
)
from ..shapes.run import open_for_all
from .corpus import Corpus, Kept, Question
from .entries import made, source_of
from .looks import Look, fit
from .mutation import Room, mutants, smaller
from .run import Verify, own_set
from .weighing import Weighing

LONGEST = 512
"""Positions of a mutant at most."""
SHRINKING = 0.15
"""The share of the minutes that is kept for shrinking."""
SHRINKS, SHRINKS_WITHOUT_DRIFT = 160, 16
"""Smaller forms of the worst probe that are tried."""
WORST, SMALLEST = "worst.safetensors", "smallest.safetensors"


@dataclass(frozen=True, eq=False)
class Found:
    """What a search came to."""

    report: Report
    """Of the worst probe."""
    worst: Kept
    start: float
    """The largest use in the set that the search began with."""
    smallest: Probe
    smallest_used: float
    runs: int
    tried: int
    """Mutants that both sides were run with."""
    interrupted: bool


def search(
    verify: Verify,
    model: object,
    candidate: object,
    corpus: str | Path,
    reference: object = None,
    probes: object = "builtin:edge",
    *,
    runs: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    blocks: str | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> Found:
    """Look for the probe with the largest drift relative to its allowance.

    So many `runs`, counted from the beginning of the corpus, or `minutes`; whichever ends first.
    The minutes are those of all but the loading of the model and the last report; the set that the
    search begins with is judged whole, however long that takes.
    """
    if runs is None and minutes is None:
        raise UsageError("A search ends after so many runs or minutes: say how many.")
    show = progress or Progress()
    check_names([one for one in (reference, candidate) if one is not None])
    with show.stage("loading the model"):
        opened = Setting.asked(
            model, blocks=blocks, trust_remote_code=trust_remote_code
        ).open_model()
    if is_graph(opened):
        raise UsageError("The worst input is searched for in models that PyTorch runs.")
    policy = make_policy(options.get("policy", "calibrated"))
    question = Question(
        model=torch_model(opened).fingerprint,
        reference=str(reference or "torch"),
        candidate=candidate if isinstance(candidate, str) else type(candidate).__name__,
        probes=str(probes)[:200] if isinstance(probes, str | Path) else "list",
        policy=policy.name,
        depth=str(options.get("depth", "block")),
        seed=seed,
    )
    kept = Corpus(Path(corpus), question)
    with open_for_all(opened, reference, [candidate]) as (first, (other,)):
        began = time.monotonic()
        ends = math.inf if minutes is None else began + 60 * minutes
        judge = Weighing(verify, opened, first, other, options)
        climb = _Climb(judge, kept, _room(opened), seed, show)
        if not kept.kept:
            climb.begin(probes)
        climb.climb(runs, ends - SHRINKING * (ends - began) if minutes is not None else ends)
        return climb.end(ends)


def _room(model: Any) -> Room:
    from driftwalk_backends.probes import max_positions, table_size

    positions = max_positions(model, "input_ids") or LONGEST
    return Room(table_size(model.module) or 0, min(positions, LONGEST))


class _Climb:
    def __init__(
        self, judge: Weighing, corpus: Corpus, room: Room, seed: int, show: Progress
    ) -> None:
        self._judge, self._corpus, self._room = judge, corpus, room
        self._seed, self._show = seed, show
        self._interrupted = False

    def begin(self, probes: object) -> None:
        """Judge the probes of the set: no search ends worse than it began."""
        source = source_of(probes)
        if isinstance(source, str):
            source = own_set(self._judge.model, source, self._seed)
        for entry, probe in made(source.read(), self._judge.make):
            if isinstance(probe, str):
                continue
            stage = self._show.stage(f"probe {entry.number}: {entry.name[:60]}", extra=True)
            with stage, suppress(DriftwalkError):
                used, worst = self._judge.used(probe)
                look = self._judge.looks([probe])[0] or Look(0.0, {})
                kept = Kept("", entry.name, used, look.quick, 0, look.reach, worst)
                self._corpus.add(probe, kept)
        if not self._corpus.kept:
            raise UsageError(f"The set ({source.origin}) has no probe that could be run.")
        self._corpus.save(0)

    def climb(self, runs: int | None, ends: float) -> None:
        last = math.inf if runs is None else runs
        try:
            if self._corpus.runs < last and time.monotonic() < ends:
                self._judge.prepare(self._corpus.probe(self._corpus.kept[0]))
            while self._corpus.runs < last and time.monotonic() < ends:
                number = self._corpus.runs + 1
                with self._show.stage(f"run {number}: {self._words}", extra=True):
                    self._one(number)
                self._corpus.save(number)
        except KeyboardInterrupt:
            self._interrupted = True

    @property
    def _words(self) -> str:
        return f"worst so far {self._corpus.ranked[0].used:.3g} of its allowance"

    def _one(self, number: int) -> None:
        """The mutants of one probe: looked at, judged where it is worth it, kept where worse."""
        rng = np.random.default_rng([self._seed, number])
        parent, goal, inputs = self._made(number, rng)
        probes = []
        for one in inputs:
            with suppress(DriftwalkError):  # the model does not take it
                probes.append(self._judge.make(Probe(one, f"search (run {number})")))
        looks = self._judge.looks(probes) if probes else ()
        seen = [(p, look) for p, look in zip(probes, looks, strict=True) if look is not None]
        self._corpus.tried += len(seen)
        if not seen:
            return
        farthest = self._farthest([look for _, look in seen], goal)
        judged = self._worth_judging([look.quick for _, look in seen], parent, farthest, rng)
        for n, (probe, look) in enumerate(seen):
            used, worst = self._used(probe) if n in judged else (0.0, "")
            if n == farthest or used > parent.used:
                kept = Kept("", f"run {number}", used, look.quick, number, look.reach, worst)
                self._corpus.add(probe, kept)

    def _used(self, probe: Probe) -> tuple[float, str]:
        with suppress(DriftwalkError):
            return self._judge.used(probe)
        return 0.0, ""

    def _worth_judging(
        self, quick: Sequence[float], parent: Kept, farthest: int | None, rng: np.random.Generator
    ) -> set[int]:
        """The mutant in which the sides differ most, if it is by more than in the parent; now and
        then another, for a look does not see all that a judgement does."""
        most = int(np.argmax(quick))
        judged = {most} if quick[most] > parent.quick else set()
        # As a look costs less for a short probe, so does a judgement: a long one is rarer.
        usual = median(fit(self._corpus.probe(one).inputs) for one in self._corpus.set)
        if rng.random() < UNSCREENED_SHARE * min(1.0, len(quick) / usual):
            judged.add(int(rng.integers(len(quick))) if farthest is None else farthest)
        return judged

    def _made(self, number: int, rng: Any) -> tuple[Kept, str, list[dict[str, Any]]]:
        """A parent, the point that is to be driven farther, if any, and mutants."""
        parent = self._parent(rng)
        others = [self._corpus.kept[n] for n in rng.integers(len(self._corpus.kept), size=2)]
        own = np.random.default_rng([self._seed, number, 1])
        if own.random() < UPHILL_SHARE:
            path = self._judge.goal(parent.worst, own)
            point, champions = self._judge.point_of(path), self._corpus.champions
            if point in champions and own.random() < FARTHEST_PARENT_SHARE:
                parent = champions[point]
            probe, bounds = self._corpus.probe(parent), self._corpus.bounds
            if inputs := self._judge.uphill(probe, path, bounds, own):
                return parent, point, inputs
        tokens = [self._corpus.probe(one) for one in others]
        return parent, "", mutants(self._corpus.probe(parent), tokens, self._room, rng, fit)

    def _farthest(self, looks: Sequence[Look], goal: str) -> int | None:
        """The mutant that drives a module farther than any probe before it: first of all the goal;
        None where none does."""
        champions = self._corpus.champions
        before = {point: one.reach[point] for point, one in champions.items()}
        for points, least in (
            ({goal} & before.keys(), UPWARD_TIMES),
            (before.keys(), FARTHER_TIMES),
        ):
            gains = [
                max((one.reach.get(p, 0.0) / before[p] for p in points if before[p]), default=0.0)
                for one in looks
            ]
            best = int(np.argmax(gains))
            if gains[best] > least:
                return best
        return None

    def _parent(self, rng: np.random.Generator) -> Kept:
        """One of the worst, or the probe that reaches farthest at some module."""
        ranked, champions = self._corpus.ranked, self._corpus.champions
        if champions and rng.random() < 0.5:
            return champions[sorted(champions)[int(rng.integers(len(champions)))]]
        # The worst probes have most offspring, and every probe some.
        return ranked[min(int(rng.exponential(max(2.0, len(ranked) / 4))), len(ranked) - 1)]

    def end(self, ends: float) -> Found:
        worst = self._corpus.ranked[0]
        probe = self._corpus.probe(worst)
        smallest, used = self._smallest(worst, probe, ends)
        self._corpus.write(WORST, probe)
        self._corpus.write(SMALLEST, smallest)
        start = max(one.used for one in self._corpus.set)
        report = self._judge.report(probe)
        done = self._corpus.runs, self._corpus.tried, self._interrupted
        found = Found(report, worst, start, smallest, used, *done)
        return replace(found, report=replace(report, notes=(*report.notes, *_notes(found))))

    def _smallest(self, worst: Kept, probe: Probe, ends: float) -> tuple[Probe, float]:
        """The smallest form that is still drift; without drift, that still uses most of it."""
        best, used, tried = probe, worst.used, 0
        most = SHRINKS if worst.used > 1 else min(SHRINKS, SHRINKS_WITHOUT_DRIFT)
        try:
            again = not self._interrupted
            while again:
                again = False
                for inputs in smaller(best):
                    if tried >= most or time.monotonic() >= ends:
                        break
                    tried += 1
                    with self._show.stage(f"a smaller form: try {tried}", extra=True):
                        found = self._still(inputs, worst)
                    if found is not None:
                        (best, used), again = found, True
                        break
        except KeyboardInterrupt:
            self._interrupted = True
        return best, used

    def _still(self, inputs: dict[str, Any], worst: Kept) -> tuple[Probe, float] | None:
        """A smaller form, if it is as bad as it has to be; most that are not show it in a look."""
        least = 1.0 if worst.used > 1 else worst.used * KEPT_USE
        share = least / worst.used if 0 < worst.used < math.inf else 1.0
        with suppress(DriftwalkError):
            probe = self._judge.make(Probe(inputs, "search (smallest form)"))
            look = self._judge.looks([probe])[0]
            if look is not None and look.quick >= PROMISING_SHARE * share * worst.quick:
                used, _ = self._judge.used(probe)
                if used > least:
                    return probe, used
        return None


def _notes(found: Found) -> tuple[str, ...]:
    where = "is in the set" if found.worst.run == 0 else f"was found by run {found.worst.run}"
    whole = f"The worst of {found.tried} mutants in {found.runs} runs {where} ({found.worst.name})"
    shape = "x".join(map(str, next(iter(found.smallest.inputs.values())).shape))
    stopped = " The search was interrupted." if found.interrupted else ""
    return (
        f"{whole}: {found.worst.used:.3g} of its allowance, where the set it began with has "
        f"{found.start:.3g}.{stopped}",
        f"Its smallest form, {shape}, uses {found.smallest_used:.3g} of its allowance.",
    )
