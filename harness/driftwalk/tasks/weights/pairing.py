"""Which weight of one side is which of the other: by name, else by content.

By name: the same one, or one that is the end of the other (`transformer.h.0` and `h.0`). By
content: a few hundred entries at the same places of weights of one shape, straight or transposed.
Equal there is a match, whoever else is equal too; else the nearest one is, if it is far nearer than
all others. A weight that is one number all over tells nothing, and is matched by equality alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...dtypes import FORMATS, Array, Float64
from ...weight_source import Stored, WeightSource
from ..constants import PAIRING_MARGIN, PAIRING_SAMPLE, PAIRING_TRIES
from .compare import all_same


@dataclass(frozen=True)
class Pair:
    """A weight on both sides: the reference's name and the candidate's."""

    name: str
    other: str
    matched: Literal["name", "content"] = "name"
    turned: bool = False
    """Whether the candidate's is the transposed one, by its content."""


def pair(a: WeightSource, b: WeightSource) -> tuple[Pair, ...]:
    """Partners, in the reference's order; who has none is in no pair."""
    named = dict(_by_name(a.tensors, b.tensors))
    # A name of memory that has a partner already needs no other.
    done = {one for name in named for one in a.group(name)}
    taken = {one for name in named.values() for one in b.group(name)}
    ours = {name: one for name, one in a.tensors.items() if name not in done}
    theirs = {name: one for name, one in b.tensors.items() if name not in taken}
    found = {name: Pair(name, other) for name, other in named.items()}
    # Where one side is a graph, its exporter may have merged weights that are equal.
    merged = b.tensors if "graph" in (a.kind, b.kind) else {}
    found |= {one.name: one for one in by_content(ours, theirs, merged)}
    return tuple(found[name] for name in a.tensors if name in found)


def _by_name(ours: Iterable[str], theirs: Iterable[str]) -> Iterable[tuple[str, str]]:
    there = set(theirs)
    same = [name for name in ours if name in there]
    yield from zip(same, same, strict=True)
    rest, others = [n for n in ours if n not in there], [n for n in theirs if n not in set(same)]
    ends: dict[str, list[str]] = {}
    for longer, shorter in ((others, set(rest)), (rest, set(others))):
        for name in longer:
            parts = name.split(".")
            for start in range(1, len(parts) - 1):
                if (end := ".".join(parts[start:])) in shorter:
                    one, other = (end, name) if longer is others else (name, end)
                    ends.setdefault(one, []).append(other)
                    break
    used = [other for several in ends.values() for other in several]
    for name, several in ends.items():
        if len(several) == 1 and used.count(several[0]) == 1:
            yield name, several[0]


def by_content(
    ours: Mapping[str, Stored], theirs: Mapping[str, Stored], merged: Mapping[str, Stored]
) -> list[Pair]:
    """Partners by what weights hold; one of `merged` may be equal to many."""
    views = _views({**theirs, **merged}, {_class(one) for one in ours.values()})
    wanted = {name: _entries(one.read()) for name, one in ours.items() if _tells(one)}
    buckets: dict[tuple[object, ...], list[_View]] = {}
    for view in (view for some in views.values() for view in some):
        buckets.setdefault((view.shape, view.stored.dtype, view.entries.tobytes()), []).append(view)
    found: list[Pair] = []
    used: set[str] = set()
    alone: dict[str, Float64] = {}
    for name, entries in wanted.items():
        own = ours[name]
        same = buckets.get((own.shape, own.dtype, entries.tobytes()), [])
        cast = (view for view in views.get(_class(own), ()) if view.stored.dtype != own.dtype)
        equal = same or [view for view in cast if view.equals(own, entries)]
        fresh = [view for view in equal if view.name in theirs and view.name not in used]
        choice = fresh + [view for view in equal if view.name in merged and view not in fresh]
        if len(choice) > 1 or _constant(entries):  # a sample may miss the entry that differs
            choice = [view for view in choice if view.is_wholly(own)]
        if choice:
            used.add(choice[0].name)
            found.append(Pair(name, choice[0].name, "content", choice[0].turned))
        elif not equal and not _constant(entries):
            alone[name] = entries
    left = {
        kind: [view for view in some if view.name in theirs and view.name not in used]
        for kind, some in views.items()
    }
    tries = sum(len(left.get(_class(ours[name]), ())) for name in alone)
    nearest = {
        name: best
        for name, entries in (alone if tries <= PAIRING_TRIES else {}).items()
        if (best := _nearest(ours[name], entries, left.get(_class(ours[name]), ()))) is not None
    }
    claimed = [view.name for view in nearest.values()]
    return found + [
        Pair(name, view.name, "content", view.turned)
        for name, view in nearest.items()
        if claimed.count(view.name) == 1
    ]


