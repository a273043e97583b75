"""A set of probes verified: model and backends are opened once, one probe is held at a time.

Each probe is judged as it would be alone, by the same checks: a verdict of a set can be had again
from the probe's own file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
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
from ..shapes.run import open_for_all
from .collecting import MOST_REFUSED, Collected, row_of
from .entries import Entry, Source, made, refusal, source_of

Verify = Callable[..., list[Report]]
"""`api.verify_all`."""


def verify_probes(
    verify: Verify,
    model: object,
    candidates: Sequence[object],
    reference: object,
    probes: object,
    *,
    strict: bool = False,
    keep_probes: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> list[Report]:
    """For each candidate the report of its worst probe, with a row for every probe of the set.

    A probe that cannot be read, or does not fit the model, is named, and the others run; with
    `strict`, nothing runs. `keep_probes` is the folder that the worst probes are written to.
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
        run = _SetRun(verify, opened, first, others, given, show)
        for entry, probe in made(source.read(), make):
            run.add(entry, probe)
        total = opened.added_up() if isinstance(opened, AddsUp) else None
    run.check(source)
    reports = []
    for number, collected in enumerate(run.collected, 1):
        report = collected.finished(source.origin, run.refused, run.refused_count, total)
        if keep_probes is not None:
            prefix = f"candidate-{number}-" if len(run.collected) > 1 else ""
            report = collected.write(Path(keep_probes), report, prefix)
        reports.append(replace(report, notes=(*report.notes, *source.notes)))
    return reports


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
    ) -> None:
        self._verify, self._model, self._first, self._others = verify, model, first, others
        self._options, self._show = options, show
        self.collected = [Collected() for _ in others]
        self.refused: list[Refused] = []
        self.refused_count = 0
        self._ran = 0

    def add(self, entry: Entry, probe: Probe | str) -> None:
        """Verify one probe, or take note of why it cannot be."""
        if isinstance(probe, str):
            self._refuse(entry, probe)
            return
        if not self._ran:
            self._prime(probe)
        for side in (self._first, *self._others):
            if isinstance(side, Backend):
                side.restart_clock()
        with self._show.stage(f"probe {entry.number}: {entry.name[:60]}"):
            made_of = or_why_not(partial(self._one, probe), True)
        if isinstance(made_of, DriftwalkError) and self._ran and not self._known:
            self._refuse(entry, str(made_of))
            return
        reports = self._failed(probe, made_of) if isinstance(made_of, DriftwalkError) else made_of
        for collected, report in zip(self.collected, reports, strict=True):
            collected.add(row_of(entry.number, entry.name, report), report, probe)
        self._ran += 1

    @property
    def _known(self) -> bool:
        """Whether a report can be made without a run of the reference; not where it is a graph."""
        return isinstance(self._first, Backend)

    def _refuse(self, entry: Entry, why: str) -> None:
        self.refused_count += 1
        if len(self.refused) < MOST_REFUSED:
            self.refused.append(Refused(entry.number, entry.name, why))

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
