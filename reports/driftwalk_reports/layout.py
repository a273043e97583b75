"""What reports of all kinds share, without markup: the head, and the words for a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from driftwalk.document import Document

Fact = tuple[str, str]

SYMBOLS = {"pass": "✓", "drift": "✗", "unverified": "?"}


D = TypeVar("D", bound=Document)
D_co = TypeVar("D_co", bound=Document, covariant=True)


@dataclass(frozen=True)
class Sign:
    """A verdict in a table: its colour, its symbol, a word or two, and what more is to be said."""

    tone: str
    symbol: str
    word: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.symbol} {self.word}"


Cell = str | Sign


@dataclass(frozen=True, kw_only=True)
class Head(Generic[D_co]):
    """The top and the foot of a report; every kind adds what is its own.

    All strings are safe to print, since those of the document are (door.py).
    """

    document: D_co
    tone: str
    """`pass`, `drift` or `unverified`; any other word is only the name of a colour."""
    headline: str
    sentences: tuple[str, ...] = ()
    """What is to be said below it."""
    about: tuple[Fact, ...]
    notes: tuple[str, ...]

    @property
    def symbol(self) -> str:
        return SYMBOLS.get(self.tone, "")

    @property
    def model(self) -> str:
        return model_name(self.document.model)

    @property
    def tool(self) -> str:
        return f"{self.document.tool.name} {self.document.tool.version}"


def model_name(described: Mapping[str, str]) -> str:
    """What a reader calls the model."""
    named = next((described[key] for key in ("label", "name", "id") if described.get(key)), "")
    return named or next(iter(described.values()), "") or "a model"


V = TypeVar("V", bound=Head[Document])
