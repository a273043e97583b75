"""ONNX Runtime's graph transformers by name: which there are, and which changed a graph.

Its verbose log says of each transformer whether it modified the graph. Rewrite rules run inside of
two of them, and are not in the log; their names are taken by `disabled_optimizers` all the same.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from driftwalk.errors import UsageError, nearest

RULES = {
    "Level1_RuleBasedTransformer": (
        "EliminateIdentity",
        "EliminateSlice",
        "UnsqueezeElimination",
        "EliminateDropout",
        "ExpandElimination",
        "CastElimination",
        "CastChainElimination",
        "PreShapeNodeElimination",
        "NoopElimination",
        "DivMulFusion",
        "FuseReluClip",
        "GemmSumFusion",
        "GemmTransposeFusion",
        "NotWhereFusion",
        "ConvAddFusion",
        "ConvMulFusion",
        "ConvBNFusion",
        "Pad_Fusion",
        "MatMul_BatchNormalization_Fusion",
        "LabelEncoderFusion",
    ),
    "Level2_RuleBasedTransformer": ("ClipQuantRewrite", "ReluQuantRewrite"),
}
"""The rules inside of each transformer that runs rules (onnxruntime 1.31)."""

_LINE = re.compile(r"GraphTransformer (\S+) modified: (\d)")
_STDERR = 2


def changed(make: Callable[[], object]) -> tuple[str, ...]:
    """The transformers that changed the graph while a session was made, in order of their work."""
    return tuple(dict.fromkeys(name for name, did in _logged(make) if did != "0"))


def refuse_unknown(names: Sequence[str], make: Callable[[bytes], object]) -> None:
    """An error for names of transformers that a session of any graph would not have run."""
    if not names:
        return
    known = {name for name, _ in _logged(lambda: make(smallest_graph()))}
    known |= {rule for rules in RULES.values() for rule in rules}
    for name in names:
        if name not in known:
            raise UsageError(
                f"disable={name}: this ONNX Runtime has no such graph transformer. "
                f"{nearest(name, sorted(known))}"
            )


def _logged(make: Callable[[], object]) -> list[tuple[str, str]]:
    with _stderr() as read:
        make()
        return _LINE.findall(read())


@contextmanager
def _stderr() -> Iterator[Callable[[], str]]:
    """What the process writes to its error stream, C++ included; nothing of it is shown."""
    with suppress(Exception):
        sys.stderr.flush()
    kept = os.dup(_STDERR)
    with tempfile.TemporaryFile() as file:

        def read() -> str:
            file.seek(0)
            return file.read().decode("utf-8", "replace")

        os.dup2(file.fileno(), _STDERR)
        try:
            yield read
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)


@cache
def smallest_graph() -> bytes:
    """A graph of one node: every transformer is tried on it, and none has anything to do."""
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 17)]
    model: Any = helper.make_model(graph, opset_imports=opset, ir_version=9)
    written: bytes = model.SerializeToString()
    return written
