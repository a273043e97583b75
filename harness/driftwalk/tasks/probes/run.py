"""A set of probes verified: model and backends are opened once, a few probes are held at a time.

A probe that is judged whole is judged as it would be alone, by the same checks: a verdict of a set
can be had again from the probe's own file. Of a large set most probes are screened (screening.py);
what gives any reason for it is judged whole, and so are the first and the worst ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ...adapter import Backend
from ...errors import BackendError, DriftwalkError, ProbeError, UsageError
from ...exercised import AddsUp
from ...make_report import Terms, unrun_report
from ...probe_set import Refused
from ...progress import Progress
from ...result import Report
from ...stage import Setting, check_names, make_probe, or_why_not, streamed
from ...states import Probe
from ...tolerance import make_policy
from ..constants import MOST_WORST_WHOLE, PROBES_A_WORST, SMALL_SET, WORST_WHOLE
from ..shapes.run import open_for_all
from .collecting import MOST_REFUSED, Collected, row_of, screened_row
from .entries import Entry, Source, made, refusal, source_of
from .screening import Glance, Screen
from .together import Runs, Together, repeats, run_together

Verify = Callable[..., list[Report]]
"""`api.verify_all`."""

NOT_AGAIN = (
    "the {} gives other numbers in each run: at {} they were beyond what is allowed when the probe "
    "was screened, and not when it was judged whole"
)
STOPPED = "it was stopped after {} probes, which pass; nothing is known of the others"


def verify_probes(
    verify: Verify,
    model: object,
    candidates: Sequence[object],
    reference: object,
    probes: object,
    *,
    strict: bool = False,
    thorough: bool = False,
    keep_probes: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> list[Report]:
    """For each candidate the report of its worst probe, with a row for every probe of the set.

    A probe that cannot be read, or does not fit the model, is named, and the others run; with
    `strict`, nothing runs. `thorough` has every probe of a large set judged whole. `keep_probes` is
    the folder that the worst probes are written to.
    """
    show = progress or Progress()
    of_model = {n: options[n] for n in ("blocks", "trust_remote_code") if n in options}
    mapped = options.get("budget") is not None
    source = source_of(probes)
    if options.get("stream"):
        reference, *candidates = map(
            streamed, ("torch" if reference is None else reference, *candidates)
        )
    check_names([one for one in (reference, *candidates) if one is not None])
    with show.stage("loading the model"):
        opened = Setting.asked(model, mapped=mapped, **of_model).open_model()
    if isinstance(source, str):
        source = own_set(opened, source, seed)
    make = partial(make_probe, opened)
    if strict:
        _check_all(source, make)
    show.expect(source.count or 0)
    with open_for_all(opened, reference, candidates) as (first, others):
        if isinstance(opened, AddsUp):
            opened.add_up()
        given = {"keep_going": True, "seed": seed, **options}
        entries = source.read()
        begun = list(islice(entries, SMALL_SET + 1))
        screens = not thorough and len(begun) > SMALL_SET
        screen = Screen.of(opened, (first, *others), given) if screens else None
        run = _SetRun(verify, opened, first, others, given, show, screen)
        stopped = run.all(made(chain(begun, entries), make))
        total = opened.added_up() if isinstance(opened, AddsUp) else None
    run.check(source)
    reports = []
    for number, collected in enumerate(run.collected, 1):
        report = collected.finished(source.origin, run.refused, run.refused_count, total)
        report = _cut_short(report) if stopped else report
        if keep_probes is not None:
            prefix = f"candidate-{number}-" if len(run.collected) > 1 else ""
            report = collected.write(Path(keep_probes), report, prefix)
        reports.append(replace(report, notes=(*report.notes, *source.notes)))
    return reports


def _cut_short(report: Report) -> Report:
    """The report of a set that was stopped: what was not run does not pass."""
    told = report.probe_set
    assert told is not None
    report = replace(report, probe_set=replace(told, stopped=True))
    if report.verdict != "pass":
        return report
    return replace(report, verdict="unverified", reason=STOPPED.format(told.count))


def _doubted(report: Report, first: bool, own: bool, point: str) -> Report:
    """The report where reference and candidate give the same bits again, or one does not.

    The point is that at which an earlier run was beyond what is allowed.
    """
    if not report.ok or not point or (first and own):
        return report
    side = "candidate" if first else "reference" if own else "reference, as the candidate,"
    return replace(report, verdict="unverified", reason=NOT_AGAIN.format(side, point))


def own_set(model: Any, name: str, seed: int = 0) -> Source:
    """A set that is made for a model: `builtin:text`, `builtin:edge`, `suggest`."""
    from driftwalk_backends.probe_sets import sets

    made_for = sets.builtin(model, name, seed)
    probes = list(made_for.probes)
    entries = [Entry(n, label, probe) for n, (label, probe) in enumerate(probes, 1)]
    return Source(name, lambda: iter(entries), len(entries), notes=made_for.notes)


def _check_all(source: Source, make: Callable[[object], Probe]) -> None:
    """Read every probe before anything runs; one that is bad ends it."""
    bad = (
        refusal(source, entry.number, entry.name, probe)
        for entry, probe in made(source.read(), make)
        if isinstance(probe, str)
    )
    told = list(islice(bad, 6))
    if told:
        more = " And more." if len(told) > 5 else ""
        raise UsageError(f"Nothing was run. {' '.join(told[:5])}{more}")


class _SetRun:
    """The probes of a set, one after the other, on backends that are open."""

    def __init__(
        self,
        verify: Verify,
        model: Any,
        first: object,
        others: Sequence[object],
        options: dict[str, Any],
        show: Progress,
        screen: Screen | None = None,
    ) -> None:
        self._verify, self._model, self._first, self._others = verify, model, first, others
        self._options, self._show, self._screen = options, show, screen
        self.collected = [Collected() for _ in others]
        self.refused: list[Refused] = []
        self.refused_count = 0
        self._ran = 0
        self._glances: list[Glance] = []
        self._looked_at: Runs | None = None
        self._waiting: list[tuple[Entry, Probe]] = []
        self._together = Together()

    def all(self, probes: Iterable[tuple[Entry, Probe | str]]) -> bool:
        """Every probe, then the worst ones whole; whether Ctrl-C ended that."""
        try:
            for entry, probe in probes:
                self._add(entry, probe)
            self._run_waiting()
            if self._screen is not None:
                self._settle()
        except KeyboardInterrupt:
            if not self._ran:
                raise
            return True
        return False

    def _add(self, entry: Entry, probe: Probe | str) -> None:
        """Verify one probe, have it wait for others, or take note of why it cannot be run."""
        if isinstance(probe, str):
            self._refuse(entry, probe)
        elif self._screen is None:
            self._verify_one(entry, probe)
        elif self._screen.wants_whole(probe):
            self._run_waiting()
            self._verify_one(entry, probe, whole=True)
        else:
            self._waiting.append((entry, probe))
            if self._together.enough([one for _, one in self._waiting]):
                self._run_waiting()

    def _run_waiting(self) -> None:
        """Run the probes that wait, one side after the other; judge them in their order."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        first, last = waiting[0][0].number, waiting[-1][0].number
        with self._show.stage(f"probes {first} to {last}", extra=True):
            all_runs = self._sides_on([probe for _, probe in waiting])
        self._together.learn(all_runs)
        for (entry, probe), runs in zip(waiting, all_runs, strict=True):
            self._verify_one(entry, probe, runs)

    def _sides_on(self, probes: Sequence[Probe]) -> list[Runs]:
        sides = [one for one in (self._first, *self._others) if isinstance(one, Backend)]
        return run_together(self._model, sides, probes)

    def _verify_one(
        self, entry: Entry, probe: Probe, runs: Runs | None = None, whole: bool = False
    ) -> None:
        """One probe; `runs` are those of all sides, if they were made, and `whole` is asked for."""
        if not self._ran:
            self._prime(probe)
        for side in (self._first, *self._others):
            if isinstance(side, Backend):
                side.restart_clock()
        with self._show.stage(f"probe {entry.number}: {entry.name[:60]}"):
            if not self._is_clear(entry, probe, runs, whole):
                made_of = or_why_not(partial(self._one, probe), True)
                if isinstance(made_of, DriftwalkError) and self._ran and not self._known:
                    self._refuse(entry, str(made_of))
                    return
                reports = self._whole(probe, made_of)
                for collected, report in zip(self.collected, reports, strict=True):
                    collected.add(row_of(entry.number, entry.name, report), report, probe)
        self._ran += 1

    def _is_clear(self, entry: Entry, probe: Probe, runs: Runs | None, whole: bool) -> bool:
        """Whether a probe was screened and found clear, for all candidates; then it has rows."""
        if self._screen is None:
            return False
        self._looked_at = runs or self._sides_on([probe])[0]
        self._glances = self._screen.look(self._looked_at)
        if any(glance.never for glance in self._glances):
            self._screen = None  # to look at each would be in vain
        if whole or any(glance.why for glance in self._glances):
            return False
        for collected, glance in zip(self.collected, self._glances, strict=True):
            given = entry.number, entry.name, probe, glance.used, glance.decided
            collected.add(screened_row(*given), None, probe)
        return True

    @property
    def _known(self) -> bool:
        """Whether a report can be made without a run of the reference; not where it is a graph."""
        return isinstance(self._first, Backend)

    def _refuse(self, entry: Entry, why: str) -> None:
        self.refused_count += 1
        if len(self.refused) < MOST_REFUSED:
            self.refused.append(Refused(entry.number, entry.name, why))

    def _whole(self, probe: Probe, made_of: list[Report] | DriftwalkError) -> list[Report]:
        """The reports of a probe that was judged whole, or of why it could not be."""
        reports = self._failed(probe, made_of) if isinstance(made_of, DriftwalkError) else made_of
        if self._screen is not None and self._glances:
            if self._looked_at is not None:
                reports = self._unless_unsteady(self._screen, self._looked_at, reports)
            self._screen.learn(self._glances, reports)
            self._glances, self._looked_at = [], None
        return reports

    def _unless_unsteady(self, screen: Screen, runs: Runs, reports: list[Report]) -> list[Report]:
        """No pass where the runs that a screen found something in were others, and beyond it."""
        cleared = (a.ok and bool(b.why) for a, b in zip(reports, self._glances, strict=True))
        if runs.failed or not any(cleared):
            return reports
        sides = [side for side in (self._first, *self._others) if isinstance(side, Backend)]
        with suppress(DriftwalkError):  # what cannot be run again shows no other numbers
            first, *others = repeats(self._model, sides, runs)
            if not (first and all(others)):
                told = zip(reports, others, screen.beyond(runs), strict=True)
                return [_doubted(one, first, same, point) for one, same, point in told]
        return reports

    def _settle(self) -> None:
        """Judge the worst of the screened probes whole: the report is that of the worst."""
        self._glances, self._looked_at = [], None  # what was seen last is not of these
        few = min(MOST_WORST_WHOLE, WORST_WHOLE + self._ran // PROBES_A_WORST)
        for _ in range(MOST_WORST_WHOLE):
            worst = (pair for one in self.collected for pair in one.worst[:few])
            chosen = next(((row, probe) for row, probe in worst if row.screened), None)
            if chosen is None:
                return
            row, probe = chosen
            with self._show.stage(f"probe {row.number}: {row.name[:60]}, judged whole", extra=True):
                reports = self._whole(probe, or_why_not(partial(self._one, probe), True))
            for collected, report in zip(self.collected, reports, strict=True):
                collected.replace(row_of(row.number, row.name, report), report, probe)

    def _prime(self, probe: Probe) -> None:
        """Have graphs made at a usual shape, where the first probe has an axis of length one.

        An axis of length one is fixed in a graph, and each other shape would need its own.
        """
        if all(1 not in array.shape[1:2] for array in probe.inputs.values()):
            return
        opened = [side for side in self._others if isinstance(side, Backend)]
        for side in (side for side in opened if side.spec.options.get("dynamic") == "on"):
            with suppress(DriftwalkError):  # then the run of the probe itself says more
                side.run(make_probe(self._model))

    def _one(self, probe: Probe) -> list[Report]:
        quiet = Progress()
        given = self._model, self._others, self._first, probe
        try:
            return self._verify(*given, progress=quiet, **self._options)
        except ProbeError as error:  # of this probe alone: the others may fit
            raise BackendError(str(error)) from error

    def _failed(self, probe: Probe, error: DriftwalkError) -> list[Report]:
        """The reference itself could not be run: nothing is known of this probe."""
        if not isinstance(self._first, Backend):
            raise error
        policy = make_policy(self._options.get("policy", "calibrated"))
        terms = Terms(policy, command=self._options.get("command", ""))
        return [unrun_report(side, error, probe, self._first.info, terms) for side in self._others]

    def check(self, source: Source) -> None:
        """An error where no probe was run."""
        if self._ran:
            return
        told = [refusal(source, one.number, one.name, one.why) for one in self.refused[:5]]
        raise UsageError(
            f"The set ({source.origin}) has no probe that could be run. "
            + (" ".join(told) if told else "It is empty.")
        )
