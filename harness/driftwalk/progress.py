"""How long work tells where it is, without knowing whether anybody looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Silent by default; the command line shows a bar."""

    def expect(self, stages: int) -> None:
        """Say how many more stages are to come."""

    @contextmanager
    def stage(self, text: str, extra: bool = False) -> Iterator[None]:
        """One stage of work, named in the present tense; `extra` is one that was not expected."""
        yield
