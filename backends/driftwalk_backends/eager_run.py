"""One run of a torch module in which every state is seen; whatever it gives, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from driftwalk.adapter import Sink
from driftwalk.dtypes import Array
from driftwalk.names import is_output
from driftwalk.states import Held, HeldState, Point, State

from .hooks import TensorSink, capture
from .model_outputs import named_outputs
from .points import Layout
from .tensors import to_numpy


def watched(module: nn.Module, layout: Layout, sink: TensorSink, run: Callable[[], Any]) -> Any:
    """What the module gives, and every state to the sink as it is made."""
    with capture(module, layout, sink) as finish:
        output = run()
        finish(output)
    return output


def as_arrays(
    run: Callable[[TensorSink], Any],
    sink: Sink,
    hold: Callable[[torch.Tensor], Held | None] = lambda _: None,
) -> dict[str, Array]:
    """The outputs of a watched run, and every state to the sink; each tensor is copied once.

    What `hold` takes stays on its device.
    """
    kept: list[tuple[torch.Tensor, State]] = []

    def hand_on(point: Point, tensor: torch.Tensor) -> None:
        held = hold(tensor)
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
