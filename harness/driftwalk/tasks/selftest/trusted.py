"""Lies told to the gate: is a fault still caught when something that the gate trusts is wrong?

The reference, the truth, the yardstick, the cache, the mask, the dtype or a head is made to lie,
and `verify` itself is called. It must find the fault and name the side that has it, or say that it
cannot verify. It must never pass, nor call a side wrong that is right.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...adapter import Backend
from ...errors import DriftwalkError
from ...judge.calibrate import yardstick_spec
from ...progress import Progress
from ...result import Report
from ...verification import verify_all
from .result import FAILED, Answer, TrustedCount, TrustedTrial

if TYPE_CHECKING:
    from driftwalk_backends.faults.trusted.lie import Case, Ground, Lie

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
    from driftwalk_backends.faults.trusted.planning import TRUSTED, plan_lies

    with show.stage("choosing faults in what the gate trusts", extra=True):
        planned = plan_lies(ground, number)
    trials = []
    with own_cache():
        for lie in planned.lies:
            with show.stage(f"{lie.kind}: {lie.description}", extra=True):
                trials.append(_tried(lie, ground.candidate))
    kinds = [kind for kind in TRUSTED if any(trial.kind == kind for trial in trials)]
    return Told(tuple(trials), tuple(_count(kind, trials) for kind in kinds), planned.absent)


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
    case: Case | None = None
    try:
        case = lie.build()
        report = _verified(case)
    except DriftwalkError as error:
        said = case.wrong if case is not None else "nobody"
        return TrustedTrial(lie.kind, lie.description, said, "not_built", note=str(error))
    finally:
        if case is not None:
            _close(case, keep=clean)
    first = report.first_divergence
    return TrustedTrial(
        lie.kind,
        lie.description,
        case.wrong,
        answer(case, report),
        case.points,
        report.verdict,
        report.at_fault,
        first.point.name if first is not None else None,
        report.cause,
        report.reason,
    )


def _verified(case: Case) -> Report:
    sides = [case.candidate], case.reference, case.probe
    if case.before is None:
        return verify_all(case.model, *sides)[0]
    with own_cache() as folder:  # what is stored for an earlier version is there for nobody else
        _store(case, folder)
        return verify_all(case.model, *sides)[0]


def answer(case: Case, report: Report) -> Answer:
    """What the gate made of a lie."""
    if report.verdict == "unverified":
        return "unverified"
    if case.wrong == "nobody":
        return "cleared" if report.ok else "accused"
    if report.ok:
        return "missed"
    if report.at_fault not in (case.wrong, None):
        return "accused"
    first = report.first_divergence
    place = report.cause or (first.point.name if first is not None else None)
    return "caught" if place in case.points else "misplaced"


def _store(case: Case, cache: Path) -> None:
    """Store whatever is stored of an earlier version: truth, yardstick, graph."""
    spec = case.candidate
    if isinstance(spec, Backend):  # of a faulty graph nothing is stored, but of its dtype is
        spec = yardstick_spec(spec.info.dtype)
    verify_all(case.before, [spec], "torch", case.probe)
    if not any(cache.rglob("*.json")):
        raise DriftwalkError("Nothing of the earlier version was stored, so no lie was told.")


def _close(case: Case, keep: Backend) -> None:
    """Close the backends that were made for one lie."""
    for side in (case.candidate, case.reference):
        if isinstance(side, Backend) and side is not keep:
            side.close()


def _count(kind: str, trials: list[TrustedTrial]) -> TrustedCount:
    ours = [trial.answer for trial in trials if trial.kind == kind]

    def number(*answers: Answer) -> int:
        return sum(found in answers for found in ours)

    return TrustedCount(
        kind,
        told=len(ours) - number("not_built"),
        caught=number("caught", "cleared"),
        unverified=number("unverified"),
        failed=number(*FAILED),
        not_built=number("not_built"),
    )
