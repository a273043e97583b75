"""The reproduction of a torch module: a function of a few operations, and what it is given."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from .constants import DRIFT_LIMIT
from .cuts import Cut
from .programs import Operation, Ref
from .writing import SCRIPT, arrays_text, plain, template

_WORDS = (torch.dtype, torch.layout, torch.memory_format)


def write_program(
    folder: Path,
    cut: Cut,
    expected: Array,
    honest: float,
    flags: Mapping[str, str],
    headline: str,
    about: str,
) -> str:
    """Write the script, and an archive where numbers are many; gives the script."""
    names = {name: f"x{i}" for i, name in enumerate(cut.given)}
    names |= {name: f"w{i}" for i, name in enumerate(cut.stored)}
    taken = list(names.values())
    lines = []
    for i, node in enumerate(cut.nodes):
        (made,) = node.output
        names[made] = "y" if made == cut.output else f"t{i}"
        lines.append(f"    {names[made]} = {_call(node, names)}")
    arrays = {names[name]: array for name, array in (*cut.given.items(), *cut.stored.items())}
    compiler = flags.get("compile", "")
    function = f'torch.compile(layer, backend="{compiler}", dynamic=False)' if compiler else "layer"
    threads = flags.get("threads", "")
    script = template("torch_repro.py").format(
        headline=plain(headline),
        about=plain(about),
        honest=repr(float(honest)),
        limit=f"{DRIFT_LIMIT:g}",
        arrays=arrays_text(folder, arrays, expected),
        names=", ".join(taken),
        lines="\n".join(lines),
        function=function,
        threads=int(threads) if threads.isdecimal() else 1,
    )
    (folder / SCRIPT).write_text(script, encoding="utf-8")
    return script


def _call(node: Operation, names: Mapping[str, str]) -> str:
    def text(value: Any) -> str:
        return _text(value, names)

    if node.target is operator.getitem:
        return f"{text(node.args[0])}[{text(node.args[1])}]"
    named = [f"{key}={text(value)}" for key, value in node.kwargs.items()]
    return f"torch.ops.{node.target}({', '.join([*map(text, node.args), *named])})"


def _text(value: Any, names: Mapping[str, str]) -> str:
    """A value as Python; of a kind that is known to be harmless, nothing else becomes code."""
    if isinstance(value, Ref):
        return names[value.name]
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(item, names) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, torch.device):
        return f"torch.device({json.dumps(str(value))})"
    if isinstance(value, _WORDS):
        return str(value)
    raise BackendError(f"The operations cannot be written down: it takes {type(value).__name__}.")
