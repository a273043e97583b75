"""Every kind of lie, and which of them a model has room for."""

from __future__ import annotations

from itertools import islice

from .disguises import broken_head, converted_dtype, inverted_mask
from .lie import Absent, Ground, Lie, Teller
from .witnesses import stale_cache, swollen_yardstick, void_truth, wrong_reference

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


def plan_lies(ground: Ground, number: int) -> tuple[list[Lie], dict[str, str]]:
    """At most `number` lies of every kind; and the kinds without room, each with the reason.

    Which lies these are depends on the seed alone.
    """
    lies: list[Lie] = []
    absent: dict[str, str] = {}
    for kind, tell in TRUSTED.items() if number else ():
        before = len(lies)
        try:
            lies.extend(islice(tell(ground), number))  # what came before an exception stays
        except Absent as why:
            if len(lies) == before:
                absent[kind] = str(why)
    return lies, absent
