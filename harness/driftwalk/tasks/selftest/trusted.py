"""Lies told to the gate: is a fault still caught when something that the gate trusts is wrong?

The reference, the truth, the yardstick, the cache, the mask, the dtype or a head is made to lie,
and `verify` itself is called. It must find the fault and name the side that has it, or say that it
cannot verify. It must never pass, nor call a side wrong that is right.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...adapter import Backend
from ...errors import DriftwalkError
from ...judge.calibrate import yardstick_spec
from ...progress import Progress
from ...result import Report
from ...verification import verify_all
from .result import Answer, TrustedCount, TrustedTrial

if TYPE_CHECKING:
    from driftwalk_backends.faults.trusted.lie import Ground, Lie, Setup

LIES = 1
"""Of each kind, if not said otherwise."""
CACHE = "DRIFTWALK_CACHE"


@dataclass(frozen=True)
class Told:
    """What became of all lies."""

    trials: tuple[TrustedTrial, ...]
    kinds: tuple[TrustedCount, ...]
    absent: Mapping[str, str]


def tell_lies(ground: Ground, number: int, show: Progress) -> Told:
    """Tell `number` lies of each kind, and judge what the gate says."""
    from driftwalk_backends.faults.trusted.planning import plan_lies

    with show.stage("choosing faults in what the gate trusts", extra=True):
        lies, absent = plan_lies(ground, number)
    trials = []
    with own_cache():
        for lie in lies:
            with show.stage(f"{lie.kind}: {lie.description}", extra=True):
                trials.append(_tried(lie, ground.candidate))
    kinds = dict.fromkeys(trial.kind for trial in trials)
    return Told(tuple(trials), tuple(TrustedCount.of(kind, trials) for kind in kinds), absent)


@contextmanager
def own_cache() -> Iterator[Path]:
    """A cache that nobody else has, and that is gone afterwards: what is stored may be a lie."""
    before = os.environ.get(CACHE)
    # What a process of its own still holds of it need not keep this one from going on.
    with tempfile.TemporaryDirectory(
        prefix="driftwalk-selftest-", ignore_cleanup_errors=True
    ) as at:
        os.environ[CACHE] = at
        try:
            yield Path(at)
        finally:
            os.environ.pop(CACHE)
            if before is not None:
                os.environ[CACHE] = before


def _tried(lie: Lie, clean: Backend) -> TrustedTrial:
    setup: Setup | None = None
    try:
        setup = lie.build()
        report = _verified(setup)
    except DriftwalkError as error:
        wrong = setup.wrong if setup is not None else "nobody"
        return TrustedTrial(lie.kind, lie.description, wrong, "not_built", note=str(error))
    finally:
        for side in (setup.candidate, setup.reference) if setup is not None else ():
            if isinstance(side, Backend) and side is not clean:
                side.close()
    first = report.first_divergence
    return TrustedTrial(
        lie.kind,
        lie.description,
        setup.wrong,
        answer(setup, report),
        setup.points,
        report.verdict,
        report.at_fault,
        first.point.name if first is not None else None,
        report.cause,
        report.reason,
    )


def _verified(setup: Setup) -> Report:
    with ExitStack() as alone:
        if setup.before is not None:  # what is stored of it is there for nobody else
            _store(setup, alone.enter_context(own_cache()))
        return verify_all(setup.model, [setup.candidate], setup.reference, setup.probe)[0]


def answer(setup: Setup, report: Report) -> Answer:
    """What the gate made of a lie."""
    if report.verdict == "unverified":
        return "unverified"
    if setup.wrong == "nobody":
        return "cleared" if report.ok else "accused"
    if report.ok:
        return "missed"
    if report.at_fault not in (setup.wrong, None):
        return "accused"
    first = report.first_divergence
    place = report.cause or (first.point.name if first is not None else None)
    return "caught" if place in setup.points else "misplaced"


def _store(setup: Setup, cache: Path) -> None:
    """Store whatever is stored of an earlier version: truth, yardstick, graph."""
    spec = setup.candidate
    if isinstance(spec, Backend):  # of a faulty graph nothing is stored, but of its dtype is
        spec = yardstick_spec(spec.info.dtype)
    verify_all(setup.before, [spec], "torch", setup.probe)
    if not any(cache.rglob("*.json")):
        raise DriftwalkError("Nothing of the earlier version was stored, so no lie was told.")
