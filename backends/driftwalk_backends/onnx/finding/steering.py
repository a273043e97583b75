"""One forward pass of the model, its states chosen while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from driftwalk.dtypes import Array
from driftwalk.states import Probe, State

from ...torch_eager import TorchEager

Decide = Callable[[State], Array | None]
"""What the model goes on with instead of the state it just made; None: with its own."""


class Enough(Exception):  # noqa: N818 - the way out of a forward pass whose end is not needed
    """Raised by whoever decides, to end the pass."""


def steer(model: TorchEager, probe: Probe, decide: Decide) -> None:
    """Replay the model on states of our choice, to its end or until that is `Enough`."""
    steered = _Steered(decide)
    with suppress(Enough):
        model.replay(probe, steered, steered.meet)


class _Steered(Mapping[str, Array]):
    """States for a replay, each asked for right after the model's own was met."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._latest: State | None = None

    def meet(self, state: State) -> None:
        self._latest = state

    def get(self, name: str, default: object = None) -> Array | None:  # type: ignore[override]
        return None if self._latest is None else self._decide(self._latest)

    def __getitem__(self, name: str) -> Array:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
