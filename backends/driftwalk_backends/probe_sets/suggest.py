"""A small set of probes that covers most of a model: each is kept only if it covers something new.

Rows of an embedding are enumerated, in batches. Positions take one long row; padding, windows and
types of tokens a probe each. Experts are searched for: rows of random tokens, until all were used
or none of many tries used a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import ProbeError
from driftwalk.exercised import EXPERTS, Exercised
from driftwalk.states import Probe

from ..calls import call, first_line, quietly
from ..default_probe.search import default_inputs
from ..loaded import LoadedModel
from ..probes import BATCH, LENGTH, make_probe, max_positions, table_size
from .edges import IDS, LONGEST, TextEdges
from .values import value_edges

ROWS, TOKENS = 8, 128
"""Of a probe that enumerates ids."""
TRIES = 48
"""Probes of random tokens that may use no new expert, one after the other."""
ORIGIN = "suggest"

Watched = Callable[[Probe], None]
"""Has the model run on a probe, watched."""


@dataclass(frozen=True)
class Suggestion:
    """A set, and what of the model it covers."""

    probes: tuple[tuple[str, Probe], ...]
    enumerated: int
    """How many of them, the first ones, only enumerate the rows of embeddings."""
    exercised: Exercised | None
    before: Exercised | None
    """What the default probe covers."""
    notes: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Rows of all probes but those that enumerate."""
        chosen = self.probes[self.enumerated :]
        return sum(
            max((len(a) for a in probe.inputs.values() if a.ndim), default=1) for _, probe in chosen
        )


def suggest(
    model: LoadedModel, seed: int = 0, told: Callable[[str], None] = lambda text: None
) -> Suggestion:
    """The set for a model; `told` is given what is tried next."""
    return _Search(model, seed, told).found()


class _Search:
    def __init__(self, model: LoadedModel, seed: int, told: Callable[[str], None]) -> None:
        self._model, self._seed, self._told = model, seed, told
        self._kept: list[tuple[str, Probe]] = []
        self._notes: list[str] = []
        self._score = 0.0

    def found(self) -> Suggestion:
        base = default_inputs(self._model, BATCH, LENGTH, self._seed)
        self._model.add_up()
        self._try("usual", base)
        before = self._model.added_up()
        # Whether the default probe is needed shows at the end of the set, not at its beginning.
        self._model.add_up()
        self._kept, self._score = [], 0.0
        edges = None
        if IDS in base and base[IDS].ndim == 2:
            edges = TextEdges(self._model, base, self._seed)
            for name, inputs in self._enumeration(edges):
                self._try(name, inputs)
        enumerated = len(self._kept)
        if edges is not None:
            for name, inputs in edges.covering():
                self._try(name, inputs)
            self._experts(edges)
            self._notes += edges.notes
        self._try("usual", base)
        for name, inputs in value_edges(base, self._model.config):
            self._try(name, inputs)
        if not self._kept:
            raise ProbeError(f"{self._model.label} runs with none of the probes that were tried.")
        whole = self._model.added_up()
        return Suggestion(tuple(self._kept), enumerated, whole, before, tuple(self._notes))

    def _try(self, name: str, inputs: dict[str, Array]) -> bool:
        """Run a probe, watched, and keep it if it covers something that none before it did."""
        self._told(name)
        try:
            probe = make_probe(self._model, Probe(inputs, f"{ORIGIN} ({name})"))
            self._run(probe)
        except Exception as error:  # whatever the model raises
            self._notes.append(f"{name!r} was left out: {first_line(error)}")
            return False
        score = _score(self._model.added_up())
        new = score > self._score or not self._kept
        if new:
            self._kept.append((name, probe))
        self._score = max(score, self._score)
        return new

    def _run(self, probe: Probe) -> None:
        module = self._model.on_host()
        with quietly(module):
            inputs = self._model.inputs(module, probe, "cpu")
            self._model.exercised(module, inputs, partial(call, module, inputs))

    def _enumeration(self, edges: TextEdges) -> Iterator[tuple[str, dict[str, Array]]]:
        """Every id once, in batches; the last one is filled up with the first ids."""
        vocabulary = table_size(self._model.module) or 0
        length = min(TOKENS, max_positions(self._model, IDS) or TOKENS)
        ids = np.arange(vocabulary)
        step = ROWS * length
        for first in range(0, vocabulary, step):
            rows = min(ROWS, -(-(vocabulary - first) // length))
            part = ids[np.arange(first, first + rows * length) % vocabulary]
            last = min(first + step, vocabulary) - 1
            name = f"ids {first} to {last}"
            yield name, edges.sized(rows, length, part.reshape(rows, length))

    def _experts(self, edges: TextEdges) -> None:
        """Rows of random tokens, as long as experts are left that no token was routed to."""
        length = min(64, max_positions(self._model, IDS) or 64, LONGEST)
        failed, number = 0, 0
        while failed < TRIES and not _all_experts(self._model.added_up()):
            number += 1
            rows = edges.sized(1, length)
            if number % 2:  # one token again and again: what it is routed to differs by place alone
                rows = edges.sized(1, length, np.full((1, length), rows[IDS][0, 0]))
            failed = 0 if self._try(f"for experts {number}", rows) else failed + 1


def _score(known: Exercised | None) -> float:
    """What greedy choice goes by: all kinds of part, and the weights themselves."""
    if known is None:
        return 0.0
    return sum(known.shares.values()) + (known.weights or 0.0)


def _all_experts(known: Exercised | None) -> bool:
    return known is None or all(item.tried for item in known.of(EXPERTS))