@dataclass(frozen=True, eq=False)
class _View:
    """A weight as it is, or transposed, with its sample."""

    name: str
    stored: Stored
    turned: bool
    entries: Float64

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape[::-1] if self.turned else self.stored.shape

    def equals(self, own: Stored, entries: Float64) -> bool:
        return self.shape == own.shape and self.closeness(own, entries) == 1.0

    def is_wholly(self, own: Stored) -> bool:
        array = self.stored.read()
        return all_same(own.read(), array.T if self.turned else array)

    def closeness(self, own: Stored, entries: Float64) -> float:
        """1.0: all entries agree. Else how many do, or how near their directions are, below."""
        a, b = entries, self.entries
        room = 0.0
        if own.dtype != self.stored.dtype:
            known = (FORMATS[one] for one in (own.dtype, self.stored.dtype) if one in FORMATS)
            room = 2 * max((one.roundoff for one in known), default=0.0)
        with np.errstate(all="ignore"):
            agree = (a == b) | (np.isnan(a) & np.isnan(b))
            if room:
                agree |= np.abs(a - b) <= room * np.abs(a)
            if agree.all():
                return 1.0
            product = float(a @ b) / math.sqrt(float(a @ a) * float(b @ b) or math.inf)
        cosine = abs(product) if math.isfinite(product) else 0.0
        return min(max(float(agree.mean()), cosine), 1 - 1e-9)


Class = tuple[tuple[int, ...], bool]
"""What partners have in common: their sizes in any order, and whether they hold floats."""


def _class(stored: Stored) -> Class:
    shape = sorted(stored.shape) if len(stored.shape) == 2 else stored.shape
    return tuple(shape), stored.dtype in FORMATS


def _views(stored: Mapping[str, Stored], wanted: set[Class]) -> dict[Class, list[_View]]:
    """All weights that may be somebody's partner; a matrix also transposed."""
    found: dict[Class, list[_View]] = {}
    for name, one in stored.items():
        if _class(one) in wanted and _tells(one):
            turns = (False, True) if len(one.shape) == 2 else (False,)
            array = one.read()
            views = [_View(name, one, turned, _entries(array, turned)) for turned in turns]
            found.setdefault(_class(one), []).extend(views)
    return found


def _tells(stored: Stored) -> bool:
    return math.prod(stored.shape) > 1


def _constant(entries: Float64) -> bool:
    return bool((entries == entries[0]).all())


def _entries(array: Array, turned: bool = False) -> Float64:
    """Entries of a weight, or of the transposed one, at places that the shape alone decides."""
    shape = array.shape[::-1] if turned else array.shape
    size = math.prod(shape)
    places = np.arange(size)
    if size > PAIRING_SAMPLE:
        places = np.random.default_rng(sorted(shape)).integers(0, size, PAIRING_SAMPLE)
    index = np.unravel_index(places, shape)
    return np.asarray(array[index[::-1] if turned else index]).astype(np.float64)


def _nearest(own: Stored, entries: Float64, views: Sequence[_View]) -> _View | None:
    """The one that stands out, if any does."""
    close = [(one.closeness(own, entries), one) for one in views if one.shape == own.shape]
    ranked = sorted(close, key=lambda pair: -pair[0])
    if not ranked:
        return None
    first, view = ranked[0]
    second = next((one for one, other in ranked if other.name != view.name), 0.0)
    return view if PAIRING_MARGIN * (1 - first) <= 1 - second else None
