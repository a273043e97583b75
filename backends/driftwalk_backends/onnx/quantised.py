"""What a quantised graph declares of its weights, where its products are the model's layers.

Read are matrices of whole numbers with a step for each block of them: of `MatMulInteger` and
`ConvInteger` behind `DynamicQuantizeLinear`, of `MatMulNBits`, and behind `DequantizeLinear`. Which
module each was rounded from is told by its numbers. A graph that also rounds what lies between its
products (`QuantizeLinear`) declares more than weights: see `declared_graph`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from driftwalk.dtypes import Array

from ..formats.declared import declared_of
from ..formats.placing import Unplaced
from ..formats.rounded import RoundedWeight, grid_of, whole_numbers
from ..formats.rounding import InputRounding
from ..loaded import LoadedModel
from .graph import Node, OnnxGraph
from .parts import Parts

_DYNAMIC = ("MatMulInteger", "ConvInteger")
_FUSED = ("QLinearMatMul", "QLinearConv", "QGemm")
_KNOWN = {*_DYNAMIC, "DynamicQuantizeLinear", "DequantizeLinear", "MatMulNBits"}
_WORDS = ("Quant", "Integer", "QLinear", "NBits", "QAttention", "QGemm")
_IN_INT8 = 4
"""`accuracy_level` of a `MatMulNBits` that rounds its input: to int8, a step for each block."""
_SUFFIX = re.compile(r"_(quant|Q\d+|Q\d+_\w+)$")
"""What ONNX Runtime's quantisers put after the name of a node."""
_ONE_STEP = InputRounding()
"""`DynamicQuantizeLinear`: 256 numbers between the least and the greatest, zero among them."""


class UnreadError(Exception):
    """A quantised weight of a graph that is stored in a way not known here."""


def honest_model(model: LoadedModel, parts: Parts) -> LoadedModel | None:
    """The model as its quantised graphs should compute it; None where that cannot be told."""
    if not any(graph.quantised for graph in parts.graphs):
        return None
    if not all(node.op in _KNOWN for graph in parts.graphs for node in _quantised(graph)):
        return None
    try:
        found = [one for graph in parts.graphs for one in stored_in(graph)]
    except UnreadError:
        return None
    return declared_of(model, found)


def _quantised(graph: OnnxGraph) -> Iterator[Node]:
    return (node for node in graph.nodes if any(word in node.op for word in _WORDS))


def stored_in(graph: OnnxGraph) -> Iterator[Unplaced]:
    """Every rounded weight of a graph, with the step that its product, or its table, has."""
    for number, node in enumerate(graph.nodes):
        found: Unplaced | None = None
        if node.op in _DYNAMIC:
            found = Unplaced(_of_product(graph, number))
        elif node.op in _FUSED:
            found = _of_fused(graph, node)
        elif node.op == "MatMulNBits":
            found = Unplaced(_of_bits(graph, node))
        elif node.op == "DequantizeLinear":
            found = _dequantised(graph, node)
        if found is not None:
            yield replace(found, weight=replace(found.weight, source=_before(graph, node)))


def _before(graph: OnnxGraph, node: Node) -> str:
    """The name of the node that a quantiser made this one from."""
    if node.op == "DequantizeLinear":
        made = graph.maker(node.inputs[0])
        stored = made.inputs[0] if made is not None and made.inputs else node.inputs[0]
        # A table and the head above it may be one tensor, which is rounded for its rows.
        rows = [taker for taker in graph.takers(stored) if taker.op == "Gather"]
        return next((taker.name for taker in (*rows, *graph.takers(node.outputs[0]))), "")
    return _SUFFIX.sub("", node.name)


def _of_product(graph: OnnxGraph, number: int) -> RoundedWeight:
    node = graph.nodes[number]
    _, name, *zeros = node.proto.input
    numbers, zero = graph.stored(name), graph.stored(zeros[1] if zeros[1:] else "")
    step = _step_after(graph, number)
    if numbers is None or step is None:
        raise UnreadError(node.name)
    axis = numbers.ndim - 1 if node.op == "MatMulInteger" else 0
    # Rows of a rounded table are whole numbers already, and are not rounded once more.
    rounded = graph.op_of(node.inputs[0]) == "DynamicQuantizeLinear"
    return in_blocks(numbers, step, zero, axis, 0, _ONE_STEP if rounded else None)


def _of_fused(graph: OnnxGraph, node: Node) -> Unplaced | None:
    """The weight of a product that is dequantised and quantised in one; None where it has none."""
    name, step_name, zero_name = node.proto.input[3:6]
    numbers, step = graph.stored(name), graph.stored(step_name)
    if numbers is None or numbers.ndim < 2:
        return None
    if step is None:
        raise UnreadError(node.name)
    axis = 0 if node.op == "QLinearConv" else numbers.ndim - 1
    return Unplaced(in_blocks(numbers, step, graph.stored(zero_name), axis, 0, None))


