"""The worst input: the probe that uses most of its allowance, found by changing those of a set.

A mutant of a good probe is screened first, by the dtype table, for which no truth is run. One that
is worse than its parent by that, or that drives some module of the reference farther than any
probe before it, is judged as ever. It is kept if it uses more of its allowance than its parent did,
or for its reach: what saturates or overflows shows nothing until it does.

Each run has random numbers of its own, made of the seed and its number: a search that was stopped
goes on as if it had not been.

Some mutants go uphill, by the gradient of what a module gives at most: of an activation, or of the
module where most of the allowance is used.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...adapter import Backend
from ...errors import DriftwalkError, UsageError
from ...judge.drill import looking
from ...progress import Progress
from ...result import Report
from ...stage import Setting, check_names, is_graph, make_probe, torch_model
from ...states import Probe, State
from ...tolerance import make_policy
from ..shapes.run import open_for_all
from .collecting import largest_use
from .corpus import Corpus, Kept, Question
from .entries import made, source_of
from .mutation import Room, mutated, smaller
from .run import Verify, own_set

LONGEST = 512
"""Positions of a mutant at most."""
FARTHER = 1.02
"""By how much a number must be larger than all before it at its module, to be worth keeping."""
UNSCREENED = 0.2
"""The share of mutants that are judged as ever, whatever the dtype table says of them."""
UPHILL = 0.5
"""The share of mutants that a gradient makes."""
STEPS = (0.01, 0.05, 0.2)
"""How long a step uphill is, as a share of the largest value in the set."""
TOKENS = (1, 4, 16)
"""How many tokens are exchanged in a step uphill."""
SHRINKS = 80
"""Smaller forms of the worst probe that are tried."""
STILL = 0.95
"""The share of its use that a smaller form of a probe without drift must keep."""
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
        judge = _Judge(verify, opened, first, other, options)
        climb = _Climb(judge, kept, _room(opened), seed, show)
        if not kept.kept:
            climb.begin(probes)
        climb.climb(runs, minutes)
        return climb.end()


def _room(model: Any) -> Room:
    from driftwalk_backends.probes import max_positions, table_size

    positions = max_positions(model, "input_ids") or LONGEST
    return Room(table_size(model.module) or 0, min(positions, LONGEST))


class _Judge:
    """A probe judged, quickly or as ever; both sides stay open."""

    def __init__(
        self, verify: Verify, model: Any, first: object, other: object, options: dict[str, Any]
    ) -> None:
        self._verify, self._model, self._sides = verify, model, (first, other)
        self._options = options
        self._activations: list[str] | None = None

    @property
    def model(self) -> Any:
        return self._model

    def make(self, given: object) -> Probe:
        return make_probe(self._model, given)

    def quick(self, probe: Probe) -> float:
        return _use(self._report(probe, policy="dtype", blame=False))

    def reach(self, probe: Probe) -> dict[str, float]:
        """The largest number at each module of the reference, where that can be looked at."""
        first, found = self._sides[0], dict[str, float]()

        def note(state: State) -> None:
            if state.array.dtype.kind == "f" and state.array.size:
                keep = probe.keep(state.point.name, state.shape)
                array = state.array if keep is None else state.array[keep]
                most = float(np.abs(array).max())
                found[state.point.name] = most if math.isfinite(most) else 0.0

        if isinstance(first, Backend):
            with suppress(DriftwalkError), looking(first, "module"):
                first.stream(probe, note)
        return found

    def used(self, probe: Probe) -> tuple[float, str]:
        """What the search goes by, and the module that has it; nothing is stored of probes that
        are soon forgotten."""
        report = self._report(probe, cache=False, **{**self._options, "blame": False})
        needed = (
            (row.tolerance.needed, row.point.module) for row in report.layers if row.tolerance
        )
        return _use(report), max(needed, key=lambda one: one[0], default=(0.0, ""))[1] or ""

    def uphill(
        self, probe: Probe, worst: str, bounds: dict[str, float], rng: Any
    ) -> dict[str, Any]:
        """Inputs that drive some module farther; empty where no gradient says how."""
        from driftwalk_backends.probe_sets.gradients import climbed, reworded

        paths = self.activations(probe)
        path = str(worst if not paths or (worst and rng.random() < 0.25) else rng.choice(paths))
        if any(name in bounds for name in probe.inputs):
            return climbed(self._model, probe, path, float(rng.choice(STEPS)), bounds)
        return reworded(self._model, probe, path, int(rng.choice(TOKENS)), rng)

    def activations(self, probe: Probe) -> list[str]:
        """The modules that a run was seen to call as activations, or before one."""
        if self._activations is None:
            report = self._report(probe, policy="dtype", blame=False)
            seen = report.coverage.exercised
            self._activations = sorted({one.where for one in seen.driven}) if seen else []
        return self._activations

    def report(self, probe: Probe) -> Report:
        return self._report(probe, **self._options)

    def _report(self, probe: Probe, **options: Any) -> Report:
        first, other = self._sides
        return self._verify(self._model, [other], first, probe, **options)[0]


def _use(report: Report) -> float:
    """The largest share of an allowance; what could not be verified is no drift."""
    found = largest_use(report)
    return 0.0 if found is None or report.verdict == "unverified" else found


class _Climb:
    def __init__(
        self, judge: _Judge, corpus: Corpus, room: Room, seed: int, show: Progress
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
                (used, worst), quick = self._judge.used(probe), self._judge.quick(probe)
                reach = self._judge.reach(probe)
                self._corpus.add(probe, Kept("", entry.name, used, quick, 0, reach, worst))
        if not self._corpus.kept:
            raise UsageError(f"The set ({source.origin}) has no probe that could be run.")
        self._corpus.save(0)

    def climb(self, runs: int | None, minutes: float | None) -> None:
        ends = math.inf if minutes is None else time.monotonic() + 60 * minutes
        last = math.inf if runs is None else runs
        try:
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
        """One mutant: screened, judged where it is worth it, and kept where it is worse."""
        rng = np.random.default_rng([self._seed, number])
        parent, champions = self._parent(rng), self._corpus.champions
        others = [self._corpus.kept[n] for n in rng.integers(len(self._corpus.kept), size=2)]
        tokens = [self._corpus.probe(one) for one in others]
        inputs = self._uphill(parent, number) or mutated(
            self._corpus.probe(parent), tokens, self._room, rng
        )
        with suppress(DriftwalkError):  # the model does not take it
            probe = self._judge.make(Probe(inputs, f"search (run {number})"))
            quick, reach = self._judge.quick(probe), self._judge.reach(probe)
            farther = any(
                point in champions and value > FARTHER * champions[point].reach[point]
                for point, value in reach.items()
            )
            if farther or quick > parent.quick or rng.random() < UNSCREENED:
                used, worst = self._judge.used(probe)
                if farther or used > parent.used:
                    kept = Kept("", f"run {number}", used, quick, number, reach, worst)
                    self._corpus.add(probe, kept)

    def _uphill(self, parent: Kept, number: int) -> dict[str, Any]:
        """Inputs that drive some module farther than those of a probe; by chance, or without a
        gradient, none."""
        rng = np.random.default_rng([self._seed, number, 1])
        if rng.random() >= UPHILL:
            return {}
        return self._judge.uphill(
            self._corpus.probe(parent), parent.worst, self._corpus.bounds, rng
        )

    def _parent(self, rng: np.random.Generator) -> Kept:
        """One of the worst, or the probe that reaches farthest at some module."""
        ranked, champions = self._corpus.ranked, self._corpus.champions
        if champions and rng.random() < 0.5:
            return champions[sorted(champions)[int(rng.integers(len(champions)))]]
        # The worst probes have most offspring, and every probe some.
        return ranked[min(int(rng.exponential(max(2.0, len(ranked) / 4))), len(ranked) - 1)]

    def end(self) -> Found:
        worst = self._corpus.ranked[0]
        probe = self._corpus.probe(worst)
        smallest, used = (probe, worst.used) if self._interrupted else self._smallest(worst, probe)
        self._corpus.write(WORST, probe)
        self._corpus.write(SMALLEST, smallest)
        start = max(one.used for one in self._corpus.kept if one.run == 0)
        report = self._judge.report(probe)
        found = Found(report, worst, start, smallest, used, self._corpus.runs, self._interrupted)
        return replace(found, report=replace(report, notes=(*report.notes, *_notes(found))))

    def _smallest(self, worst: Kept, probe: Probe) -> tuple[Probe, float]:
        """The smallest form that is still drift; without drift, that still uses most of it."""
        least = 1.0 if worst.used > 1 else worst.used * STILL
        best, used, tried = probe, worst.used, 0
        again = True
        while again and tried < SHRINKS:
            again = False
            for inputs in smaller(best):
                if tried >= SHRINKS:
                    break
                tried += 1
                with self._show.stage(f"a smaller form: try {tried}", extra=True):
                    found = self._still(inputs, least)
                if found is not None:
                    (best, used), again = found, True
                    break
        return best, used

    def _still(self, inputs: dict[str, Any], least: float) -> tuple[Probe, float] | None:
        with suppress(DriftwalkError):
            probe = self._judge.make(Probe(inputs, "search (smallest form)"))
            used, _ = self._judge.used(probe)
            if used > least:
                return probe, used
        return None


def _notes(found: Found) -> tuple[str, ...]:
    where = "is in the set" if found.worst.run == 0 else f"was found by run {found.worst.run}"
    whole = f"The worst of {found.runs} runs {where} ({found.worst.name})"
    shape = "x".join(map(str, next(iter(found.smallest.inputs.values())).shape))
    stopped = " The search was interrupted." if found.interrupted else ""
    return (
        f"{whole}: {found.worst.used:.3g} of its allowance, where the set it began with has "
        f"{found.start:.3g}.{stopped}",
        f"Its smallest form, {shape}, uses {found.smallest_used:.3g} of its allowance.",
    )
