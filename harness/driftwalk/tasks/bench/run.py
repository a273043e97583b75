"""`bench`: how fast the backends of one model are, measured so that the answer can be believed.

Plain runs only. Backends take turns (A B, B A, A B, ...), so that a slow spell of the machine hits
all alike; each has a process of its own; what comes before the steady state is told apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from ...adapter import Backend, Lap
from ...environment import environment, now, this_tool
from ...errors import UsageError
from ...progress import Progress
from ...registry import backend_class
from ...result import Benchmark, Report
from ...spec import Spec
from ...stage import Setting, as_backend, check_names, default_shape, make_probe, open_model
from ...states import Probe
from ...verification import Addition
from ...workers import cores
from .result import BenchReport, Case, Entry
from .runner import Local, Recipe, Remote, Runner
from .timing_stats import FEWEST_PAIRS

if TYPE_CHECKING:
    from driftwalk_backends.sources import AnyModel

ROUNDS, WARMUP, LAYER_RUNS = 30, 3, 5
BUSY = 0.5
"""Other work per core, by the load average, beyond which timings are called doubtful."""


def bench(
    model: object,
    backends: Sequence[object],
    probe: object = None,
    *,
    batch: Sequence[int] = (),
    length: Sequence[int] = (),
    rounds: int = ROUNDS,
    warmup: int = WARMUP,
    seconds: float | None = None,
    threads: int | None = None,
    isolate: bool = True,
    layers: bool = True,
    seed: int = 0,
    blocks: str | None = None,
    trust_remote_code: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> BenchReport:
    """Time backends of one model against the first of them.

    `batch` and `length` are swept over with the default probe; `seconds` bounds the time of a case;
    `isolate=False` runs all in this process, as backends given as objects always do. Interrupted
    (Ctrl-C), it returns what was measured until then, marked as incomplete.
    """
    if not backends:
        raise UsageError("No backend to time; name at least one.")
    if rounds < 1 or warmup < 0:
        raise UsageError(f"rounds={rounds}, warmup={warmup}: expected at least 1 and 0.")
    if probe is not None and (batch or length):
        raise UsageError("batch and length shape the default probe; give them or a probe.")
    check_names(backends)
    show = progress or Progress()
    loaded = open_model(model, blocks=blocks, trust_remote_code=trust_remote_code)
    probes = _probes(loaded, probe, batch, length, seed)
    show.expect(len(probes) * (len(backends) + warmup + rounds))
    notes = [busy] if (busy := _busy()) else []
    alone = isolate and isinstance(model, str) and all(isinstance(b, str) for b in backends)
    if isolate and not alone:
        notes.append("All ran in one process: a model or a backend was given as an object.")
    each = threads or cores()
    cases: list[Case] = []
    complete = True
    with ExitStack() as opened:
        runners: list[Runner] = []
        for given in backends:
            if alone:
                recipe = Recipe(
                    _with_threads(str(given), each), str(model), blocks, trust_remote_code
                )
                runners.append(Remote(recipe, each))
            else:
                runners.append(_local(given, loaded, each))
            opened.callback(runners[-1].close)
        for shape, given_probe in probes:
            case, done = _case(runners, given_probe, shape, show, rounds, warmup, seconds, layers)
            case = replace(case, entries=_labelled(case.entries, backends, each))
            cases.append(case)
            complete = complete and done
            if not done:
                break
    return BenchReport(
        tool=this_tool(),
        created=now(),
        command=command,
        model=loaded.describe(),
        cases=tuple(cases),
        isolated=alone,
        complete=complete,
        environment=environment(),
        notes=tuple(notes),
    )


class Timings(Addition):
    """Plain runs of both sides, timed after a verification."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def finish(
        self, reports: list[Report], setting: Setting, sides: Sequence[object], show: Progress
    ) -> list[Report]:
        """The same reports, with the timings of both sides."""
        timed = bench(
            setting.model,
            sides,
            setting.probe,
            rounds=self._rounds,
            blocks=setting.blocks,
            trust_remote_code=setting.trust_remote_code,
            progress=show,
        )
        first, *others = (entry.bench for entry in timed.cases[0].entries)
        return [
            replace(
                report,
                benchmarks={"reference": first, "candidate": other},
                notes=(*report.notes, *timed.notes),
            )
            for report, other in zip(reports, others, strict=True)
        ]


def _probes(
    model: AnyModel, given: object, batch: Sequence[int], length: Sequence[int], seed: int
) -> list[tuple[tuple[int, int | None], Probe]]:
    """Every shape asked for, each with its probe."""
    if given is not None:
        probe = make_probe(model, given)
        first = next(iter(probe.inputs.values()))
        return [((len(first), first.shape[1] if first.ndim > 1 else None), probe)]
    rows, tokens = default_shape()
    shapes = [(b, n) for b in batch or (rows,) for n in length or (tokens,)]
    return [((b, n), make_probe(model, None, b, n, seed)) for b, n in shapes]


