"""Probes for a graph that is itself the model: what users give, completed; else seeded defaults.

A graph says the types and shapes of its inputs, and little else. Whole numbers that choose rows of
a stored table stay inside it; masks hide nothing; positions count; a past is empty. Another graph
is fed from the same probe by name, else by place. A torch model's probe is the business of `feeds`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, ProbeError
from driftwalk.states import Probe, read_only

from ..feeds import nothing_fits
from ..graph import OnnxGraph
from ..reading import CACHE_FLAG
from ..values import Value
from .model import OnnxModel

_LENGTHS = re.compile(r"seq|len|time|pos|tok|frame", re.IGNORECASE)
_PIXELS = 32
_PASSES_ON = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand"}


@dataclass(frozen=True, eq=False)
class GraphProbe(Probe):
    """Inputs of a graph: an input may be empty or text there, and there may be none at all."""

    def __post_init__(self) -> None:
        arrays = {name: read_only(np.array(a, order="C")) for name, a in self.inputs.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "fiubUV" or array.dtype.type is np.void:
                raise ProbeError(f"Probe input {name!r} is not an array of numbers or of text.")
        object.__setattr__(self, "inputs", MappingProxyType(arrays))


def graph_probe(
    model: OnnxModel,
    given: object,
    *,
    batch: int,
    length: int,
    seed: int,
) -> Probe:
    """A probe from arrays by name, a file of them, or nothing; what is left out is made up."""
    taken = model.graph.inputs
    arrays, origin = _read(model, taken, given)
    known = {item.name: item for item in taken}
    if strange := [n for n in arrays if n.partition("[")[0] not in known]:
        raise ProbeError(
            f"{model.label} has no input {strange[0]!r}; it takes {', '.join(map(str, taken))}."
        )
    for name, array in arrays.items():
        cast = known[name.partition("[")[0]].cast(array)
        if cast is None:
            raise ProbeError(
                f"Probe input {name!r} is {array.dtype.name} {list(array.shape)}; {model.label} "
                f"takes {known[name.partition('[')[0]]}."
            )
        arrays[name] = cast
    sizes = {
        dim: size
        for name, array in arrays.items()
        if name in known
        for dim, size in zip(known[name].shape, array.shape, strict=False)
        if isinstance(dim, str) and dim
    }
    # Each input has a generator of its own: giving one of them does not change the others.
    made = {
        item.name: _default(item, model, sizes, batch, length, np.random.default_rng([seed, i]))
        for i, item in enumerate(taken)
        if not any(name.partition("[")[0] == item.name for name in arrays)
    }
    if given is None:
        origin = f"seeded default (seed {seed})"
    elif made:
        origin += f"; made up: {', '.join(made)}"
    # In the graph's own order: another graph may have other names for its inputs.
    every = arrays | made
    place = {item.name: i for i, item in enumerate(taken)}
    ordered = sorted(every, key=lambda name: place[name.partition("[")[0]])
    return GraphProbe({name: every[name] for name in ordered}, origin=origin)


def _read(model: OnnxModel, taken: Sequence[Value], given: object) -> tuple[dict[str, Array], str]:
    if given is None:
        return {}, ""
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".safetensors")):
        given = GraphProbe.load(given)
    if isinstance(given, Probe):
        return dict(given.inputs), given.origin
    if isinstance(given, Mapping):
        return {str(name): _array(name, value) for name, value in given.items()}, "arrays"
    texts = isinstance(given, str) or (
        isinstance(given, list) and bool(given) and all(isinstance(item, str) for item in given)
    )
    if texts:
        raise ProbeError(
            f"{model.label} is a graph: it has no tokenizer. Give its inputs as arrays "
            f"(--probe FILE.safetensors, or --ids): {', '.join(map(str, taken))}."
        )
    if not taken:
        raise ProbeError(f"{model.label} takes no inputs.")
    return {taken[0].name: _array(taken[0].name, given)}, "ids or array"


def _array(name: object, value: object) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ProbeError(f"Probe input {name!r} cannot be read as an array: {error}.") from None
    return array.astype(str) if array.dtype.kind == "O" else array


def _default(
    item: Value,
    model: OnnxModel,
    sizes: Mapping[str, int],
    batch: int,
    length: int,
    rng: np.random.Generator,
) -> Array:
    if item.is_sequence or item.dtype is None:
        raise ProbeError(
            f"No default can be made for input {item} of {model.label}; give it as an array "
            "(--probe FILE.safetensors, or probe={name: array})."
        )
    shape = tuple(_dim(item, axis, sizes, batch, length) for axis in range(len(item.shape)))
    dtype, name = item.dtype, item.name.lower()
    if name == CACHE_FLAG:
        return np.zeros(shape, dtype)
    if dtype.kind == "f":
        if "mask" in name:
            return np.zeros(shape, dtype)  # masks of floats are added
        made: Array = rng.standard_normal(shape).astype(dtype)
        return made
    if "mask" in name:
        return np.ones(shape, dtype)
    if "position" in name and shape:
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
    if "token_type" in name:
        return np.zeros(shape, dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    bound = rows_chosen(model.graph, item.name)
    if bound is None:
        return np.ones(shape, dtype)
    return rng.integers(0, min(bound, np.iinfo(dtype).max), shape).astype(dtype)


def _dim(item: Value, axis: int, sizes: Mapping[str, int], batch: int, length: int) -> int:
    """The size of one axis: the graph's own, or what its name or place says."""
    dim = item.shape[axis]
    if isinstance(dim, int) and dim > 0:
        return dim
    name = dim if isinstance(dim, str) else ""
    if name in sizes:
        return sizes[name]
    floats = item.element in ("float", "float16", "double")
    if floats and len(item.shape) == 4:
        if axis == 2 and isinstance(item.shape[1], int) and isinstance(item.shape[3], int):
            return 0 if "past" in name or "past" in item.name else length
        if axis > 0 and not _LENGTHS.search(name):
            return 3 if axis == 1 else _PIXELS
    if axis == 0 and not _LENGTHS.search(name):
        return batch
    return length


