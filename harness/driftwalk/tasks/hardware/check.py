"""The entry point: all six checks on one device or more, and one report of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ...environment import environment, now, this_tool
from ...errors import DriftwalkError, UsageError, nearest
from ...progress import Progress
from ...stage import make_probe, open_model
from ...states import Trace
from . import checks as devices
from . import golden as golden_states
from . import invariance
from .repeats import Findings
from .result import CHECKS, Check, DeviceResult, HardwareReport, Verdict, worst_verdict
from .work import Log, Work, level_named

VARIABLE = "DRIFTWALK_HWCHECK_INJECT"
"""A fault for tests, for processes that take no argument; every report of such a run says so."""
BROKEN = ("CUDA error", "uncorrectable")
"""Words of errors that a device raises when it breaks, and a program of ours never should."""
MUST_COMPARE = ("repeat", "units", "load", "golden")
"""Checks that were asked for and could compare nothing: then no more than that can be said."""

Step = Callable[[Work, Findings], str]
"""Fills the findings; gives the sentence that sums them up."""


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
    from driftwalk_backends.hardware.station import Station, device_names

    begun, show = time.perf_counter(), progress or Progress()
    chosen = level_named(level, minutes)
    wanted = _some("check", checks, CHECKS)
    names = device_names(device)
    fault = inject if inject is not None else os.environ.get(VARIABLE, "")
    injection = Injection.parse(fault) if fault else None
    if golden is not None:
        Trace.load(golden)  # a wrong one is found before minutes are spent
    results: list[DeviceResult] = []
    loaded: Any
    show.expect(len(names) * (len(set(wanted) - {"devices"}) + 1))
    complete = True
    for name in names:
        station = Station(name, injection)
        with show.stage(f"{name}: making the model"):
            if model is None:
                loaded, inputs = station.built_in()
            else:
                loaded = open_model(model)
                inputs = make_probe(loaded, probe)
        known = _some("dtype", dtypes, station.dtypes())
        work = Work(station, chosen, Log(begun), loaded, inputs, known, model is not None)
        result, complete = _on_device(work, _steps(wanted, golden), show)
        results.append(result)
        if not complete:
            break
    between = devices.between(results) if "devices" in wanted and len(results) > 1 else None
    verdict = _overall(results, between, complete)
    return HardwareReport(
        tool=this_tool(),
        created=now(),
        command=command,
        level=chosen.name,
        verdict=verdict,
        reason=_reason(verdict, results, between, complete, fault),
        devices=tuple(results),
        between=between,
        model=dict(loaded.describe()),
        probe=inputs.sha256,
        environment=environment(),
        complete=complete,
        injected=fault,
        seconds=time.perf_counter() - begun,
    )


def _steps(wanted: Sequence[str], golden: str | Path | None) -> list[tuple[str, Step]]:
    """In the order in which they are done: cold first, hot last."""
    load = devices.Load()
    steps: list[tuple[str, Step]] = [("load", load.cold)]
    steps += [("repeat", devices.repeat), ("units", devices.units)]
    if golden is not None:
        steps.append(("golden", partial(golden_states.run, golden=golden)))
    steps += [("invariance", invariance.run), ("load", load.hot)]
    return [(name, step) for name, step in steps if name in wanted]


def _on_device(
    work: Work, steps: Sequence[tuple[str, Step]], show: Progress
) -> tuple[DeviceResult, bool]:
    """All checks on one device; False where Ctrl-C ended them."""
    station, complete = work.station, True
    findings = {name: Findings(name) for name, _ in steps}
    done: dict[str, Check] = {}
    digests: dict[str, str] = {}
    try:
        for name, step in steps:
            begun = time.perf_counter() - (done[name].seconds if name in done else 0.0)
            with show.stage(f"{station.label}: {name}"):
                sentence, complete = _carried_out(step, work, findings[name])
            done[name] = findings[name].summed_up(sentence, time.perf_counter() - begun)
            digests |= findings[name].digests
            if not complete:
                break
    finally:
        work.close()
    result = DeviceResult(
        station.label,
        station.identity(),
        tuple(done[name] for name in CHECKS if name in done),
        digests,
        tuple(work.log.rounds),
        tuple(work.log.readings),
        () if complete else ("Interrupted: these are the checks made until then.",),
        station.details(),
    )
    return result, complete


def _carried_out(step: Step, work: Work, findings: Findings) -> tuple[str, bool]:
    """Run one step; what it found is kept however it ends. False where Ctrl-C ended it."""
    try:
        return step(work, findings), True
    except KeyboardInterrupt:
        return "Interrupted; what was found until then stands below.", False
    except (DriftwalkError, RuntimeError, MemoryError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raised = not isinstance(error, UsageError) and any(word in str(error) for word in BROKEN)
        if raised:
            findings.verdict = "fault"
        elif not findings.cases:
            findings.verdict = "not comparable"
        with suppress(RuntimeError):
            work.station.free()
        return f"{'The device raised an error' if raised else 'Not run to its end'}: {line}", True


def _some(what: str, given: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """Some of what there is; all of it where nothing was said."""
    for name in given or ():
        if name not in known:
            raise UsageError(f"There is no {what} {name!r} here. {nearest(name, known)}")
    return tuple(name for name in known if not given or name in given)


def _overall(results: Iterable[DeviceResult], between: Check | None, complete: bool) -> Verdict:
    """One verdict of all checks; a run that was cut off has checks that compared nothing."""
    checks = [item for result in results for item in result.checks]
    verdict = worst_verdict(item.verdict for item in [*checks, *filter(None, [between])])
    empty = [i for i in checks if i.name in MUST_COMPARE and i.verdict == "not comparable"]
    return "not comparable" if verdict == "no fault found" and complete and empty else verdict


def _first(item: Check) -> str:
    """The first mismatch of a check in a few words: state, element, bits."""
    if not item.mismatches:
        return ""
    first = item.mismatches[0]
    where = f"{first.state} in {first.case}, repeat {first.repeat}"
    if first.core is not None:
        where += f", core {first.core}"
    if first.flips:
        flip = first.flips[0]
        bits = ", ".join(map(str, flip.bits))
        where += f": element {flip.element}, bit{'s' * (len(flip.bits) > 1)} {bits}"
    return f"{where}. "


def _reason(
    verdict: Verdict,
    results: Sequence[DeviceResult],
    between: Check | None,
    complete: bool,
    fault: str,
) -> str:
    """One sentence for the top of the report."""
    decisive = [(r.device, i) for r in results for i in r.checks if i.verdict == verdict]
    if verdict == "no fault found":
        names = ", ".join(result.device for result in results)
        text = f"No fault found on {names}{'' if complete else ' until it was interrupted'}."
    elif verdict == "not comparable":
        first = f"{decisive[0][1].name}: {decisive[0][1].sentence}" if decisive else ""
        text = f"Not comparable: {first or 'nothing was run'}"
    elif decisive:
        device, item = decisive[0]
        text = f"Fault: {device}, {item.name}: {_first(item)}{item.sentence}"
    else:
        text = f"Fault: between devices: {between.sentence if between else ''}"
    return f"A FAULT WAS INJECTED ({fault}). {text}" if fault else text
