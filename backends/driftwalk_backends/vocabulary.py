"""What a generation asks of a model beside its states: texts of tokens, and room for more."""

from __future__ import annotations

from collections.abc import Iterable

from driftwalk.errors import DriftwalkError

from .calls import forward_of
from .demo import ByteTokenizer
from .loaded import LoadedModel
from .probes import max_positions


class Vocabulary:
    """A model's tokens in words; without a tokenizer, their numbers."""

    def __init__(self, model: LoadedModel) -> None:
        try:
            self._tokenizer = model.tokenizer
        except DriftwalkError:
            self._tokenizer = None
        self._known: dict[int, str] = {}

    def texts(self, tokens: Iterable[int]) -> tuple[str, ...]:
        return tuple(self._text(token) for token in tokens)

    def _text(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._decoded(token)
        return self._known[token]

    def _decoded(self, token: int) -> str:
        if self._tokenizer is None:
            return str(token)
        try:
            if isinstance(self._tokenizer, ByteTokenizer):
                return self._tokenizer.words([token])[0]
            return str(self._tokenizer.decode([token]))
        except Exception:  # a model may have more rows than its tokenizer has tokens
            return str(token)


def taken_by(model: LoadedModel) -> frozenset[str]:
    """What the model's forward takes: positions, masks."""
    return frozenset(forward_of(model.module).names)


__all__ = ["Vocabulary", "max_positions", "taken_by"]
