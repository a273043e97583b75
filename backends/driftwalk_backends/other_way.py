"""Where a model goes another way while it is exported: the lines, of its own code.

A forward may ask whether it is being compiled (`torch.compiler.is_compiling()`), and compute
something else then: the graph that comes of it is another function, and may have other shapes. The
model is run twice, as it is and as an exporter runs it, and of every line of its code that both
execute the lines that follow are compared.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

from driftwalk.states import Probe

from .calls import call, first_line, quietly
from .loaded import LoadedModel

_FLAGS = ("_is_compiling_flag", "_is_exporting_flag")
"""What `torch.export` sets in `torch.compiler`, as far as this version has them."""
_NOT_ITS_OWN = "torch."
_MOST = 3

Line = tuple[str, int]
"""A file and the number of a line."""


class _Steps:
    """Of each line of some files, the lines that follow it in the same call."""

    def __init__(self, files: frozenset[str]) -> None:
        self._files = files
        self.after: dict[Line, set[int]] = {}
        self.names: dict[str, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if event != "call" or file not in self._files:
            return None
        self.names.setdefault(file, str(frame.f_globals.get("__name__", "")))
        before = 0

        def step(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            if event == "line":
                if before:
                    self.after.setdefault((file, before), set()).add(frame.f_lineno)
                before = frame.f_lineno
            return step

        return step


@contextmanager
def _as_exported() -> Iterator[None]:
    known = [flag for flag in _FLAGS if hasattr(torch.compiler, flag)]
    before = {flag: getattr(torch.compiler, flag) for flag in known}
    for flag in before:
        setattr(torch.compiler, flag, True)
    try:
        yield
    finally:
        for flag, was in before.items():
            setattr(torch.compiler, flag, was)


@contextmanager
def _watched(steps: _Steps) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(steps)
    try:
        yield
    finally:
        sys.settrace(before)


def other_way(model: LoadedModel, probe: Probe) -> str:
    """In words, or nothing where it goes the same way."""
    files = _files(model.module)
    plain, exported = _Steps(files), _Steps(files)
    with _watched(plain):
        _run(model, probe)
    with _as_exported(), _watched(exported):
        said = _run(model, probe)
    parted = [
        line
        for line, followed in plain.after.items()
        if exported.after.get(line, followed) - followed
    ]
    if not parted:
        return ""
    lines = "; ".join(_words(line, plain.names) for line in parted[:_MOST])
    ends = f" Run that way it ends with: {said}." if said else ""
    return f"While it is exported, the model goes another way: {lines}.{ends}"


def _run(model: LoadedModel, probe: Probe) -> str:
    """What the run ended with, if with an error."""
    device = next((p.device for p in model.module.parameters()), torch.device("cpu"))
    try:
        with quietly(model.module):
            call(model.module, model.inputs(model.module, probe, device))
    except Exception as error:  # models raise what they like
        return first_line(error).rstrip(".")
    return ""


def _files(module: nn.Module) -> frozenset[str]:
    """Those of the model's own classes: torch's modules are not its code."""
    kinds = {type(one) for one in module.modules()}
    own = [kind for kind in kinds if not kind.__module__.startswith(_NOT_ITS_OWN)]
    found = set()
    for kind in own:
        try:
            found.add(inspect.getfile(kind))
        except (TypeError, OSError):
            continue
    return frozenset(found)


def _words(line: Line, names: dict[str, str]) -> str:
    file, number = line
    text = " ".join(linecache.getline(file, number).split())
    return f"{names[file]}, line {number}: `{text}`"
