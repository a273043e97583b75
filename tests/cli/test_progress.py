"""The bar: never full while there is work, and full when it is done."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console
from rich.progress import Progress as RichBar

import driftwalk
import zoo
from driftwalk.cli.console import BarProgress


class Watched(BarProgress):
    """A real bar, and how it stood when each stage began."""

    def __init__(self) -> None:
        self.bar = RichBar(console=Console(file=io.StringIO()))
        self.seen: list[tuple[str, float, float | None]] = []
        super().__init__(self.bar)

    @contextmanager
    def stage(self, text: str, extra: bool = False) -> Iterator[None]:
        with super().stage(text, extra):
            (task,) = self.bar.tasks
            self.seen.append((task.description, task.completed, task.total))
            yield


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"candidate": "torch", "cache": False}, ["calibrating"]),
        (
            {"candidate": zoo.build("gpt2", seed=1), "cache": False},
            ["calibrating", "blame", "drill"],
        ),
        ({"candidate": "torch", "policy": "dtype", "bench": 2}, ["round 2 of 2"]),
    ],
    ids=["calibrated", "drifting", "timed"],
)
def test_every_stage_counts(options, told):
    watched = Watched()
    driftwalk.verify(zoo.build("gpt2"), progress=watched, **options)
    for text, completed, total in watched.seen:
        assert total is not None, text
        assert completed < total, text
    assert watched.bar.finished
    named = " ".join(text for text, _, _ in watched.seen)
    assert all(word in named for word in told), named
