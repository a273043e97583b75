"""Every kind of lie, and which of them a model has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from .dtypes import converted_dtype
from .heads import broken_head
from .lie import Absent, Ground, Lie, Teller
from .masks import inverted_mask
from .references import wrong_reference
from .stale import stale_cache
from .witnesses import swollen_yardstick, void_truth

TRUSTED: dict[str, Teller] = {
    "wrong_reference": wrong_reference,
    "void_truth": void_truth,
    "swollen_yardstick": swollen_yardstick,
    "stale_cache": stale_cache,
    "inverted_mask": inverted_mask,
    "converted_dtype": converted_dtype,
    "broken_head": broken_head,
}
"""What the gate trusts, one kind of lie for each: reference, truth, yardstick, cache, mask, dtype,
outputs."""


@dataclass(frozen=True, eq=False)
class LiesPlan:
    """The lies to tell, and the kinds this model has no room for, each with the reason."""

    lies: tuple[Lie, ...]
    absent: Mapping[str, str]


def plan_lies(ground: Ground, number: int) -> LiesPlan:
    """At most `number` lies of every kind; which ones depends on the seed alone."""
    lies: list[Lie] = []
    absent: dict[str, str] = {}
    for kind, tell in TRUSTED.items() if number else ():
        found: list[Lie] = []
        try:
            found.extend(islice(tell(ground), number))  # what came before an exception stays
        except Absent as why:
            if not found:
                absent[kind] = str(why)
        lies += found
    return LiesPlan(tuple(lies), absent)
