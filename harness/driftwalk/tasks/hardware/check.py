"""The entry point: all six checks on one device or more, and one report of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...environment import environment, now, this_tool
from ...errors import DriftwalkError, UsageError, nearest
from ...progress import Progress
from ...stage import make_probe, open_model
from ...states import Probe, Trace
from . import golden_check, invariance_check, repeat_check, units_check
from .between import between
from .levels import Level, level_named
from .load_check import Load
from .log import Log
from .repeats import Findings
from .result import CHECKS, Check, DeviceResult, HardwareReport, Verdict, worst_verdict
from .work import Work

if TYPE_CHECKING:
    from driftwalk_backends.hardware.inject import Injection

VARIABLE = "DRIFTWALK_HWCHECK_INJECT"
"""A fault for tests, for processes that take no argument; every report of such a run says so."""
BROKEN = ("CUDA error", "uncorrectable")
"""Words of errors that a device raises when it breaks, and a program of ours never should."""
MUST_COMPARE = ("repeat", "units", "load", "golden")
"""Checks that were asked for and could compare nothing: then no more than that can be said."""


def check(
    device: str | Sequence[str] = "cpu",
    level: str = "quick",
    golden: str | Path | None = None,
    model: object = None,
    minutes: float | None = None,
    *,
    checks: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    probe: object = None,
    inject: str | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> HardwareReport:
    """Check one device, or `all` of this machine.

    `level` is quick, standard or soak (`minutes` long). `golden` is a trace of a trusted machine.
    `model` stands in for the built-in one. `checks` and `dtypes` name a part of what is done.
    `inject` puts a fault in, to test the checker: see driftwalk_backends.hardware.inject. Ctrl-C
    ends the run, not the report: what was found until then is returned, with `complete` False.
    """
    from driftwalk_backends.hardware.inject import Injection
    from driftwalk_backends.hardware.station import device_names

    begun, show = time.perf_counter(), progress or Progress()
    chosen = level_named(level, minutes)
    wanted = _known("check", checks, CHECKS)
    names = device_names(device) if isinstance(device, str) else tuple(device)
    fault = inject if inject is not None else os.environ.get(VARIABLE, "")
    injection = Injection.parse(fault) if fault else None
    if golden is not None:
        Trace.load(golden)  # a wrong one is found before minutes are spent
    results: list[DeviceResult] = []
    run = _Run(chosen, wanted, dtypes, model, probe, golden, injection, show, begun)
    show.expect(len(names) * (len(set(wanted) - {"devices"}) + 1))
    complete = True
    for name in names:
        result, complete = run.on(name)
        results.append(result)
        if not complete:
            break
    against = None
    if "devices" in wanted and len(results) > 1:
        against = between(results)
    told = [*(check for result in results for check in result.checks), *filter(None, [against])]
    verdict = _overall(told, complete)
    return HardwareReport(
        tool=this_tool(),
        created=now(),
        command=command,
        level=chosen.name,
        verdict=verdict,
        reason=_reason(verdict, results, against, complete, fault),
        devices=tuple(results),
        between=against,
        model=run.described,
        probe=run.probe_hash,
        environment=environment(),
        complete=complete,
        injected=fault,
        seconds=time.perf_counter() - begun,
    )


@dataclass(eq=False)
class _Run:
    """What is the same for every device."""

    level: Level
    wanted: tuple[str, ...]
    dtypes: Sequence[str] | None
    model: object
    probe: object
    golden: str | Path | None
    injection: Injection | None
    show: Progress
    begun: float
    described: dict[str, str] = field(default_factory=dict)
    probe_hash: str = ""

    def on(self, device: str) -> tuple[DeviceResult, bool]:
        """All checks on one device; False where Ctrl-C ended them."""
        from driftwalk_backends.hardware.station import Station

        station = Station(device, self.injection)
        log = Log(self.begun)
        with self.show.stage(f"{device}: making the model"):
            model, probe = self._material(station)
        known = _known("dtype", self.dtypes, station.dtypes())
        given = self.model is not None
        work = Work(station, self.level, log, model, probe, known, given)
        done: dict[str, Check] = {}
        digests: dict[str, str] = {}
        complete = True
        steps = self._steps(work, Load(work, Findings("load")))
        try:
            for name, findings, step in steps:
                with self.show.stage(f"{device}: {name}"):
                    complete = _carried_out(name, findings, step, done, work)
                digests |= findings.digests
                if not complete:
                    break
        finally:
            work.close()
        self.described = dict(model.describe())
        self.probe_hash = probe.sha256
        checks = tuple(done[name] for name in CHECKS if name in done)
        notes = () if complete else ("Interrupted: these are the checks made until then.",)
        result = DeviceResult(
            device,
            station.identity(),
            checks,
            digests,
            log.rounds,
            log.readings,
            notes,
            station.details(),
        )
        return result, complete

    def _steps(self, work: Work, load: Load) -> list[tuple[str, Findings, Callable[[], str]]]:
        """In the order in which they are done: cold first, hot last."""
        steps: list[tuple[str, Findings, Callable[[], str]]] = []

        def add(name: str, step: Callable[[Findings], str]) -> None:
            findings = Findings(name)
            steps.append((name, findings, lambda: step(findings)))

        def hot() -> str:
            load.hot()
            return load.sentence()

        if "load" in self.wanted:
            steps.append(("load", load.findings, load.cold))
        if "repeat" in self.wanted:
            add("repeat", lambda findings: repeat_check.run(work, findings))
        if "units" in self.wanted:
            add("units", lambda findings: units_check.run(work, findings))
        if "golden" in self.wanted and self.golden is not None:
            golden = self.golden
            add("golden", lambda findings: golden_check.run(work, findings, golden))
        if "invariance" in self.wanted:
            given = self.model is not None
            add("invariance", lambda findings: invariance_check.run(work, findings, given))
        if "load" in self.wanted:
            steps.append(("load", load.findings, hot))
        return steps

    def _material(self, station: Any) -> tuple[Any, Probe]:
        if self.model is None:
            model, probe = station.built_in()
            return model, probe
        model = open_model(self.model)
        return model, make_probe(model, self.probe)


def _carried_out(
    name: str, findings: Findings, step: Callable[[], str], done: dict[str, Check], work: Work
) -> bool:
    """Run one step; what it found is kept however it ends. False where Ctrl-C ended it."""
    begun, complete, sentence = time.perf_counter(), True, ""
    before = done[name].seconds if name in done else 0.0
    try:
        sentence = step()
    except KeyboardInterrupt:
        complete, sentence = False, "Interrupted; what was found until then stands below."
    except (DriftwalkError, RuntimeError, MemoryError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raised = not isinstance(error, UsageError) and any(word in str(error) for word in BROKEN)
        if raised:
            findings.verdict = "fault"
        elif not findings.cases:
            findings.verdict = "not comparable"
        sentence = f"{'The device raised an error' if raised else 'Not run to its end'}: {line}"
        with suppress(RuntimeError):
            work.station.free()
    done[name] = findings.told(sentence, before + time.perf_counter() - begun)
    return complete


def _known(what: str, given: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """Some of what there is; all of it where nothing was said."""
    if not given:
        return tuple(known)
    for name in given:
        if name not in known:
            raise UsageError(f"There is no {what} {name!r} here. {nearest(name, known)}")
    return tuple(name for name in known if name in given)


def _overall(checks: Sequence[Check], complete: bool) -> Verdict:
    """One verdict of all checks; a run that was cut off has checks that compared nothing."""
    verdict = worst_verdict(item.verdict for item in checks)
    empty = [i for i in checks if i.name in MUST_COMPARE and i.verdict == "not comparable"]
    return "not comparable" if verdict == "no fault found" and complete and empty else verdict


def _first(item: Check) -> str:
    """The first mismatch of a check in a few words: state, element, bits."""
    if not item.mismatches:
        return ""
    found = item.mismatches[0]
    where = f"{found.state} in {found.case}, repeat {found.repeat}"
    if found.core is not None:
        where += f", core {found.core}"
    if found.flips:
        flip = found.flips[0]
        bits = ", ".join(map(str, flip.bits))
        where += f": element {flip.element}, bit{'s' * (len(flip.bits) > 1)} {bits}"
    return f"{where}. "


def _reason(
    verdict: Verdict,
    results: Sequence[DeviceResult],
    against: Check | None,
    complete: bool,
    fault: str,
) -> str:
    """One sentence for the top of the report."""
    told = ""
    for result in results:
        for item in result.checks:
            if item.verdict == "fault" and not told:
                told = f"{result.device}, {item.name}: {_first(item)}{item.sentence}"
    if not told and against is not None and against.verdict == "fault":
        told = f"between devices: {against.sentence}"
    if verdict == "fault":
        text = f"Fault: {told}"
    elif verdict == "no fault found":
        named = ", ".join(result.device for result in results)
        text = f"No fault found on {named}."
        if not complete:
            text = f"No fault found on {named} until it was interrupted."
    else:
        told_so = (i for r in results for i in r.checks if i.verdict == "not comparable")
        first = next((f"{item.name}: {item.sentence}" for item in told_so), "nothing was run")
        text = f"Not comparable: {first}"
    return f"A FAULT WAS INJECTED ({fault}). {text}" if fault else text