def _local(given: object, model: AnyModel, threads: int) -> Local:
    if isinstance(given, Backend):
        return Local(given, owned=False)
    return Local(
        as_backend(_with_threads(given, threads) if isinstance(given, str) else given, model)
    )


def _with_threads(spec: str, threads: int) -> str:
    """The spec with as many threads as all others have, where it takes that and says nothing."""
    parsed = Spec.parse(spec)
    if "threads" not in backend_class(parsed.name).options or "threads" in parsed.options:
        return spec
    return str(replace(parsed, options={**parsed.options, "threads": str(threads)}))


def _case(
    runners: Sequence[Runner],
    probe: Probe,
    shape: tuple[int, int | None],
    show: Progress,
    rounds: int,
    warmup: int,
    seconds: float | None,
    layers: bool,
) -> tuple[Case, bool]:
    """All backends on one probe; and whether it was finished."""
    cold: list[Mapping[str, float]] = [{} for _ in runners]
    laps: list[list[Lap]] = [[] for _ in runners]
    inside: list[list[Mapping[str, float]]] = [[] for _ in runners]
    what = f"{shape[0]} x {shape[1]}" if shape[1] else str(shape[0])
    try:
        for number, runner in enumerate(runners):
            with show.stage(f"{what}: opening backend {number + 1} of {len(runners)}"):
                cold[number] = runner.open(probe)
        for number in range(warmup):
            with show.stage(f"{what}: warming up, {number + 1} of {warmup}"):
                for runner in runners:
                    runner.lap()
        start = time.perf_counter()
        for number in range(rounds):
            with show.stage(f"{what}: round {number + 1} of {rounds}"):
                order = range(len(runners)) if number % 2 == 0 else reversed(range(len(runners)))
                made = {at: runners[at].lap() for at in order}
            for at, lap in made.items():  # whole rounds only: they are compared run by run
                laps[at].append(lap)
            spent = time.perf_counter() - start
            if seconds is not None and spent > seconds and number + 1 >= FEWEST_PAIRS:
                break
        for _ in range(LAYER_RUNS if layers else 0):
            for at, runner in enumerate(runners):
                inside[at].append(runner.layers())
        done = True
    except KeyboardInterrupt:
        done = False
    entries = tuple(
        _entry(runner, cold[at], laps[at], inside[at]) for at, runner in enumerate(runners)
    )
    inputs = ", ".join(f"{name} {list(array.shape)}" for name, array in probe.inputs.items())
    return Case(shape[0], shape[1], inputs, _tokens(probe), entries), done


def _entry(
    runner: Runner,
    cold: Mapping[str, float],
    laps: Sequence[Lap],
    inside: Sequence[Mapping[str, float]],
) -> Entry:
    clocks = [lap.device for lap in laps if lap.device is not None]
    points = list(dict.fromkeys(name for one in inside for name in one))
    bench = Benchmark(
        samples=tuple(lap.seconds for lap in laps),
        layers={name: median(one[name] for one in inside if name in one) for name in points},
        cold=dict(cold),
        copy_in=median(lap.copy_in for lap in laps) if laps else 0.0,
        copy_out=median(lap.copy_out for lap in laps) if laps else 0.0,
        device=median(clocks) if clocks else None,
        memory=dict(runner.memory()) if cold else {},
    )
    return Entry(runner.info(), bench)


def _tokens(probe: Probe) -> int:
    """Positions that count; of inputs without a mask, all."""
    mask = probe.inputs.get("attention_mask")
    if mask is not None:
        return int((mask != 0).sum())
    first = next(iter(probe.inputs.values()))
    return int(first.shape[0] * (first.shape[1] if first.ndim == 2 else 1))


def _busy() -> str:
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return ""
    if load <= BUSY * cores():
        return ""
    return f"Other work was running: a load of {load:.1f} on {cores()} cores when this began."


def _labelled(entries: Sequence[Entry], given: Sequence[object], threads: int) -> tuple[Entry, ...]:
    """Each under the name the user gave it; how many threads it had is told apart."""
    named = []
    for entry, spec in zip(entries, given, strict=True):
        known = entry.backend.flags.get("threads", "")
        own = int(known) if known.isdecimal() else threads
        label = str(Spec.parse(spec)) if isinstance(spec, str) else entry.backend.spec
        named.append(replace(entry, backend=replace(entry.backend, spec=label), threads=own))
    return tuple(named)
