"""One job: a family is applied to a subject, and driftwalk and its peers are asked about it."""

from __future__ import annotations

import math
import platform
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import driftwalk
from driftwalk.errors import DriftwalkError

from .case import FAMILIES, Case, Done, Family, NoPlace, Site
from .judging import SAME, VISIBLE, outcome, right_places, told_wrongly
from .peers import ask_all
from .pipelines import RUNS, Answer, Pair
from .places import copied
from .rows import Row
from .spots import difference

HERE = f"torch {torch.__version__.partition('+')[0]} {platform.machine()}"
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
OF_PEERS = ("fp32", "bf16", "fp16", "int8", "onnx")
"""Runs in which peers are asked: the other ones are other questions to driftwalk alone."""
WITHOUT_CAUSE = ("compare", "pair")
"""Runs that name the first divergence and, having no model, no cause."""


@dataclass(frozen=True)
class Job:
    """The cases that share one changed module."""

    cases: tuple[Case, ...]
    seed: int
    peers: bool = True

    @property
    def first(self) -> Case:
        return self.cases[0]


def rows_of(job: Job, subject: nn.Module, inputs: Mapping[str, Any]) -> list[Row]:
    """A row for each case; none where the subject has no place for the family."""
    family = FAMILIES[job.first.family]
    try:
        done = applied(job, family, subject, inputs)
        size = _effect(done, subject, inputs)
    except NoPlace:
        return [{"id": case.id, "outcome": "no place"} for case in job.cases]
    except Exception as error:  # of the change itself, or of a tool that makes its candidate
        why = _told("cannot be made", error)
        return [{"id": c.id, "owed": family.owed, "outcome": "void", "why": why} for c in job.cases]
    begun = {"owed": family.owed, "what": done.what, "effect": size, "on": HERE}
    if why := _void(family, done, size):
        return [{"id": case.id, **begun, "outcome": "void", "why": why} for case in job.cases]
    return [_row(case, family, done, subject, inputs, begun, job.peers) for case in job.cases]


def applied(job: Job, family: Family, subject: nn.Module, inputs: Mapping[str, Any]) -> Done:
    """The place is drawn by subject, family and draw, so that all runs share it."""
    chance = replace(job.first, run="any").rng(job.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return family.apply(Site(copied(subject), inputs, chance))


def _effect(done: Done, subject: nn.Module, inputs: Mapping[str, Any]) -> float:
    """NaN where the candidate is no module: a spec is the subject's own function."""
    if not isinstance(done.candidate, nn.Module):
        return math.nan
    reference = subject if done.reference is None else done.reference
    assert isinstance(reference, nn.Module)
    return difference(reference, done.candidate, inputs)


def _void(family: Family, done: Done, size: float) -> str:
    """Why a case is none: a fault that changes nothing, an honest change that does."""
    if math.isnan(size):
        return ""
    if family.owed == "fault" and not size > VISIBLE:
        return "no effect on any output"
    if family.owed == "honest" and not size < SAME:
        return f"not the same function: {size:.1e} in float64"
    return ""


def _row(
    case: Case,
    family: Family,
    done: Done,
    subject: nn.Module,
    inputs: Mapping[str, Any],
    begun: Row,
    peers: bool,
) -> Row:
    row: Row = {"id": case.id, **begun}
    start = time.perf_counter()
    try:
        pair = Pair.of(subject, done, inputs)
        if case.run in HALVES and family.owed == "fault":
            row["effect"] = in_half(pair, HALVES[case.run])
            if why := _void(family, done, row["effect"]):
                return row | {"outcome": "void", "why": f"{why} once it is stored in {case.run}"}
        answer = RUNS[case.run](pair)
    except NoPlace:
        return {"id": case.id, "outcome": "no place"}
    except DriftwalkError as error:
        right = family.owed == "odd"
        row |= {"outcome": "right" if right else "refused", "why": _first_line(error)}
        return row | {"seconds": round(time.perf_counter() - start, 2)}
    except Exception as error:
        return row | {"outcome": "broken", "why": _told("driftwalk", error)}
    row["seconds"] = round(time.perf_counter() - start, 2)
    row |= _judged(case, family, done, pair, answer)
    if peers and case.run in OF_PEERS and isinstance(done.candidate, nn.Module):
        said = ask_all(pair.first, done.candidate, inputs, case.run)
        row["peers"] = {name: _peer(one, pair, done) for name, one in said.items()}
    return row


def in_half(pair: Pair, dtype: torch.dtype) -> float:
    """The effect that is left once both sides store their numbers in a half format."""
    first, second = copied(pair.first), copied(pair.module)
    for side in (first, second):
        with torch.no_grad():
            for numbers in (*side.parameters(), *side.buffers()):
                if numbers.is_floating_point():
                    numbers.copy_(numbers.to(dtype))
    return difference(first, second, pair.inputs)


def as_modules(pair: Pair, points: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """A graph's points with the modules that the same points of the model have."""
    trace = driftwalk.backend("torch", pair.model).trace(driftwalk.Probe(dict(pair.inputs)))
    homes = {state.point.name: state.point.module for state in trace.states}
    last = homes[trace.names[-1]]
    return tuple((name, homes.get(name, last)) for name, _ in points)


def _judged(case: Case, family: Family, done: Done, pair: Pair, answer: Answer) -> Row:
    if case.run in WITHOUT_CAUSE:
        answer = replace(answer, cause=answer.first)
    if case.run == "pair":
        answer = replace(answer, points=as_modules(pair, answer.points))
    row: Row = {"verdict": answer.verdict, "used": answer.used}
    placed = part = False
    if family.owed == "fault":
        right = right_places(pair.model, pair.inputs, done, answer)
        placed, part = right.layer(answer, done), right.module(answer)
        row["right"] = sorted(right.points)[:4]
        row["told"] = told_wrongly(answer, done, pair)
    row["outcome"] = outcome(family.owed, answer, placed)
    if answer.verdict == "drift":
        row |= {"cause": answer.cause, "part": part, "culprit": answer.culprit}
        row |= {"side": answer.at_fault, "first": answer.first}
    if answer.reason and row["outcome"] not in ("right", "placed"):
        row["why"] = answer.reason
    return row


def _peer(said: Any, pair: Pair, done: Done) -> str:
    """`same`, `cannot`, `differs` or `placed`, where the layer it names holds what is wrong."""
    if said.verdict != "differs" or not said.place:
        return str(said.verdict)
    inside = any(f"{path}.".startswith(f"{said.place}.") for path in done.targets)
    return "placed" if inside else "differs"


def _told(what: str, error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    return f"{what}: {type(error).__name__}: {_first_line(error)} ({place})"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
