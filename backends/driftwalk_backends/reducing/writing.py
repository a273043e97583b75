"""The reproduction: a graph of a few nodes, and a script that needs numpy and the runtime alone.

Names of the model stand nowhere in it: tensors are numbered. Numbers are in the script where they
are few, else in an archive beside it, which is read without pickle.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from ..onnx.backend import OPTIMISATION
from ..onnx.wide.flat import renamed
from .constants import DRIFT_LIMIT, SCRIPT_SHOWS
from .cuts import Cut

SCRIPT, GRAPH, NUMBERS = "repro.py", "repro.onnx", "repro.npz"
_INLINE = 400
"""Numbers that are written into the script."""
_RATIO = re.compile(r"ratio (\S+)")


def numbered(cut: Cut) -> tuple[Cut, dict[str, str]]:
    """The cut with its tensors called x, w, t and y, and a number; the new names by the old."""
    names = {name: f"x{i}" for i, name in enumerate(cut.given)}
    names |= {name: f"w{i}" for i, name in enumerate(cut.stored)}
    made = dict.fromkeys(n for node in cut.nodes for n in node.output if n)
    names |= {name: f"t{i}" for i, name in enumerate(n for n in made if n != cut.output)}
    names[cut.output] = "y"
    nodes = []
    for i, node in enumerate(cut.nodes):
        new = type(node)()
        new.CopyFrom(node)
        new.name = f"{node.op_type}_{i}"
        renamed(new, names)
        nodes.append(new)
    return (
        replace(
            cut,
            nodes=tuple(nodes),
            stored={names[n]: a for n, a in cut.stored.items()},
            given={names[n]: a for n, a in cut.given.items()},
            output="y",
            invented=frozenset(names[n] for n in cut.invented if n in names),
        ),
        names,
    )


def write_graph(
    folder: Path,
    cut: Cut,
    expected: Array,
    kind: np.dtype[Any],
    honest: float,
    flags: Mapping[str, str],
    headline: str,
    about: str,
) -> str:
    """Write the graph and the script; gives the script. `kind` is the type of what comes out."""
    import onnx
    from onnx import helper

    small, _ = numbered(cut)
    model = small.model()
    del model.graph.output[:]
    number = helper.np_dtype_to_tensor_dtype(kind)
    model.graph.output.append(helper.make_tensor_value_info("y", number, expected.shape))
    onnx.save(model, str(folder / GRAPH))
    script = template("graph_repro.py").format(
        headline=plain(headline),
        about=plain(about),
        honest=repr(float(honest)),
        limit=f"{DRIFT_LIMIT:g}",
        arrays=arrays_text(folder, small.given, expected),
        level=OPTIMISATION[flags.get("opt", "all")],
        more=_more(flags),
        provider=json.dumps(flags.get("provider", "CPUExecutionProvider")),
        disabled=json.dumps([name for name in flags.get("disable", "").split(", ") if name]),
    )
    (folder / SCRIPT).write_text(script, encoding="utf-8")
    return script


def _more(flags: Mapping[str, str]) -> str:
    """Lines for options that the candidate was given beside its level."""
    lines = []
    if (threads := flags.get("threads", "default")) != "default":
        lines.append(f"options.intra_op_num_threads = {int(threads)}")
    for key, value in flags.items():
        if "." not in key:  # entries of a session have one, flags of ours have none
            continue
        lines.append(f"options.add_session_config_entry({json.dumps(key)}, {json.dumps(value)})")
    return "".join(f"{line}\n" for line in lines)


def arrays_text(folder: Path, given: Mapping[str, Array], expected: Array) -> str:
    """The lines that make `inputs` and `expected`; an archive where they are many."""
    if sum(a.size for a in given.values()) + expected.size <= _INLINE:
        lines = ["inputs = {"]
        lines += [f'    "{name}": {_literal(array)},' for name, array in given.items()]
        return "\n".join([*lines, "}", f"expected = {_literal(expected)}", ""])
    stored: dict[str, Any] = {**given, "expected": expected}
    np.savez_compressed(folder / NUMBERS, **stored)
    return (
        f'stored = dict(np.load(HERE / "{NUMBERS}", allow_pickle=False))\n'
        'expected = stored.pop("expected")\ninputs = stored\n'
    )


def _literal(array: Array) -> str:
    """An array as Python: shortest decimals that give the same bits."""
    words = {"nan": "np.nan", "inf": "np.inf", "-inf": "-np.inf"}
    flat = [str(number) for number in array.reshape(-1)]
    flat = [words.get(text, text) for text in flat]
    text = f"np.array([{', '.join(flat)}], np.{array.dtype.name})"
    return text if array.ndim == 1 else f"{text}.reshape({tuple(map(int, array.shape))})"


def plain(text: str) -> str:
    """Text for a docstring: nothing in it can end it."""
    return text.replace("\\", "/").replace('"', "'").replace("<", "")


def template(name: str) -> str:
    return files(__package__).joinpath(f"{name}.txt").read_text("utf-8")


def rehearse(folder: Path, ratio: float) -> str:
    """Run the script as its reader will; one that shows another ratio is not handed over."""
    done = subprocess.run(
        [sys.executable, SCRIPT],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    shown = _RATIO.search(done.stdout)
    if done.returncode != 1 or shown is None:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise BackendError(f"The reproduction does not show the drift by itself: {lines[-1][:400]}")
    again = float(shown[1])
    if again != ratio and not abs(again - ratio) <= SCRIPT_SHOWS * ratio:
        raise BackendError(
            f"The reproduction shows a ratio of {again:.3g} by itself, and {ratio:.3g} here."
        )
    return done.stdout
