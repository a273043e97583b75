"""Edges of texts: lengths, padding, special tokens, and what the config's own limits make
interesting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import DriftwalkError

from ..calls import forward_of
from ..default_probe import config_sizes
from ..demo import ByteTokenizer
from ..exercised import windows_of
from ..loaded import LoadedModel
from ..probes import max_positions, table_size

Inputs = dict[str, Array]
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
LONGEST = 2048
"""Tokens of a row at most: the truth of a longer one takes minutes."""


class TextEdges:
    """Inputs at the edges of what a model of texts takes; `base` are usual ones."""

    def __init__(self, model: LoadedModel, base: Mapping[str, Array], seed: int) -> None:
        self._model, self._base = model, dict(base)
        self._rng = np.random.default_rng(seed)
        self._takes = forward_of(model.module).names
        self._vocabulary = table_size(model.module) or int(base[IDS].max()) + 1
        self.notes: list[str] = []

    @property
    def limit(self) -> int | None:
        """The positions that the model has."""
        return max_positions(self._model, IDS)

    def all(self) -> Iterator[tuple[str, Inputs]]:
        """What they are, and the inputs."""
        yield "usual", self._base
        yield "one row", self.sized(1, 16)
        yield "length 1", self.sized(1, 1)
        yield "length 2", self.sized(2, 2)
        yield from self._lengths()
        yield from self.paddings()
        yield from self._tokens()
        yield from self.types()

    def covering(self) -> Iterator[tuple[str, Inputs]]:
        """Those that a set needs which is to cover most: the long one first."""
        yield from self._lengths()
        yield from self.paddings()
        yield from self.types()

    def sized(self, rows: int, length: int, ids: Array | None = None) -> Inputs:
        """The base with so many rows and tokens; inputs beside the ids follow, and no padding."""
        shape = self._base[IDS].shape
        made: Inputs = {}
        for name, array in self._base.items():
            if array.shape[:2] != shape or array.ndim < 2:
                made[name] = array[np.arange(rows) % len(array)] if array.ndim else array
            elif name.endswith("input_ids"):
                drawn = self._rng.integers(0, self._vocabulary, (rows, length))
                made[name] = drawn if ids is None else np.asarray(ids)
            elif name.endswith("mask"):
                made[name] = np.ones((rows, length), dtype=array.dtype)
            else:
                at = np.arange(rows)[:, None] % shape[0], np.arange(length) % shape[1]
                made[name] = array[at]
        return made

    def _lengths(self) -> Iterator[tuple[str, Inputs]]:
        """As long as the model takes, and just beyond each of its windows."""
        limit = self.limit
        if limit and limit <= LONGEST:
            yield f"all {limit} positions", self.sized(1, limit)
        elif limit:
            self.notes.append(f"The model has {limit} positions; {LONGEST} were tried.")
            yield f"{LONGEST} positions", self.sized(1, LONGEST)
        for name, window in windows_of(self._model.config):
            if window + 1 > min(limit or LONGEST, LONGEST):
                self.notes.append(f"No probe is longer than the window of {window} ({name}).")
                continue
            yield f"{name} + 1 ({window + 1} tokens)", self.sized(1, window + 1)
            if 2 * window + 1 <= min(limit or LONGEST, LONGEST):
                yield f"twice {name} ({2 * window + 1} tokens)", self.sized(1, 2 * window + 1)

    def paddings(self, length: int = 16) -> Iterator[tuple[str, Inputs]]:
        """A row without padding, and one with it: on the right, on the left, on both sides."""
        if MASK not in self._takes:
            return
        half, third = length // 2, length // 3
        sides = {"right": slice(half, None), "left": slice(0, length - half)}
        for side, where in sides.items():
            yield f"padding on the {side}", self._padded(length, [where])
        both = [slice(0, third), slice(length - third, None)]
        yield "padding on both sides", self._padded(length, both)

    def _padded(self, length: int, where: list[slice]) -> Inputs:
        made = self.sized(2, length)
        ids, mask = made[IDS].copy(), np.ones((2, length), dtype=np.int64)
        for part in where:
            mask[1, part] = 0
            ids[1, part] = self._pad
        return {**made, IDS: ids, MASK: mask}

    @property
    def _pad(self) -> int:
        known = [getattr(self._model.config, name, None) for name in ("pad_token_id",)]
        found = next((n for n in known if isinstance(n, int)), 0)
        return found if 0 <= found < self._vocabulary else 0

    def _tokens(self) -> Iterator[tuple[str, Inputs]]:
        last = self._vocabulary - 1
        yield "one token repeated", self.sized(1, 16, np.full((1, 16), self._vocabulary // 2))
        yield "the first and the last id", self.sized(1, 16, np.array([[0, last] * 8]))
        special = self.special
        if special:
            ids = self._rng.integers(0, self._vocabulary, (1, 2 * len(special)))
            ids[0, ::2] = special
            yield "special tokens", self.sized(1, ids.shape[1], ids)

    @property
    def special(self) -> list[int]:
        """The ids that a tokenizer or a config sets apart; at most 64."""
        found: list[object] = []
        try:
            tokenizer = self._model.tokenizer
            if isinstance(tokenizer, ByteTokenizer):
                found += [tokenizer.pad_token_id]
            else:
                found += list(tokenizer.all_special_ids)
        except DriftwalkError:
            pass
        for name, value in getattr(self._model.config, "__dict__", {}).items():
            if name.endswith("token_id"):
                found += value if isinstance(value, list) else [value]
        ids = [n for n in found if isinstance(n, int) and 0 <= n < self._vocabulary]
        return list(dict.fromkeys(ids))[:64]

    def types(self) -> Iterator[tuple[str, Inputs]]:
        """Every type of token, in turn."""
        config = self._model.config
        most = 0 if config is None else config_sizes.number(config, ("type_vocab_size",)) or 0
        if TYPES in self._takes and most > 1:
            length = max(16, min(most, self.limit or most))
            kinds = np.arange(length, dtype=np.int64)[None] % most
            yield f"all {most} token types", {**self.sized(1, length), TYPES: kinds}
