"""A try that failed: its message, and what stood in the frames that the error passed through."""

from __future__ import annotations

import linecache
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any

import torch
from torch import nn

from driftwalk.dtypes import Array

from ..calls import call_as_it_is, first_line, quietly, with_floats
from ..tensors import from_numpy


@dataclass(frozen=True)
class Frame:
    """A function that was running when the error came."""

    names: Mapping[str, Any]
    line: str
    call: str = ""
    """All lines of the call or expression that was running."""

    @property
    def mentioned(self) -> list[str]:
        """Names in the line that was running."""
        return list(dict.fromkeys(re.findall(r"[A-Za-z_]\w*", self.line)))

    @property
    def module(self) -> nn.Module | None:
        own = self.names.get("self")
        return own if isinstance(own, nn.Module) else None


@dataclass(frozen=True)
class Failure:
    """What a model said to a probe it did not take."""

    error: Exception
    frames: tuple[Frame, ...]
    """Innermost first."""
    tensors: Mapping[str, torch.Tensor]

    @property
    def message(self) -> str:
        return str(self.error)

    @property
    def line(self) -> str:
        return f"{type(self.error).__name__}: {first_line(self.error)}"


def tried(module: nn.Module, inputs: Mapping[str, Array]) -> Failure | None:
    """Run the model on these inputs; None where it takes them."""
    weight = next((p for p in module.parameters() if p.is_floating_point()), None)
    if weight is not None and weight.device.type == "meta":
        return None  # there is nothing to run
    device = torch.device("cpu") if weight is None else weight.device
    dtype = torch.float32 if weight is None else weight.dtype
    tensors = with_floats({n: from_numpy(a, device) for n, a in inputs.items()}, dtype)
    try:
        with quietly(module), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said again when the model is run for its states
            call_as_it_is(module, tensors)
    except Exception as error:  # models raise whatever they like
        return Failure(error, tuple(_frames(error.__traceback__))[::-1], tensors)
    return None


def _frames(trace: TracebackType | None) -> Iterator[Frame]:
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        line = linecache.getline(file, trace.tb_lineno)
        lines = (linecache.getline(file, number) for number in _lines(trace))
        yield Frame(dict(trace.tb_frame.f_locals), line, "".join(lines))
        trace = trace.tb_next


def _lines(trace: TracebackType) -> range:
    """The numbers of the lines that hold what was running: a call may have many."""
    places = islice(trace.tb_frame.f_code.co_positions(), trace.tb_lasti // 2, None)
    first, last, *_ = next(places, (None, None))
    return range(first or trace.tb_lineno, (last or trace.tb_lineno) + 1)