def _step_after(graph: OnnxGraph, product: int) -> Array | None:
    """A product's sums are multiplied by (the input's step times the weight's), found by name."""
    node = graph.nodes[product]
    own = _input_step(graph, node.inputs[0])
    sums = {node.outputs[0]}
    for later in graph.nodes[product + 1 :]:
        if later.op == "Cast" and later.inputs[0] in sums:
            sums.add(later.outputs[0])
        if later.op == "Mul" and sums & set(later.inputs):
            made = graph.maker(next((name for name in later.inputs if name not in sums), ""))
            factors = made.inputs if made is not None else ()
            others = [name for name in factors if name != own]
            return graph.stored(others[0]) if own in factors and len(others) == 1 else None
    return None


def _input_step(graph: OnnxGraph, tensor: str) -> str:
    """The name of the step of a product's input: made with it, or that of the table it is from."""
    made = graph.maker(tensor)
    if made is None:
        return ""
    if made.op == "DynamicQuantizeLinear":
        return made.outputs[1]
    known = {taker.inputs[1] for taker in graph.takers(tensor) if taker.op == "DequantizeLinear"}
    return known.pop() if len(known) == 1 else ""


def _of_bits(graph: OnnxGraph, node: Node) -> RoundedWeight:
    """`MatMulNBits`: a row for each output, blocks of numbers packed into bytes, the lowest first.

    Without a zero it lies in the middle of the numbers.
    """
    says = {a.name: a.i for a in node.proto.attribute}
    bits, block, width, rows = (says.get(n, 0) for n in ("bits", "block_size", "K", "N"))
    bits = bits or 4
    packed, step, zeros, *order = [
        graph.stored(n) if n else None for n in [*node.proto.input[1:], ""]
    ]
    if packed is None or step is None or bits not in (2, 4, 8) or not block or width % block:
        raise UnreadError(node.name)
    if any(one is not None for one in order[:1]):  # g_idx: which block a number belongs to
        raise UnreadError(node.name)
    counts = rows, width // block
    numbers = _unpacked(packed.reshape(rows, -1), bits)[:, :width]
    zero = np.full(counts, float(1 << bits - 1))
    if zeros is not None and zeros.dtype == np.uint8:
        zero = _unpacked(zeros.reshape(rows, -1), bits)[:, : counts[1]].astype(np.float64)
    elif zeros is not None:
        zero = zeros.reshape(counts).astype(np.float64)
    whole = InputRounding(rows=True, symmetric=True, steps=254, block=block)
    return RoundedWeight(
        path="",
        grid=whole_numbers(bits, signed=False),
        numbers=numbers,
        step=step.reshape(counts).astype(np.float64),
        zero=zero,
        block=(1, block),
        inputs=whole if says.get("accuracy_level") == _IN_INT8 else None,
        slack=_roundoff(step),
    )


def _unpacked(packed: Array, bits: int) -> Array:
    """The numbers that lie in bytes, the lowest bits first."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = packed[..., None] >> shifts & ((1 << bits) - 1)
    made: Array = apart.reshape(*packed.shape[:-1], -1)
    return made


def _dequantised(graph: OnnxGraph, node: Node) -> Unplaced | None:
    """A weight behind `DequantizeLinear`; None for what is none: a bias, a scalar."""
    name, step_name, *zeros = node.proto.input
    source = graph.maker(name)
    if taken := source is not None and source.op == "Gather":
        name = source.inputs[0]
    numbers, step = graph.stored(name), graph.stored(step_name)
    if numbers is None or numbers.ndim < 2:
        return None
    zero = graph.stored(zeros[0]) if zeros and zeros[0] else np.zeros(())
    if step is None or zero is None:
        raise UnreadError(node.name)
    says = {a.name: a.i for a in node.proto.attribute}
    block = says.get("block_size", 0)
    made = in_blocks(numbers, step, zero, says.get("axis", 1) % numbers.ndim, block, None)
    takers = {taker.op for taker in graph.takers(node.outputs[0])}
    return Unplaced(made, is_table=taken or "Gather" in takers)


def in_blocks(
    numbers: Array,
    step: Array,
    zero: Array | None,
    axis: int,
    block: int,
    inputs: InputRounding | None = None,
) -> RoundedWeight:
    """With one step, one for each place along an axis, or one for each so many along it."""
    shape, grid = numbers.shape, grid_of(numbers.dtype.name)
    if grid is None:
        raise UnreadError(numbers.dtype.name)
    if step.size == 1:
        sizes, counts = shape, (1,) * len(shape)
    elif step.ndim == len(shape) and block:
        if shape[axis] % block:
            raise UnreadError
        sizes = tuple(block if i == axis else 1 for i in range(len(shape)))
        counts = step.shape
    elif step.size == shape[axis]:
        sizes = tuple(1 if i == axis else n for i, n in enumerate(shape))
        counts = tuple(n if i == axis else 1 for i, n in enumerate(shape))
    else:
        raise UnreadError
    zeros = (
        np.zeros(counts)
        if zero is None
        else np.broadcast_to(
            zero.astype(np.float64).reshape(counts if zero.size > 1 else (1,) * len(shape)), counts
        )
    )
    return RoundedWeight(
        path="",
        grid=grid,
        numbers=numbers,
        step=step.astype(np.float64).reshape(counts),
        zero=zeros,
        block=sizes,
        inputs=inputs,
        slack=_roundoff(step),
    )


def _roundoff(step: Array) -> float:
    """Of the format that steps are stored in, where it is coarser than float32."""
    return {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(step.dtype.name, 0.0)
