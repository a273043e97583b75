"""Graphs of a few nodes that ONNX Runtime's optimiser turns into something else.

Each is a graph and its inputs; what changes it is the name of the transformer, rule or entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fusion:
    """A graph that some switch changes."""

    made: Callable[[], tuple[bytes, Mapping[str, Array]]]
    guilty: str


def graph(
    nodes: Sequence[Any],
    inputs: Mapping[str, Array],
    stored: Mapping[str, Any],
    opset: int = 21,
) -> tuple[bytes, Mapping[str, Array]]:
    """A model with one output, y, and what it is given."""
    ends = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    given = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    kept = [
        array if isinstance(array, TensorProto) else numpy_helper.from_array(np.asarray(array), n)
        for n, array in stored.items()
    ]
    whole = helper.make_graph(list(nodes), "g", ends, [given], kept)
    made = helper.make_model(whole, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return made.SerializeToString(), inputs


def node(op: str, takes: str, gives: str, **attributes: Any) -> Any:
    return helper.make_node(op, takes.split(), gives.split(), **attributes)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype("f")


def int4_product() -> tuple[bytes, Mapping[str, Array]]:
    luck = np.random.default_rng(0)
    numbers, steps = luck.integers(-8, 8, (64, 32)), luck.uniform(0.01, 0.02, (2, 32))
    stored = {
        "w": helper.make_tensor("w", TensorProto.INT4, [64, 32], numbers.ravel()),
        "s": steps.astype("f"),
    }
    nodes = [
        node("DequantizeLinear", "w s", "v", axis=0, block_size=32),
        node("MatMul", "x v", "y"),
    ]
    return graph(nodes, {"x": random(16, 64)}, stored)


def rounded(nodes: Sequence[Any], x: Array, *scales: tuple[str, float, int]) -> Any:
    stored: dict[str, Any] = {}
    for name, scale, zero in scales:
        stored |= {f"{name}s": np.float32(scale), f"{name}z": np.int8(zero)}
    return graph(nodes, {"x": x}, stored)


def quantised_softmax() -> tuple[bytes, Mapping[str, Array]]:
    x = 0.05 * random(64, 17)
    exact = np.exp(x.astype("d")) / np.exp(x.astype("d")).sum(-1, keepdims=True)
    nodes = [
        node("QuantizeLinear", "x as az", "p"),
        node("DequantizeLinear", "p as az", "q"),
        node("Softmax", "q", "r"),
        node("QuantizeLinear", "r bs bz", "t"),
        node("DequantizeLinear", "t bs bz", "y"),
    ]
    scales = ("a", float(np.abs(x).max() / 127), 0), ("b", float(exact.max() / 255), -128)
    return rounded(nodes, x, *scales)


def padded_pool() -> tuple[bytes, Mapping[str, Array]]:
    nodes = [
        node("Pad", "x pads", "padded"),
        node("MaxPool", "padded", "y", kernel_shape=[3, 3], strides=[2, 2]),
    ]
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    return graph(nodes, {"x": -1 - np.abs(random(1, 2, 6, 6))}, {"pads": pads}, 18)


def norm_of_another_power() -> tuple[bytes, Mapping[str, Array]]:
    nodes = [
        node("ReduceMean", "x last", "m"),
        node("Sub", "x m", "d"),
        node("Pow", "d power", "p"),
        node("ReduceMean", "p last", "v"),
        node("Add", "v eps", "e"),
        node("Sqrt", "e", "r"),
        node("Div", "d r", "n"),
        node("Mul", "n g", "k"),
        node("Add", "k b", "y"),
    ]
    stored = {
        "last": np.array([-1]),
        "power": np.float32(4),
        "eps": np.float32(1e-5),
        "g": random(16, seed=1),
        "b": random(16, seed=2),
    }
    return graph(nodes, {"x": random(8, 16)}, stored)


def truncated() -> tuple[bytes, Mapping[str, Array]]:
    nodes = [
        node("Neg", "x", "n"),
        node("Cast", "n", "i", to=TensorProto.INT32),
        node("Cast", "i", "f", to=TensorProto.FLOAT),
        node("Neg", "f", "y"),
    ]
    return graph(nodes, {"x": 3 * random(16, 16)}, {})


def double_rounding() -> tuple[bytes, Mapping[str, Array]]:
    nodes = [
        node("QuantizeLinear", "x as az", "p"),
        node("DequantizeLinear", "p as az", "q"),
        node("QuantizeLinear", "q bs bz", "r"),
        node("DequantizeLinear", "r bs bz", "y"),
    ]
    return rounded(nodes, random(32, 32), ("a", 0.02, 0), ("b", 0.05, 3))


def float_bias() -> tuple[bytes, Mapping[str, Array]]:
    luck = np.random.default_rng(3)
    nodes = [
        node("QuantizeLinear", "x as az", "p"),
        node("DequantizeLinear", "p as az", "q"),
        node("DequantizeLinear", "w ws wz", "v"),
        node("Gemm", "q v b", "g"),
        node("QuantizeLinear", "g bs bz", "r"),
        node("DequantizeLinear", "r bs bz", "y"),
    ]
    stored = {
        "as": np.float32(0.5),
        "az": np.int8(0),
        "bs": np.float32(0.001),
        "bz": np.int8(0),
        "ws": np.float32(0.4),
        "wz": np.int8(0),
        "w": luck.integers(-3, 3, (8, 8)).astype(np.int8),
        "b": luck.uniform(-0.1, 0.1, 8).astype("f"),
    }
    return graph(nodes, {"x": 0.2 * random(4, 8)}, stored)


def cleaned_up() -> tuple[bytes, Mapping[str, Array]]:
    nodes = [
        node("Neg", "x", "n"),
        node("QuantizeLinear", "n as az", "p"),
        node("DequantizeLinear", "p as az", "q"),
        node("Exp", "q", "y"),
    ]
    return rounded(nodes, random(16, 16), ("a", 0.05, 0))


def gelu() -> tuple[bytes, Mapping[str, Array]]:
    nodes = [
        node("Div", "x root", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "a"),
        node("Mul", "x a", "m"),
        node("Mul", "m half", "y"),
    ]
    stored = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    return graph(nodes, {"x": 2 * random(32, 64)}, stored)


FUSIONS = {
    "int4 product": Fusion(int4_product, "session.qdq_matmulnbits_accuracy_level"),
    "quantised softmax": Fusion(quantised_softmax, "QDQSelectorActionTransformer"),
    "padded pool": Fusion(padded_pool, "Pad_Fusion"),
    "norm of another power": Fusion(norm_of_another_power, "LayerNormFusionL1"),
    "double rounding": Fusion(double_rounding, "DoubleQDQPairsRemover"),
    "float bias": Fusion(float_bias, "WeightBiasQuantization"),
}
"""Each named by the switch that changes it."""

LET_IN = {
    "cleaned up": (
        Fusion(cleaned_up, "QDQFinalCleanupTransformer"),
        "session.enable_quant_qdq_cleanup",
    ),
    "truncated": (
        Fusion(truncated, "CastChainElimination"),
        "optimization.enable_cast_chain_elimination",
    ),
}
"""Those that happen only where a session entry, too, lets them."""
