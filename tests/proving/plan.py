"""Which cases are asked: all that one may ask, drawn by seed where that would be too many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from . import every, holes
from .asking import Job
from .case import FAMILIES, Case, Family
from .subjects import Subject

del every  # it registers all families

COSTS = {
    "set": 1.5,
    "generate": 1.5,
    "int8-generate": 1.5,
    "selftest": 2.0,
    "onnx": 3.0,
    "pair": 4.0,
}
"""How much less often a run is drawn than others: exporting a model takes seconds."""
MORE = 2
"""Runs that are drawn for each subject and family beside the plain one."""
FAMILIES_OF = {"real": 55, "tiny": 36, "net": 36, "own": 60}
"""Families that are drawn for each subject, by the beginning of its name."""
QUICK = 150
"""Jobs of the quick part."""


def whole(subjects: Sequence[Subject], seed: int) -> list[Job]:
    """Families drawn for every subject, in float32 and in a few other runs; and known holes."""
    named = {one.name for one in subjects}
    asked: dict[tuple[str, str, int], list[Case]] = {}
    for subject in subjects:
        for draw in range(subject.draws):
            for family in _drawn(subject, draw, seed):
                for case in _cases(subject, family, draw, seed):
                    asked.setdefault((case.subject, case.family, draw), []).append(case)
    for case in holes.cases():
        some = asked.setdefault((case.subject, case.family, case.draw), [])
        if case.subject in named and case not in some:
            some.append(case)
    return [Job(tuple(cases), seed) for cases in asked.values() if cases]


def some(subjects: Sequence[Subject], seed: int) -> list[Job]:
    """Every family on every subject in every run: what is asked by name is not drawn."""
    return [
        Job(tuple(Case(one.name, family.name, run) for run in family.runs), seed)
        for one in subjects
        for family in FAMILIES.values()
    ]


def _drawn(subject: Subject, draw: int, seed: int) -> list[Family]:
    """Some of all families, in the order in which they are registered."""
    count = FAMILIES_OF[subject.name.partition(":")[0]]
    names = [name for name, family in FAMILIES.items() if family.drawn == "by chance"]
    some = Random(f"{seed}/{subject.name}/{draw}").sample(names, min(count, len(names)))
    return [one for name, one in FAMILIES.items() if name in some or one.drawn == "always"]


def _cases(subject: Subject, family: Family, draw: int, seed: int) -> Iterator[Case]:
    chance = Random(f"{seed}/{subject.name}/{family.name}/{draw}")
    others = [run for run in family.runs if run != "fp32"]
    keys = {run: chance.random() ** COSTS.get(run, 1.0) for run in others}
    drawn = sorted(others, key=lambda run: -keys[run])[:MORE]
    for run in ("fp32", *sorted(drawn)):
        if run in family.runs:
            yield Case(subject.name, family.name, run, draw)


def quick(subjects: Sequence[Subject], seed: int) -> list[Job]:
    """A sample of the whole: other cases with another seed, never of what is kept for the end."""
    jobs = whole([one for one in subjects if not one.kept], seed)
    Random(seed).shuffle(jobs)
    return jobs[:QUICK]
