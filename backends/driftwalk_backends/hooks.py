"""Capture: hooks that hand each state on as it is made, and are always removed.

A sink may give a tensor back: it then takes the state's place in everything that follows, which is
all that replay needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from driftwalk.errors import BackendError
from driftwalk.states import Point

from .depth import INPUT, Look, Part, parts_of
from .layout import Layout, Stack
from .tensors import (
    Slot,
    float_outputs,
    from_call,
    is_float,
    output_tensors,
    put,
    stream_input,
    tensors_in,
    with_call,
    with_stream_input,
    with_stream_output,
)
from .watching import Hook, hooked

TensorSink = Callable[[Point, torch.Tensor], torch.Tensor | None]
"""Called inside the hook with the live tensor; whoever keeps it must copy it there and then."""


class _StackCapture:
    """Counts the calls of one stack, and names what its blocks and their parts give."""

    def __init__(self, stack: Stack, look: Look, sink: TensorSink, keep: TensorSink) -> None:
        self._stack = stack
        self._look = look
        self._sink = sink
        """For states inside blocks; those of the stack itself go to `keep`."""
        self._keep = keep
        self._shared = stack.shared if look.shared else ()
        self._instead: dict[str, torch.Tensor] = {}
        self._points, self._layers = stack.points, stack.layers
        self._numbers = stack.numbers
        self._open: list[int | None] = []
        """The blocks that are being computed, by number; None for a call that is no block."""
        self._done = 0
        self._normed = False
        self._running: Point | None = None
        """The layer whose block is being computed."""
        self._part_calls: Counter[str] = Counter()
        self._seen: list[torch.Tensor] = []
        """What the running block took, and what was seen inside it since."""

    def hooks(self, module: nn.Module) -> Iterator[Hook]:
        for path in self._numbers.paths:
            yield module.get_submodule(path), partial(self._before_block, path), self._after_block
        if self._stack.norm:
            yield module.get_submodule(self._stack.norm), None, self._after_norm
        for path in dict.fromkeys(p.module for p in self._layers if self._look.into(p.name)):
            for part in parts_of(module.get_submodule(path), self._look.depth):
                before = partial(self._before_part, path, part) if self._look.layer else None
                yield part.module, before, partial(self._after_part, path, part)

    def _before_block(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        number = self._numbers.next(path)
        self._open.append(number)
        if number is None:
            return None
        replaced, takes = False, self._stack.takes
        self._running = self._layers[number]
        embed = None if number or self._stack.walked else stream_input(args, kwargs, takes)
        if embed is not None:
            instead = self._keep(self._points[0], embed)
            if instead is not None:
                args, kwargs = with_stream_input(args, kwargs, instead, takes)
                replaced = True
        for shared in self._shared:
            given = from_call(args, kwargs, shared.slot)
            if number not in shared.calls or not isinstance(given, torch.Tensor):
                continue
            if number == shared.calls[0]:
                point = shared.point(self._stack.prefix, self._stack.blocks[number])
                state = self._keep(point, shared.state(given))
                if state is not None:
                    self._instead[shared.name] = shared.instead(given, state)
            if shared.name in self._instead:
                instead = self._instead[shared.name]
                args, kwargs = with_call(args, kwargs, shared.slot, instead)
                replaced = True
        if self._look.depth != "block":
            taken = stream_input(args, kwargs, takes)
            self._seen = [] if taken is None else [taken]
            self._part_calls.clear()
        return (args, kwargs) if replaced else None

    def _after_block(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        number = self._open.pop()
        if number is None:
            return None
        point, self._running = self._layers[number], None
        self._done = number + 1
        given = self._states_in(output)
        if not given:
            raise BackendError(
                f"{point.module} gave no float tensor; it did when the points were found. A model "
                "whose blocks give something else on other inputs cannot be walked."
            )
        replaced = False
        if not self._stack.walked:
            main, hands_on = given[0][1].shape, self._stack.hands_on
            given = [(slot, t) for slot, t in given if hands_on(slot, t.shape, main)]
        for extra, (slot, tensor) in enumerate(given):
            name = f"{point.name}.out{extra}" if extra else point.name
            instead = self._keep(Point(name, point.module), tensor)
            if instead is not None:
                output, replaced = put(output, slot, instead), True
        return output if replaced else None

    def _states_in(self, output: Any) -> list[tuple[Slot, torch.Tensor]]:
        """What a block gave, the stream first.

        A part of the module tree has no stream: all it gives may be of use to what follows.
        """
        if self._stack.walked:
            return [(slot, tensor) for slot, tensor in tensors_in(output) if is_float(tensor)]
        given = float_outputs(output)
        return sorted(given, key=lambda one: one[0] != self._stack.gives)

    def _after_norm(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if self._done != len(self._layers) or self._normed:
            return None
        self._normed = True  # a model may use the same norm again, for something else
        instead = self._keep(self._points[-1], output_tensors(output)[0])
        return None if instead is None else with_stream_output(output, instead)

    def _before_part(self, block: str, part: Part, module: Any, args: Any, kwargs: Any) -> Any:
        name, taken = self._name(block, part), stream_input(args, kwargs)
        # What a part before it made is a state already; the rest was made between parts.
        if name is None or taken is None or any(taken is seen for seen in self._seen):
            return None
        outer = f"{block}.{part.path}".rpartition(".")[0]
        instead = self._hand_on(Point(f"{name}{INPUT}", outer), taken)
        return None if instead is None else with_stream_input(args, kwargs, instead)

    def _after_part(
        self, block: str, part: Part, module: Any, args: Any, kwargs: Any, output: Any
    ) -> Any:
        name, given = self._name(block, part), output_tensors(output)
        if name is None or not given:
            return None
        self._part_calls[part.path] += 1
        instead = self._hand_on(Point(name, f"{block}.{part.path}"), given[0])
        return None if instead is None else with_stream_output(output, instead)

    def _name(self, block: str, part: Part) -> str | None:
        """The state's name; None while another block runs, or a call of it that is not wanted."""
        layer, call = self._running, self._part_calls[part.path]
        if layer is None or layer.module != block or not self._look.into(layer.name):
            return None
        return f"{layer.name}.{part.name}" + (f"#{call + 1}" if call else "")

    def _hand_on(self, point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
        instead = self._sink(point, tensor)
        if self._look.layer:
            self._seen += [tensor] if instead is None else [tensor, instead]
        return instead

    def finish(self) -> None:
        """Check that all blocks ran, and forget the run: one that is compiled with its hooks must
        always find the same."""
        stack, ran = self._stack, self._numbers.ran
        if ran != stack.ran:
            raise BackendError(
                f"{stack.path or 'The model'}: {ran} blocks ran, {stack.ran} were expected from "
                "the run in which the points were found. A model whose depth depends on its input "
                "cannot be walked."
            )
        self._numbers.forget()
        self._open.clear()
        self._done, self._normed = 0, False
        self._instead.clear()
        self._part_calls.clear()
        self._seen = []


@contextmanager
def capture(
    module: nn.Module, layout: Layout, sink: TensorSink, first: bool = False
) -> Iterator[Callable[[Any], None]]:
    """Hook all points of a layout; call the yielded function with the model's output at the end.

    `first`: states are seen before other hooks on the same modules can change them.
    """
    # States that the model also gives as they are: an output that no longer is one is a point.
    repeated = {state for _, state in layout.outputs.same}
    states: dict[str, torch.Tensor] = {}

    def keep(point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
        instead = sink(point, tensor)
        if point.name in repeated and not torch.compiler.is_compiling():
            states[point.name] = tensor if instead is None else instead
        return instead

    captures = [_StackCapture(stack, layout.look, sink, keep) for stack in layout.stacks]
    hooks = [hook for stack in captures for hook in stack.hooks(module)]

    def finish(output: Any) -> None:
        for stack in captures:
            stack.finish()
        for point, tensor in layout.outputs.of(output, states):
            sink(point, tensor)
        states.clear()

    with hooked(hooks, first):
        yield finish
