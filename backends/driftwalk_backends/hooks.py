"""Capture: hooks that hand each state on as it is made, and are always removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from driftwalk.errors import BackendError
from driftwalk.states import Point

from .points import Layout, Stack
from .tensors import named_outputs, output_tensors, stream_input

TensorSink = Callable[[Point, torch.Tensor], None]
"""Called inside the hook with the live tensor; whoever keeps it must copy it there and then."""


class _StackCapture:
    """Counts the calls of one stack and names what it sees."""

    def __init__(self, stack: Stack, sink: TensorSink) -> None:
        self._stack = stack
        self._sink = sink
        self._points = {point.name: point for point in stack.points}
        self._calls = 0

    def before_block(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._calls == 0:
            taken = stream_input(args, kwargs)
            if taken is not None:
                self._sink(self._points[self._stack.name("embed")], taken)

    def after_block(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        number, self._calls = self._calls, self._calls + 1
        point = self._points.get(self._stack.name(f"layer.{number}"))
        given = output_tensors(output)
        if point is None or not given:
            raise BackendError(
                f"Block {number} of {self._stack.path} was not expected: the model ran "
                f"{len(self._stack.blocks)} blocks when its points were found. A model whose depth "
                "depends on its input cannot be walked."
            )
        self._sink(point, given[0])
        # A second stream beside the first (two-stream blocks) is a state of its own.
        for extra, tensor in enumerate(given[1:], start=1):
            if tensor.shape == given[0].shape:
                self._sink(Point(f"{point.name}.out{extra}", point.module), tensor)

    def after_norm(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._calls == len(self._stack.blocks):
            self._sink(self._points[self._stack.name("norm")], output_tensors(output)[0])

    def finish(self) -> None:
        if self._calls != len(self._stack.blocks):
            raise BackendError(
                f"{self._stack.path}: {self._calls} blocks ran, {len(self._stack.blocks)} were "
                "expected from the run in which the points were found."
            )


@contextmanager
def capture(module: nn.Module, layout: Layout, sink: TensorSink) -> Iterator[Callable[[Any], None]]:
    """Hook all points of a layout; call the yielded function with the model's output at the end."""
    captures = [_StackCapture(stack, sink) for stack in layout.stacks]
    handles = []
    try:
        for stack, seen in zip(layout.stacks, captures, strict=True):
            for path in dict.fromkeys(stack.blocks):
                block = module.get_submodule(path)
                handles.append(block.register_forward_pre_hook(seen.before_block, with_kwargs=True))
                handles.append(block.register_forward_hook(seen.after_block, with_kwargs=True))
            if stack.norm:
                norm = module.get_submodule(stack.norm)
                handles.append(norm.register_forward_hook(seen.after_norm))

        def finish(output: Any) -> None:
            for seen in captures:
                seen.finish()
            if layout.output is not None:
                sink(layout.points[-1], named_outputs(output)[layout.output])

        yield finish
    finally:
        for handle in handles:
            handle.remove()
