"""One run of a torch module: every state is seen, what it gives becomes arrays, time is taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from driftwalk.adapter import Sink
from driftwalk.dtypes import Array
from driftwalk.names import is_output
from driftwalk.states import Held, HeldState, Point, State

from .hooks import TensorSink, capture
from .layout import Layout
from .model_outputs import named_outputs
from .tensors import to_numpy

CUT_SHORT = object()
"""What a run gives that was ended on purpose, before the model gave anything (block_ranges.py)."""


def watched(module: nn.Module, layout: Layout, sink: TensorSink, run: Callable[[], Any]) -> Any:
    """What the module gives, and every state to the sink as it is made."""
    with capture(module, layout, sink) as finish:
        output = run()
        if output is not CUT_SHORT:
            finish(output)
    return output


def as_arrays(
    run: Callable[[TensorSink], Any],
    sink: Sink,
    hold: Callable[[torch.Tensor], Held | None] | None = None,
) -> dict[str, Array]:
    """The outputs of a watched run, and every state to the sink; each tensor is copied once.

    What `hold` takes stays on its device.
    """
    kept: list[tuple[torch.Tensor, State]] = []

    def hand_on(point: Point, tensor: torch.Tensor) -> None:
        held = None if hold is None else hold(tensor)
        state = State(point, to_numpy(tensor)) if held is None else HeldState(point, held)
        if is_output(point.name):
            kept.append((tensor, state))
        sink(state)

    return output_arrays(run(hand_on), kept)


def output_arrays(output: Any, kept: Sequence[tuple[torch.Tensor, State]] = ()) -> dict[str, Array]:
    """Copies of the outputs; those of tensors whose states were handed on are there already."""
    copied = {id(tensor): state for tensor, state in kept}
    return {
        name: copied[id(tensor)].array if id(tensor) in copied else to_numpy(tensor)
        for name, tensor in named_outputs(output).items()
    }


def wait(*devices: torch.device) -> None:
    """Until the devices have done all they were given."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()


@contextmanager
def device_clock(*devices: torch.device) -> Iterator[Callable[[], float | None]]:
    """Times what is queued inside by the device's own clock; ask when the device is done.

    Several devices have no clock in common.
    """
    if [device.type for device in devices] != ["cuda"]:
        yield lambda: None
        return
    first, last = (_event() for _ in range(2))
    first.record()
    yield lambda: first.elapsed_time(last) / 1e3
    last.record()


def stamp(*devices: torch.device) -> Any:
    """Now, by the clock of the device; of several, when all of them are done."""
    if [device.type for device in devices] != ["cuda"]:
        if len(devices) > 1:
            wait(*devices)
        return time.perf_counter()
    event = _event()
    event.record()
    return event


def between(before: Any, after: Any) -> float:
    if isinstance(before, float):
        return float(after - before)
    return float(before.elapsed_time(after)) / 1e3


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
