"""Tiny ONNX graphs made by hand: a stack of residual blocks, with or without names that tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, ROWS, BLOCKS = 8, 5, 3
OPSET = 18

Weights = dict[str, np.ndarray]


def weights(seed: int = 0, blocks: int = BLOCKS) -> Weights:
    rng = np.random.default_rng(seed)
    found: Weights = {"table": rng.standard_normal((11, WIDTH)).astype(np.float32)}
    for i in range(blocks):
        found[f"w{i}"] = (rng.standard_normal((WIDTH, WIDTH)) / 3).astype(np.float32)
        found[f"b{i}"] = rng.standard_normal(WIDTH).astype(np.float32)
    found["head"] = rng.standard_normal((WIDTH, 4)).astype(np.float32)
    return found


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    stored: Weights | None = None,
) -> Path:
    """A graph in a file."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (stored or {}).items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def floats(name: str, *shape: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape) if shape else None)


def whole(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, list(shape) if shape else None)


def residual(
    path: Path,
    stored: Weights | None = None,
    scoped: bool = False,
    name: Callable[[str], str] = lambda text: text,
    alpha: float = 1.0,
) -> Path:
    """Ids to scores: a table, blocks of x + relu(x w) + b, a head. `scoped` names nodes as torch
    does; `name` renames every tensor inside."""
    stored = stored or weights()
    blocks = sum(key.startswith("w") for key in stored)
    nodes = [helper.make_node("Gather", ["table", "ids"], [name("x0")], axis=0)]
    for i in range(blocks):
        at = f"/model/layers.{i}/" if scoped else ""
        x, out = name(f"x{i}"), name(f"x{i + 1}")
        m, r, s = name(f"m{i}"), name(f"r{i}"), name(f"s{i}")
        nodes += [
            helper.make_node("MatMul", [x, f"w{i}"], [m], name=at and f"{at}mlp/MatMul"),
            helper.make_node("LeakyRelu", [m], [r], name=at and f"{at}mlp/Act", alpha=0.1 * alpha),
            helper.make_node("Add", [r, f"b{i}"], [s], name=at and f"{at}mlp/Add"),
            helper.make_node("Add", [x, s], [out], name=at and f"{at}Add"),
        ]
    nodes.append(helper.make_node("MatMul", [name(f"x{blocks}"), "head"], ["scores"]))
    nodes.append(helper.make_node("ArgMax", ["scores"], ["choice"], axis=-1, keepdims=0))
    outputs = [floats("scores", "batch", "seq", 4), whole("choice", "batch", "seq")]
    return save(path, nodes, [whole("ids", "batch", "seq")], outputs, stored)


def spoilt(stored: Weights, key: str, by: float = 0.5) -> Weights:
    """The same weights, one element of one of them off."""
    changed = stored[key].copy()
    changed.reshape(-1)[changed.size // 2] += by
    return stored | {key: changed}
