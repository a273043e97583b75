"""The weights of a module or of graphs, as a named set of arrays that are read when asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.weight_source import Stored, WeightSource

from .calls import first_line
from .onnx.graph import FLOATS, OnnxGraph
from .tensors import TORCH_DTYPES, to_numpy

_NAMES = {value: key for key, value in TORCH_DTYPES.items()}


def module_weights(module: nn.Module, label: str, buffers: bool = False) -> WeightSource:
    """What a module stores; with `buffers`, also what it makes up itself (rotary frequencies)."""
    held: dict[str, Any] = dict(module.state_dict(keep_vars=True))
    if buffers:
        held |= dict(module.named_buffers(remove_duplicate=False))
    tensors: dict[str, Stored] = {}
    ties: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name, tensor in held.items():
        if not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta":
            continue
        memory = _memory(tensor)
        if memory is not None and first.setdefault(memory, name) != name:
            ties[name] = first[memory]
        dtype = _NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        tensors[name] = Stored(tuple(tensor.shape), dtype, partial(_read, name, tensor))
    return WeightSource(label, "module", tensors, ties)


def _memory(tensor: torch.Tensor) -> tuple[object, ...] | None:
    """What tells one piece of memory, seen in one way, from all others; None for none."""
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a kind of tensor that has no memory of its own
        return None
    if not tensor.numel() or not address:
        return None
    return address, tensor.device, tuple(tensor.shape), tensor.stride(), tensor.dtype


def _read(name: str, tensor: torch.Tensor) -> Array:
    try:
        return to_numpy(tensor)
    except (RuntimeError, TypeError, NotImplementedError) as error:  # quantised, sparse, ...
        raise BackendError(f"The weight {name!r} cannot be read: {first_line(error)}") from error


def graph_weights(graphs: Iterable[OnnxGraph], label: str) -> WeightSource:
    """The initialisers of a model's graphs; of halves with equal names, those of the first."""
    tensors: dict[str, Stored] = {}
    for graph in graphs:
        for name, tensor in graph.weights.items():
            dtype = FLOATS.get(tensor.data_type) or _word(tensor.data_type)
            if dtype != "string" and name not in tensors:
                shape = tuple(map(int, tensor.dims))
                tensors[name] = Stored(shape, dtype, partial(_stored, graph, name))
    return WeightSource(label, "graph", tensors)


def _word(number: int) -> str:
    from onnx import TensorProto

    words: Mapping[int, str] = {value: word.lower() for word, value in TensorProto.DataType.items()}
    return words.get(number, "undefined")


def _stored(graph: OnnxGraph, name: str) -> Array:
    try:
        array = graph.stored(name)
    except Exception as error:  # onnx raises whatever a broken tensor makes it raise
        raise BackendError(
            f"The initialiser {name[:80]!r} of {graph.path.name!r} cannot be read: "
            f"{first_line(error)}"
        ) from error
    if array is None or array.size != math.prod(graph.weights[name].dims):
        raise BackendError(f"The initialiser {name[:80]!r} of {graph.path.name!r} is not whole.")
    return array
