"""Graphs that take a past, called step by step as a torch module is.

A graph says by the names of its inputs and outputs what it keeps (past.py). What an exporter adds
to a model's inputs is made up: a mask, positions, the flag of a merged decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from ..cache_points import KEPT
from ..decoding import tokens_of
from .backend import Sessions
from .decoder_export import ENCODED
from .graph import FLOAT_KINDS
from .past import FIXED, Kept, kept_among
from .reading import CACHE_FLAG

_ENCODER = "encoder_last_hidden_state"
_BATCH, _SLOTS = 0, 2
"""Axes of keys and values."""


@dataclass(frozen=True, eq=False)
class StepGraph:
    """One graph, and what it takes and gives of what is kept."""

    label: str
    ask: Callable[[Mapping[str, Array]], dict[str, Array]]
    """Its outputs by name, for a feed."""
    inputs: Mapping[str, tuple[tuple[Any, ...], str]]
    """By name: the shape, as far as it says, and the type."""
    outputs: tuple[str, ...]

    @property
    def past(self) -> dict[Kept, str]:
        return kept_among(self.inputs)

    @property
    def present(self) -> dict[Kept, str]:
        return kept_among(self.outputs)


def step_graph(session: Any, sessions: Sessions, label: str) -> StepGraph:
    """The graph of a session."""
    return StepGraph(
        label,
        lambda feed: sessions.ask(session, None, feed, label),
        {value.name: (tuple(value.shape), value.type) for value in session.get_inputs()},
        tuple(value.name for value in session.get_outputs()),
    )


@dataclass(eq=False)
class KeptLayer:
    """What a layer keeps, under the names that transformers has for it."""

    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None
    conv_states: dict[int, torch.Tensor] = field(default_factory=dict)
    recurrent_states: dict[int, torch.Tensor] = field(default_factory=dict)
    sliding_window: int | None = None

    @property
    def is_sliding(self) -> bool:
        return self.sliding_window is not None


class KeptTensors:
    """All that was kept after a step."""

    def __init__(
        self, arrays: Mapping[Kept, Array], tokens: int, windows: Sequence[int | None]
    ) -> None:
        self.arrays, self.tokens = dict(arrays), tokens
        self._windows = windows

    @property
    def layers(self) -> list[KeptLayer]:
        own = {kept: a for kept, a in self.arrays.items() if not kept.cross}
        count = max((kept.layer for kept in own), default=-1) + 1
        windows = [*self._windows, *(None,) * count][:count]
        made = [KeptLayer(sliding_window=window) for window in windows]
        named = {kind: attribute for attribute, kind in KEPT.items()}
        for kept, array in own.items():
            layer, attribute, tensor = made[kept.layer], named[kept.kind], torch.from_numpy(array)
            if kept.kind in FIXED:
                getattr(layer, attribute)[kept.number] = tensor
            else:
                setattr(layer, attribute, tensor)
        return made


class StepOutput(dict[str, torch.Tensor]):
    """What a step gives by name, and what it leaves for the next."""

    past_key_values: KeptTensors | None = None
    encoder_last_hidden_state: torch.Tensor | None = None


class SteppedGraphs(nn.Module):
    """A graph for the prompt and one for all after it, as one module that keeps a cache."""

    def __init__(
        self,
        first: StepGraph,
        after: StepGraph,
        given: Sequence[str],
        windows: Sequence[int | None] = (),
    ) -> None:
        super().__init__()
        self._first, self._after = first, after
        self._given, self._windows = given, windows
        """The model's own outputs, as the graph calls them; and how far each layer sees."""
        self._begun_with: dict[str, Array] = {}
        """Inputs of the first step: where nothing is kept, an encoder runs on them again."""
        self.seen: list[dict[str, Array]] = []
        """All that each step gave."""

    def forward(
        self, past_key_values: KeptTensors | None = None, use_cache: bool = False, **given: Any
    ) -> StepOutput:
        encoded = given.pop("encoder_outputs", None)
        arrays = {n: v.numpy() for n, v in given.items() if isinstance(v, torch.Tensor)}
        graph = self._first if past_key_values is None else self._after
        if encoded is not None and graph is self._after:
            arrays[ENCODED] = encoded.last_hidden_state.numpy()
        again = bool(self.seen) and past_key_values is None
        if not self.seen:
            self._begun_with = arrays
        elif again:
            arrays = {**self._begun_with, **arrays}
        kept = past_key_values or KeptTensors({}, 0, ())
        named = graph.ask(self._feed(graph, arrays, kept))
        there = {held: named.pop(name) for held, name in graph.present.items()}
        self.seen.append({n: a for n, a in named.items() if not again or n in self._after.outputs})
        output = StepOutput((n, torch.from_numpy(named[n])) for n in self._given if n in named)
        output.encoder_last_hidden_state = output.get(_ENCODER)
        if there:
            # What is kept of an encoder is given once; a merged decoder then gives it empty.
            lasting = {held: array for held, array in kept.arrays.items() if held.cross}
            tokens = kept.tokens + arrays[tokens_of(arrays)].shape[1]
            self._check(graph, there | lasting, tokens)
            output.past_key_values = KeptTensors(there | lasting, tokens, self._windows)
        return output

    def _feed(
        self, graph: StepGraph, arrays: Mapping[str, Array], kept: KeptTensors
    ) -> dict[str, Array]:
        tokens = arrays[tokens_of(arrays)]
        feed = dict(arrays)
        for held, name in graph.past.items():
            there = kept.arrays.get(held)
            feed[name] = _empty(graph, name, len(tokens)) if there is None else there
        made_up = _made_up(tokens, kept.tokens)
        return {n: made_up[n] for n in graph.inputs if n in made_up and n not in feed} | feed

    def _check(self, graph: StepGraph, there: Mapping[Kept, Array], tokens: int) -> None:
        """An error where what a step leaves is nothing that the next one can take."""
        taken, given = self._after.past, graph.present
        if lacking := [name for held, name in taken.items() if held not in there]:
            raise BackendError(
                f"{self._after.label} takes {lacking[0]!r}, and {graph.label} gives nothing for "
                f"it; it gives {', '.join(graph.outputs[:8])}."
            )
        for held, array in there.items():
            if held not in taken or held.cross:
                continue
            kind, name = self._after.inputs[taken[held]][1], given[held]
            if array.dtype.name != _dtype(kind).name:
                raise BackendError(
                    f"{self._after.label} takes {taken[held]!r} as {kind}, and {graph.label} gives "
                    f"{name!r} as {array.dtype.name}: a cache of the wrong dtype."
                )
            if held.kind in FIXED:
                continue
            window = dict(enumerate(self._windows)).get(held.layer)
            fine = {tokens} | ({min(tokens, window - 1), min(tokens, window)} if window else set())
            if array.ndim != 4 or array.shape[_SLOTS] not in fine:
                raise BackendError(
                    f"{graph.label} gives {name!r} as {list(array.shape)} after {tokens} tokens: a "
                    "cache of the wrong length. Expected are rows, heads, a slot for each token, "
                    "and channels."
                )


def _made_up(tokens: Array, past: int) -> dict[str, Array]:
    """What exporters add: a mask that hides nothing, positions, and a merged decoder's flag."""
    rows, fed = tokens.shape
    places = np.arange(past, past + fed, dtype=np.int64)
    return {
        "attention_mask": np.ones((rows, past + fed), np.int64),
        "position_ids": np.broadcast_to(places, tokens.shape).copy(),
        "cache_position": places,
        CACHE_FLAG: np.array([past > 0]),
    }


def _empty(graph: StepGraph, name: str, rows: int) -> Array:
    """Nothing kept yet, in the shape that a graph says."""
    shape, kind = graph.inputs[name]
    sizes = [
        rows if axis == _BATCH else size if isinstance(size, int) else 0
        for axis, size in enumerate(shape)
    ]
    if len(sizes) != 4 or kind not in FLOAT_KINDS:
        raise BackendError(
            f"{graph.label} keeps {name!r} as {kind} {list(shape)}; keys and values are floats by "
            "row, head, slot and channel."
        )
    return np.zeros(sizes, _dtype(kind))


def _dtype(kind: str) -> np.dtype[Any]:
    """Numpy's word for a type of ONNX Runtime's."""
    word = kind.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(word, word))
