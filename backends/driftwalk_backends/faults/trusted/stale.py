"""A stale cache: what is stored under the key in use was made from an earlier version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from driftwalk.registry import create

from ...loaded import LoadedModel
from ..planning import FaultyModel, inject
from .lie import UNSEEN, Absent, Case, Ground, Lie, OtherModel, Weighed, placed


class Earlier(OtherModel):
    """A version of a model that no fingerprint can tell from it, as if a function was patched."""

    def __init__(self, clean: LoadedModel, module: nn.Module) -> None:
        super().__init__(clean, module, f"{clean.label} (an earlier version)")
        self.fingerprint = clean.fingerprint

    @property
    def has_known_code(self) -> bool:
        return self.clean.has_known_code


def stale_cache(ground: Ground) -> Iterator[Lie]:
    """In turn: the candidate is of the earlier version, both sides are; with an exporter, none."""
    if not ground.model.has_known_code:
        raise Absent("its code is of no known version, so that nothing made from it is stored")
    told = list(_TOLD)
    if ground.candidate.name == "onnxruntime":
        told.insert(1, ("no side is, but a graph is stored", _graph))
    for number in range(len(told) * 3):
        both = (ground.dtype, "fp32")
        weighed = ground.owed(f"stale_cache|{number}", both, first=3 * number)
        if weighed is None:
            raise Absent(UNSEEN)
        text, build = told[number % len(told)]
        said = f"stored for an earlier version: {weighed.fault.description}; {text}"
        yield Lie("stale_cache", said, lambda w=weighed, b=build: b(ground, w))  # type: ignore[misc]


def _earlier(ground: Ground, weighed: Weighed) -> Earlier:
    return Earlier(ground.model, inject(ground.model.module, weighed.fault))


def _candidate(ground: Ground, weighed: Weighed) -> Case:
    return Case(
        ground.model,
        ground.faulty(weighed.fault),
        ground.probe,
        "candidate",
        placed(weighed),
        before=_earlier(ground, weighed),
    )


def _both(ground: Ground, weighed: Weighed) -> Case:
    reference = create("torch", FaultyModel(ground.model, weighed.fault))
    return replace(_candidate(ground, weighed), wrong="both", reference=reference)


def _graph(ground: Ground, weighed: Weighed) -> Case:
    """A candidate that looks for an export in the cache: the stored one is not this model's."""
    spec = str(ground.candidate.spec)
    return Case(ground.model, spec, ground.probe, "nobody", before=_earlier(ground, weighed))


_TOLD = (("the candidate is one, too", _candidate), ("both sides are", _both))
