"""Noise of a few units of roundoff at every float tensor of a graph: what honest kernels may do.

Kernels differ in the order of their sums, in what they fuse, and in the series that they take a
function from. So every tensor that a node makes is moved by a few units of its own size; functions
that are computed as `0.5 + ...` or `1 - ...` by a few units of 1, however near zero they end; and
activations of the kind `x * gate(x)` by a few units of x. What numbers are rounded to, counted or
compared by is left alone: a step there is no noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from driftwalk.dtypes import FORMATS, format_of
from driftwalk.graphs.replayed import NEAR, NEAR_SOFTMAX, noise_of

from ..graph import FLOATS, OnnxGraph, uses
from ..structure import COPIES

MADE = "driftwalk made: "
"""Before the name of a cut, for what the reference makes of it; the bare name is what is given."""
_OF_ONE = {"Sigmoid", "HardSigmoid", "Tanh", "Erf", "Softmax", "LogSoftmax", "Softplus", "Elu"}
_OF_ONE |= {"Celu", "Selu", "Softsign", "Sin", "Cos", "LSTM", "GRU", "RNN", "Log"}
_OF_ONE |= {"If", "Loop", "Scan"}
"""Computed from terms of size 1, so that a result near zero is no more exact than 1 is."""
_OF_INPUT = {"Gelu", "HardSwish", "Swish", "Mish", "QuickGelu", "FastGelu", "BiasGelu"}
"""Computed as a product or sum with the input, so that a result near zero is as exact as that."""
_DISCRETE = {"QuantizeLinear", "DynamicQuantizeLinear", "Floor", "Ceil", "Round", "Resize", "Mod"}
_DISCRETE |= {"ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "Equal", "Less", "Greater", "Sign"}
_DISCRETE |= {"LessOrEqual", "GreaterOrEqual", "Range", "Upsample", "Unique", "Hardmax", "OneHot"}
_DISCRETE |= {"GridSample", "ThresholdedRelu", "Shrink"}
"""Where a little more or less may be something else altogether."""
_NOISE = {number: noise_of(FORMATS[name]) for number, name in FLOATS.items()}
_FLOAT, _WIDE = 1, (1, 11)


def steady(graph: OnnxGraph) -> set[str]:
    """Tensors that are rounded, counted or compared, or moved about and then are."""
    found: set[str] = set()
    counting = {n for item in graph.proto.graph.node if _to_whole(item) for n in item.output}
    for node in reversed(graph.nodes):
        counts = node.op in _DISCRETE or (
            node.op in COPIES and any(name in found or name in counting for name in node.outputs)
        )
        if counts:
            found.update(node.inputs)
    return found


def _to_whole(item: Any) -> bool:
    """Whether a node casts to whole numbers."""
    return item.op_type == "Cast" and any(
        a.name == "to" and a.i not in FLOATS for a in item.attribute
    )


def shaken(feed: Mapping[str, Any], still: Collection[str], seed: int) -> dict[str, Any]:
    """Arrays, each element moved by a few units of its roundoff."""
    rng = np.random.default_rng(seed)
    moved: dict[str, Any] = {}
    for name, array in feed.items():
        known = format_of(array) if isinstance(array, np.ndarray) else None
        if known is None or name in still:
            moved[name] = array
            continue
        by = 1 + noise_of(known) * rng.uniform(-1, 1, array.shape)
        with np.errstate(all="ignore"):
            moved[name] = np.asarray(array * by).astype(array.dtype)
    return moved


def with_noise(model: Any, still: Collection[str]) -> Callable[[int], Any]:
    """The graph with noise after every node that makes a float, for a seed."""
    kinds = _kinds(model)
    single = {t.name for t in model.graph.initializer if math.prod(t.dims) == 1}
    makers = {name: item.op_type for item in model.graph.node for name in item.output}
    # Weights are rounded once and for all: nobody's arithmetic tips those.
    varies = {value.name for value in model.graph.input}
    for item in model.graph.node:
        if varies.intersection(uses(item)):
            varies.update(item.output)

    def made(seed: int) -> Any:
        import onnx

        noisy = onnx.ModelProto()
        noisy.CopyFrom(model)
        del noisy.graph.node[:]
        for number, item in enumerate(model.graph.node):
            node = onnx.NodeProto()
            node.CopyFrom(item)
            rounds = item.op_type == "QuantizeLinear" and item.input[1] in single
            hidden = rounds and not item.output[0].startswith(MADE)
            if hidden and item.input[0] in varies:
                near = NEAR_SOFTMAX if makers.get(item.input[0]) == "Softmax" else NEAR
                noisy.graph.node.extend(_tipping(node, near, seed * 100_003 + number * 7))
            noisy.graph.node.append(node)
            moving: list[Any] = []
            for place, name in enumerate(item.output):
                by = _NOISE.get(kinds.get(name, 0))
                if not name or by is None or name in still or item.op_type == "Constant":
                    continue
                raw = f"driftwalk raw: {name}"
                noisy.graph.node[-1].output[place] = raw
                own = seed * 100_003 + number * 7 + place
                moving += _moving(item, name, raw, by, kinds[name], own)
            noisy.graph.node.extend(moving)
        return noisy

    return made


def _tipping(node: Any, by: float, seed: int) -> list[Any]:
    """The nodes before a rounding inside that tip what lies at a boundary."""
    from onnx import helper

    x, step, name = node.input[0], node.input[1], node.output[0]
    like, term, moved = (f"driftwalk {word}: {name}" for word in ("tip", "tips", "tipped"))
    node.input[0] = moved
    return [
        helper.make_node("RandomUniformLike", [x], [like], low=-by, high=by, seed=float(seed)),
        helper.make_node("Mul", [like, step], [term]),
        helper.make_node("Add", [x, term], [moved]),
    ]


def _moving(item: Any, name: str, raw: str, by: float, kind: int, seed: int) -> list[Any]:
    """The nodes that move one tensor; half precision is moved in float32, and rounded again."""
    from onnx import helper

    wide = kind if kind in _WIDE else _FLOAT
    nodes: list[Any] = []

    def step(op: str, taken: list[str], word: str, **attributes: float) -> str:
        nodes.append(helper.make_node(op, taken, [f"driftwalk {word}: {name}"], **attributes))
        return f"driftwalk {word}: {name}"

    def random(like: str, word: str, middle: float, number: int) -> str:
        low, high = middle - by, middle + by
        return step(
            "RandomUniformLike", [like], word, dtype=wide, low=low, high=high, seed=float(number)
        )

    def widened(tensor: str, word: str) -> str:
        return tensor if kind == wide else step("Cast", [tensor], word, to=wide)

    moved = step("Mul", [widened(raw, "wide"), random(raw, "factor", 1.0, seed)], "moved")
    if item.op_type in _OF_ONE:
        moved = step("Add", [moved, random(raw, "term", 0.0, seed + 1)], "sum")
    elif item.op_type in _OF_INPUT:
        x = item.input[0]
        size = step("Mul", [widened(x, "input"), random(x, "share", 0.0, seed + 1)], "term")
        moved = step("Add", [moved, size], "sum")
    if kind != wide:
        step("Cast", [moved], "narrow", to=kind)
    nodes[-1].output[0] = name
    return nodes


def _kinds(model: Any) -> dict[str, int]:
    """The element type of each tensor, as far as shape inference knows."""
    import onnx

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(bare)
    except Exception:  # it raises whatever a broken graph makes it raise; less noise is no harm
        return {}
    values = [*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input]
    return {value.name: value.type.tensor_type.elem_type for value in values}
