"""Capture: hooks that hand each state on as it is made, and are always removed.

A sink may give a tensor back: it then takes the state's place in everything that follows, which is
all that replay needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from driftwalk.errors import BackendError
from driftwalk.states import Point

from .depth import INPUT, Look, Part, parts_of
from .points import Layout, Stack
from .slots import from_call, with_call
from .tensors import (
    output_tensors,
    stream_input,
    with_stream_input,
    with_stream_output,
)

TensorSink = Callable[[Point, torch.Tensor], torch.Tensor | None]
"""Called inside the hook with the live tensor; whoever keeps it must copy it there and then."""


class _StackCapture:
    """Counts the calls of one stack and names what it sees."""

    def __init__(self, stack: Stack, sink: TensorSink, look: Look) -> None:
        self._stack = stack
        self._sink = sink
        self._shared = stack.shared if look.shared else ()
        self._instead: dict[str, torch.Tensor] = {}
        self._points = {point.name: point for point in stack.points}
        self._calls = -stack.before
        self.takes = stack.takes
        self.running: Point | None = None
        """The layer whose block is being computed."""

    @property
    def _elsewhere(self) -> bool:
        """Whether this call belongs to another run of the same blocks."""
        known = len(self._stack.blocks)
        return self._calls < 0 or known <= self._calls < known + self._stack.after

    def before_block(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._elsewhere:
            return None
        self.running = self._points.get(self._stack.name(f"layer.{self._calls}"))
        changed = self._shared_by(module, args, kwargs) if self._calls else None
        if self._calls:
            return changed
        taken = stream_input(args, kwargs, self._stack.takes)
        if taken is None:
            return None
        instead = self._sink(self._points[self._stack.name("embed")], taken)
        if instead is not None:
            args, kwargs = with_stream_input(args, kwargs, instead, self._stack.takes)
        changed = self._shared_by(module, args, kwargs)
        return changed or (None if instead is None else (args, kwargs))

    def _shared_by(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Name what this call shares with others; the call with other tensors, where some are."""
        replaced = False
        for shared in self._shared:
            if self._calls not in shared.calls:
                continue
            given = from_call(args, kwargs, shared.slot)
            if not isinstance(given, torch.Tensor):
                continue
            if self._calls == shared.calls[0]:
                point = shared.point(self._stack.prefix, self._stack.blocks[self._calls])
                state = self._sink(point, shared.state(given))
                if state is not None:
                    self._instead[shared.name] = shared.instead(given, state)
            if shared.name in self._instead:
                instead = self._instead[shared.name]
                args, kwargs = with_call(args, kwargs, shared.slot, instead)
                replaced = True
        return (args, kwargs) if replaced else None

    def after_block(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        elsewhere, number, self._calls = self._elsewhere, self._calls, self._calls + 1
        if elsewhere:
            return None
        point, self.running = self.running, None
        given = output_tensors(output, self._stack.gives)
        if point is None or not given:
            raise BackendError(
                f"Block {number} of {self._stack.path} was not expected: the model ran "
                f"{len(self._stack.blocks)} blocks when its points were found. A model whose depth "
                "depends on its input cannot be walked."
            )
        instead = self._sink(point, given[0])
        # A second stream beside the first (two-stream blocks) is a state of its own.
        for extra, tensor in enumerate(given[1:], start=1):
            if tensor.shape == given[0].shape:
                self._sink(Point(f"{point.name}.out{extra}", point.module), tensor)
        if instead is None:
            return None
        return with_stream_output(output, instead, self._stack.gives)

    def after_norm(self, module: nn.Module, args: Any, output: Any) -> Any:
        if self._calls != len(self._stack.blocks):
            return None
        point = self._points[self._stack.name("norm")]
        instead = self._sink(point, output_tensors(output)[0])
        return None if instead is None else with_stream_output(output, instead)

    def finish(self) -> None:
        stack = self._stack
        ran, known = (count + stack.before for count in (self._calls, len(stack.blocks)))
        if ran != known + stack.after:
            raise BackendError(
                f"{stack.path}: {ran} blocks ran, {known + stack.after} were "
                "expected from the run in which the points were found."
            )
        self._calls = -stack.before  # the next run may be watched as well
        self._instead.clear()


class _BlockCapture:
    """Names what the parts of one block give, and are given, while it computes a layer."""

    def __init__(self, stack: _StackCapture, path: str, look: Look, sink: TensorSink) -> None:
        self._stack = stack
        self._path = path
        self._look = look
        self._sink = sink
        self._calls: Counter[str] = Counter()
        self._known: list[torch.Tensor] = []

    def hook(self, block: nn.Module) -> list[RemovableHandle]:
        """Hooks on the block and its parts; hooks of the block itself are to be there already."""
        handles = [block.register_forward_pre_hook(self._start, with_kwargs=True)]
        for part in parts_of(block, self._look.depth):
            if self._look.layer:
                before = part.module.register_forward_pre_hook(self._before(part), with_kwargs=True)
                handles.append(before)
            handles.append(part.module.register_forward_hook(self._after(part)))
        return handles

    def finish(self) -> None:
        """Forget the run: one that is compiled with its hooks must always find the same."""
        self._known = []
        self._calls.clear()

    def _start(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        taken = stream_input(args, kwargs, self._stack.takes)
        self._known = [] if taken is None else [taken]
        self._calls.clear()

    def _before(self, part: Part) -> Callable[..., Any]:
        path = f"{self._path}.{part.path}".rpartition(".")[0]

        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            taken = stream_input(args, kwargs)
            name = self._name(part)
            # What a part before it made is a state already; the rest was made between parts.
            if name is None or taken is None or any(taken is known for known in self._known):
                return None
            instead = self._hand_on(Point(f"{name}{INPUT}", path), taken)
            return None if instead is None else with_stream_input(args, kwargs, instead)

        return hook

    def _after(self, part: Part) -> Callable[..., Any]:
        path = f"{self._path}.{part.path}"

        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            given, name = output_tensors(output), self._name(part)
            if name is None or not given:
                return None
            self._calls[part.path] += 1
            instead = self._hand_on(Point(name, path), given[0])
            return None if instead is None else with_stream_output(output, instead)

        return hook

    def _name(self, part: Part) -> str | None:
        """The state's name; None while another block runs, or a call of it that is not wanted."""
        layer, call = self._stack.running, self._calls[part.path]
        if layer is None or layer.module != self._path or not self._look.into(layer.name):
            return None
        return f"{layer.name}.{part.name}" + (f"#{call + 1}" if call else "")

    def _hand_on(self, point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
        instead = self._sink(point, tensor)
        if self._look.layer:
            self._known += [tensor] if instead is None else [tensor, instead]
        return instead


@contextmanager
def capture(module: nn.Module, layout: Layout, sink: TensorSink) -> Iterator[Callable[[Any], None]]:
    """Hook all points of a layout; call the yielded function with the model's output at the end."""
    # States that the model also gives as they are: an output that no longer is one is a point.
    repeated = {state for _, state in layout.outputs.same}
    states: dict[str, torch.Tensor] = {}

    def keep(point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
        instead = sink(point, tensor)
        if point.name in repeated and not torch.compiler.is_compiling():
            states[point.name] = tensor if instead is None else instead
        return instead

    captures = [_StackCapture(stack, keep, layout.look) for stack in layout.stacks]
    insides: list[_BlockCapture] = []
    handles: list[RemovableHandle] = []
    try:
        for stack, seen in zip(layout.stacks, captures, strict=True):
            for path in dict.fromkeys(stack.blocks):
                block = module.get_submodule(path)
                handles.append(block.register_forward_pre_hook(seen.before_block, with_kwargs=True))
                handles.append(block.register_forward_hook(seen.after_block, with_kwargs=True))
                if any(p.module == path and layout.look.into(p.name) for p in stack.points):
                    insides.append(_BlockCapture(seen, path, layout.look, sink))
                    handles += insides[-1].hook(block)
            if stack.norm:
                norm = module.get_submodule(stack.norm)
                handles.append(norm.register_forward_hook(seen.after_norm))

        def finish(output: Any) -> None:
            for seen in captures:
                seen.finish()
            for inside in insides:
                inside.finish()
            for point, tensor in layout.outputs.of(output, states):
                sink(point, tensor)
            states.clear()

        yield finish
    finally:
        for handle in handles:
            handle.remove()
