"""A torch model as what an exporter is given: a function of tensors that gives its states, too."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from driftwalk.errors import BackendError
from driftwalk.states import Point

from ..calls import Inputs, call_as_it_is, own_copies, tensors_only
from ..hooks import capture
from ..layout import Layout
from ..model_outputs import named_outputs

OUTPUT_PREFIX = "output:"
"""Begins the name of an output that is called like an input of the model."""


@dataclass(frozen=True, eq=False)
class GraphCall:
    """How a model is called to make a graph of it."""

    tensors: Mapping[str, torch.Tensor]
    """The graph's inputs."""
    run: Callable[[dict[str, torch.Tensor]], tuple[Any, dict[str, torch.Tensor]]]
    """What the model gives for them, and what the graph gives beside."""
    open_axes: Mapping[str, int] = field(default_factory=dict)
    """The axis of an input that may be of any length."""


def whole_call(module: nn.Module, inputs: Inputs) -> GraphCall:
    """A model called with all its inputs; those that are not one tensor are part of the graph."""
    tensors = tensors_only(inputs)
    others = {name: value for name, value in inputs.items() if name not in tensors}
    return GraphCall(
        tensors, lambda given: (call_as_it_is(module, {**given, **own_copies(others)}), {})
    )


class Exposed(nn.Module):
    """The model as a function of tensors, giving its outputs and then its states."""

    def __init__(self, module: nn.Module, layout: Layout, called: GraphCall) -> None:
        super().__init__()
        self.module = module
        self.called = called
        self._layout = layout
        self.outputs: tuple[str, ...] = ()
        self.beside: tuple[str, ...] = ()
        self.points: tuple[Point, ...] = ()
        self.by_name: tuple[str, ...] = ()
        """What its results are called, where an exporter wants them by name."""
        self.names: dict[str, str] = {}
        """What its inputs are called, of those to which the exporter gave another name."""

    def tensor(self, output: str) -> str:
        """An output's name in the graph, in which no input is called so, too."""
        return OUTPUT_PREFIX + output if output in self.called.tensors else output

    def forward(
        self, *arrays: torch.Tensor, **named: Any
    ) -> tuple[torch.Tensor, ...] | dict[str, torch.Tensor]:
        """Takes its tensors in their order or by name; an exporter may add inputs by name."""
        inputs = dict(zip(self.called.tensors, arrays, strict=False))
        given = self._run(inputs | {self.names.get(n, n): value for n, value in named.items()})
        return dict(zip(self.by_name, given, strict=True)) if self.by_name else given

    def _run(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        captured: list[tuple[Point, torch.Tensor]] = []
        layout = self._layout
        with capture(self.module, layout, lambda p, t: captured.append((p, t.clone()))) as finish:
            output, beside = self.called.run(inputs)
            finish(())  # the outputs are there already
        named = named_outputs(output)
        if not self.outputs:
            self.outputs, self.beside = tuple(named), tuple(beside)
            self.points = tuple(point for point, _ in captured)
        # Traced, an op that does nothing gives a new tensor, which looks like a state of its own.
        states = dict(captured)
        same = (tuple(named), tuple(beside)) == (self.outputs, self.beside)
        if not same or not states.keys() >= set(self.points):
            raise BackendError("the model went another way when it was traced than when it ran.")
        return (*named.values(), *beside.values(), *(states[point] for point in self.points))


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """The exporter prints progress, and on failure whole graphs; none of it is for our users."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def cause(error: BaseException) -> str:
    """The innermost error in one line; the exporter's own text is several pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return f"{type(error).__name__}: {text[:300]}".replace(os.linesep, " ")