def rows_chosen(graph: OnnxGraph, name: str) -> int | None:
    """How many rows the smallest stored table has that an input chooses from; None without one."""
    tables = {tensor.name: tuple(tensor.dims) for tensor in graph.proto.graph.initializer}
    waiting, seen, found = [name], {name}, []
    while waiting:
        tensor = waiting.pop()
        for number in graph.consumers.get(tensor, ()):
            node = graph.nodes[number]
            if node.op == "Gather" and len(node.inputs) > 1 and node.inputs[1] == tensor:
                rows = tables.get(node.inputs[0])
                found += [rows[0]] if rows else []
            elif node.op in _PASSES_ON and node.inputs[0] == tensor:
                fresh = [n for n in node.outputs if n not in seen]
                seen.update(fresh)
                waiting += fresh
    return min(found) if found else None


def fed(where: str, taken: Sequence[Value], inputs: Mapping[str, Array]) -> dict[str, Any]:
    """What a session is given: inputs by name, else by their place where all types fit."""
    feed: dict[str, Any] = {}
    lacking: list[Value] = []
    used: set[str] = set()
    for item in taken:
        parts = [n for n in inputs if n.startswith(f"{item.name}[")] if item.is_sequence else []
        if item.name in inputs:
            array = item.cast(inputs[item.name])
            if array is None:
                raise BackendError(nothing_fits(where, item, taken, inputs))
            feed[item.name] = array
            used.add(item.name)
        elif item.is_sequence:
            feed[item.name] = [inputs[name] for name in parts]
            used.update(parts)
        else:
            lacking.append(item)
    spare = [name for name in inputs if name not in used]
    if len(lacking) > len(spare):
        raise BackendError(nothing_fits(where, lacking[0], taken, inputs))
    for item, name in zip(lacking, spare, strict=False):
        array = item.cast(inputs[name]) if len(lacking) == len(spare) else None
        if array is None:
            raise BackendError(nothing_fits(where, item, taken, inputs))
        feed[item.name] = array
    return feed
