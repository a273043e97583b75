"""Graphs of a small decoder that take a past, named as optimum names them, and faults in them.

One export; everything else is made of it by changing nodes, inputs and outputs.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers as tf
from onnx import helper, numpy_helper
from torch import nn

LAYERS, HEADS, SIZE = 2, 2, 8


def model(seed: int = 0, heads: int = HEADS, layers: int = LAYERS) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {"n_embd": heads * SIZE, "n_layer": layers, "n_head": heads, "vocab_size": 64}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return tf.GPT2LMHeadModel(tf.GPT2Config(n_positions=64, **sizes, **ends)).eval()


def windowed(window: int = 6) -> nn.Module:
    """Each layer sees some tokens only."""
    torch.manual_seed(0)
    sizes = {"hidden_size": HEADS * SIZE, "intermediate_size": 24, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": SIZE}
    config = tf.MistralConfig(**sizes, **heads, vocab_size=64, sliding_window=window)
    return tf.MistralForCausalLM(config).eval()


def prompt() -> dict[str, np.ndarray]:
    return {"input_ids": np.random.default_rng(0).integers(4, 64, (2, 6))}


def padded() -> dict[str, np.ndarray]:
    given = prompt()
    mask = np.ones_like(given["input_ids"])
    mask[1, 4:] = 0
    return {"input_ids": np.where(mask, given["input_ids"], 0), "attention_mask": mask}


class _WithPast(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Any, mask: Any, positions: Any, *past: Any) -> tuple[Any, ...]:
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        made = self.inner(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )
        layers = made.past_key_values.layers
        return (made.logits, *(t for layer in layers for t in (layer.keys, layer.values)))


def export(module: nn.Module, path: Path) -> None:
    """`model.onnx` as optimum writes it: a past of any length, and what is present after."""
    config: Any = module.config
    fed, before, rows = 3, 4, 2
    past = [torch.zeros(rows, config.n_head, before, SIZE) for _ in range(2 * config.n_layer)]
    ids = torch.ones(rows, fed, dtype=torch.long)
    open_axis = torch.export.Dim.DYNAMIC
    kinds = [f"{at}.{kind}" for at in range(config.n_layer) for kind in ("key", "value")]
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _WithPast(module).eval(),
            (ids, torch.ones(rows, fed + before, dtype=torch.long), ids.clone(), *past),
            dynamo=True,
            verbose=False,
            dynamic_shapes=(*({1: open_axis},) * 3, tuple({2: open_axis} for _ in past)),
            input_names=[
                *("input_ids", "attention_mask", "position_ids"),
                *(f"past_key_values.{kind}" for kind in kinds),
            ],
            output_names=["logits", *(f"present.{kind}" for kind in kinds)],
        )
        assert program is not None
        program.save(str(path), external_data=False)


def changed(source: Path, target: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    """A graph that others changed."""
    graph = onnx.load(source)
    change(graph)
    onnx.save(graph, target)
    return target


def _is_past(value: Any) -> bool:
    return value.name.startswith("past_key_values")


def without_past(made: onnx.ModelProto) -> None:
    """`decoder_model.onnx`: the same, on nothing."""
    graph = made.graph
    for value in [value for value in graph.input if _is_past(value)]:
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        empty = np.zeros([sizes[0], sizes[1], 0, sizes[3]], np.float32)
        graph.initializer.append(numpy_helper.from_array(empty, value.name))
        graph.input.remove(value)


def merged(source: Path, target: Path) -> Path:
    """`decoder_model_merged.onnx`: both, behind a flag."""
    made, branches = onnx.load(source), {}
    for branch, change in (("then_branch", None), ("else_branch", without_past)):
        half = onnx.load(source)
        if change is not None:
            change(half)
        own = {one.name for one in half.graph.initializer}
        own |= {name for node in half.graph.node for name in node.output if name}
        for node in half.graph.node:  # inputs of the same name stand outside
            node.input[:] = [f"{branch}.{n}" if n in own else n for n in node.input]
            node.output[:] = [f"{branch}.{n}" if n else n for n in node.output]
        for one in (*half.graph.initializer, *half.graph.output):
            one.name = f"{branch}.{one.name}"
        branches[branch] = helper.make_graph(
            half.graph.node, branch, [], half.graph.output, half.graph.initializer
        )
    flag = "use_cache_branch"
    names = [value.name for value in made.graph.output]
    node = helper.make_node("If", [flag], names, **branches)
    flagged = helper.make_tensor_value_info(flag, onnx.TensorProto.BOOL, [1])
    graph = helper.make_graph([node], "merged", [*made.graph.input, flagged], made.graph.output)
    whole = helper.make_model(
        graph,
        opset_imports=made.opset_import,
        functions=made.functions,
        ir_version=made.ir_version,
    )
    onnx.save(whole, target)
    return target


def renamed(made: onnx.ModelProto, name: str, new: str) -> None:
    """A tensor under another name, wherever it stands but among the outputs."""
    for node in made.graph.node:
        node.input[:] = [new if n == name else n for n in node.input]
        node.output[:] = [new if n == name else n for n in node.output]
    for value in made.graph.input:
        value.name = new if value.name == name else value.name


# ---- faults ----


def wrong_weight(layer: int) -> Callable[[onnx.ModelProto], None]:
    """One number of the matrix that makes a layer's queries, keys and values: a key's."""

    def change(made: onnx.ModelProto) -> None:
        width = HEADS * SIZE
        one = next(
            i
            for i in made.graph.initializer
            if f".h.{layer}.attn.c_attn.weight" in i.name and tuple(i.dims) == (width, 3 * width)
        )
        array = numpy_helper.to_array(one).copy()
        array[3, width + 5] += 0.3
        one.CopyFrom(numpy_helper.from_array(array, one.name))

    return change


def neighbours_values(made: onnx.ModelProto) -> None:
    """The values that a layer leaves are those of the layer before it."""
    renamed(made, "present.1.value", "own.1.value")
    made.graph.node.append(helper.make_node("Identity", ["present.0.value"], ["present.1.value"]))


def cut_short(made: onnx.ModelProto) -> None:
    """One layer leaves no slot for the first token."""
    renamed(made, "present.1.key", "own.1.key")
    for name, value in (("from", 1), ("to", 1 << 40), ("along", 2)):
        made.graph.initializer.append(numpy_helper.from_array(np.array([value]), f"cut.{name}"))
    inputs = ["own.1.key", "cut.from", "cut.to", "cut.along"]
    made.graph.node.append(helper.make_node("Slice", inputs, ["present.1.key"]))


def half_precision(made: onnx.ModelProto) -> None:
    """One layer leaves its values in half precision, and takes them in single."""
    renamed(made, "present.0.value", "own.0.value")
    half = onnx.TensorProto.FLOAT16
    made.graph.node.append(helper.make_node("Cast", ["own.0.value"], ["present.0.value"], to=half))
    for value in made.graph.output:
        if value.name == "present.0.value":
            value.type.tensor_type.elem_type = half


def forgetful(made: onnx.ModelProto) -> None:
    """Takes a past of every layer, and leaves nothing of the last one."""
    for value in [v for v in made.graph.output if v.name.startswith("present.1.")]:
        made.graph.output.remove(value)
