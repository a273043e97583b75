"""`bench`: how fast the backends of one model are, measured so that the answer can be believed.

Plain runs only. Backends take turns (A B, B A, A B, ...), so that a slow spell of the machine hits
all alike; each has a process of its own; what comes before the steady state is told apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

from ...adapter import Lap
from ...environment import head
from ...errors import UsageError
from ...other_inputs import arrays_in
from ...progress import Progress
from ...registry import backend_class
from ...result import Benchmark, Report
from ...spec import Spec
from ...stage import (
    Setting,
    check_names,
    default_shape,
    make_probe,
    open_backend,
    open_model,
)
from ...states import Probe
from ...verification import Addition
from ...workers import cores
from ..constants import BUSY_LOAD, FEWEST_TIMED_PAIRS
from .result import BenchReport, Case, Entry
from .runner import Local, Remote, Runner

if TYPE_CHECKING:
    from driftwalk_backends.sources import AnyModel

ROUNDS, WARMUP, LAYER_RUNS = 30, 3, 5


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
    where = {"blocks": blocks, "trust_remote_code": trust_remote_code}
    cases: list[Case] = []
    complete = True
    with ExitStack() as opened:
        runners: list[Runner] = []
        for given in backends:
            spec = _with_threads(given, each) if isinstance(given, str) else given
            if alone:
                runners.append(remote := Remote(str(spec), str(model), each, **where))
                opened.callback(remote.close)
            else:
                runners.append(Local(open_backend(spec, loaded, opened)))
        for (rows, tokens), one in probes:
            measured = [_Measured(*pair, each) for pair in zip(runners, backends, strict=True)]
            what = f"{rows} x {tokens}" if tokens else str(rows)
            try:
                _measure(measured, one, what, show, rounds, warmup, seconds, layers)
            except KeyboardInterrupt:
                complete = False
            inputs = ", ".join(f"{name} {list(array.shape)}" for name, array in one.inputs.items())
            entries = tuple(side.entry() for side in measured)
            cases.append(Case(rows, tokens, inputs, _tokens(one), entries))
            if not complete:
                break
    return BenchReport(
        **head(command, loaded.describe(), notes),
        cases=tuple(cases),
        isolated=alone,
        complete=complete,
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
        shape = _shape(probe)
        return [((shape[0], shape[1] if len(shape) > 1 else None), probe)]
    rows, tokens = default_shape()
    shapes = [(b, n) for b in batch or (rows,) for n in length or (tokens,)]
    return [((b, n), make_probe(model, None, b, n, seed)) for b, n in shapes]


def _with_threads(spec: str, threads: int) -> str:
    """The spec with as many threads as all others have, where it takes that and says nothing."""
    parsed = Spec.parse(spec)
    if "threads" not in backend_class(parsed.name).options or "threads" in parsed.options:
        return spec
    return str(replace(parsed, options={**parsed.options, "threads": str(threads)}))


@dataclass(eq=False)
class _Measured:
    """What one backend gave in one case."""

    runner: Runner
    given: object
    """What the user named it by."""
    threads: int
    cold: Mapping[str, float] = field(default_factory=dict)
    laps: list[Lap] = field(default_factory=list)
    layers: list[Mapping[str, float]] = field(default_factory=list)

    def entry(self) -> Entry:
        """Under the name the user gave it; how many threads it had is told apart."""
        laps, info = self.laps, self.runner.info()
        clocks = [lap.device for lap in laps if lap.device is not None]
        points = dict.fromkeys(name for one in self.layers for name in one)
        bench = Benchmark(
            samples=tuple(lap.seconds for lap in laps),
            layers={n: median(one[n] for one in self.layers if n in one) for n in points},
            cold=dict(self.cold),
            copy_in=median(lap.copy_in for lap in laps) if laps else 0.0,
            copy_out=median(lap.copy_out for lap in laps) if laps else 0.0,
            device=median(clocks) if clocks else None,
            memory=dict(self.runner.memory()) if self.cold else {},
        )
        own = info.flags.get("threads", "")
        threads = int(own) if own.isdecimal() else self.threads
        label = str(Spec.parse(self.given)) if isinstance(self.given, str) else info.spec
        return Entry(replace(info, spec=label), bench, threads)


def _measure(
    measured: Sequence[_Measured],
    probe: Probe,
    what: str,
    show: Progress,
    rounds: int,
    warmup: int,
    seconds: float | None,
    layers: bool,
) -> None:
    """All backends on one probe; what was measured when it is interrupted is kept."""
    for number, one in enumerate(measured, start=1):
        with show.stage(f"{what}: opening backend {number} of {len(measured)}"):
            one.cold = one.runner.open(probe)
    for number in range(1, warmup + 1):
        with show.stage(f"{what}: warming up, {number} of {warmup}"):
            for one in measured:
                one.runner.lap()
    start = time.perf_counter()
    for number in range(1, rounds + 1):
        with show.stage(f"{what}: round {number} of {rounds}"):
            order = measured if number % 2 else measured[::-1]
            laps = [one.runner.lap() for one in order]
        for one, lap in zip(order, laps, strict=True):  # whole rounds only: compared run by run
            one.laps.append(lap)
        spent = time.perf_counter() - start
        if seconds is not None and spent > seconds and number >= FEWEST_TIMED_PAIRS:
            break
    for _ in range(LAYER_RUNS if layers else 0):
        for one in measured:
            one.layers.append(one.runner.layers())


def _tokens(probe: Probe) -> int:
    """Positions that count; of inputs without a mask, all."""
    mask = probe.inputs.get("attention_mask")
    if mask is not None:
        return int((mask != 0).sum())
    shape = _shape(probe)
    return int(shape[0] * (shape[1] if len(shape) == 2 else 1))


def _shape(probe: Probe) -> tuple[int, ...]:
    """Of the first input that has rows."""
    arrays = (*probe.inputs.values(), *arrays_in(dict(probe.others)))
    return next((array.shape for array in arrays if array.ndim), (1,))


def _busy() -> str:
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return ""
    if load <= BUSY_LOAD * cores():
        return ""
    return f"Other work was running: a load of {load:.1f} on {cores()} cores when this began."
