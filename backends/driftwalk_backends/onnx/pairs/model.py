"""An ONNX graph that is itself the model, and probes for it: nobody here knows its torch code.

A graph says the types and shapes of its inputs, and little else. What users give is completed by
seeded defaults: whole numbers that choose rows of a stored table stay inside it; masks hide
nothing; positions count; a past is empty. Another graph is fed from the same probe by name, else by
place. A torch model's probe is the business of `feeds`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, ProbeError
from driftwalk.input_files import PROBE_FILES, InputFiles
from driftwalk.states import Probe, read_only

from ..feeds import nothing_fits, open_sizes
from ..graph import FLOAT_KINDS, Arrays, OnnxGraph, Value
from ..reading import CACHE_FLAG, hash_of, read_graph

_LENGTHS = re.compile(r"seq|len|time|pos|tok|frame", re.IGNORECASE)
_PIXELS = 32
_PASSES_ON = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand"}


class OnnxModel:
    """A graph in a file. Reading it is cheap: weights beside the graph stay where they are."""

    source: ClassVar[str] = "ONNX graph"
    blocks: ClassVar[None] = None
    """The stack of blocks that a user named: one of torch modules, which a graph has not."""
    notes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: Path, label: str = "") -> None:
        self.path = path
        self.label = label or str(path)
        self.graph: OnnxGraph = read_graph(path)

    @property
    def refusal(self) -> str:
        """What to say to whoever asks for the torch model."""
        return (
            f"{self.label} is an ONNX graph: there is no torch model that torch, emulated or truth "
            "could run. Its backends are onnxruntime (opt=off runs it as written) and "
            "onnxruntime,file=OTHER.onnx; its inputs are arrays."
        )

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the graph and of the weights that lie beside it."""
        digest = hashlib.sha256(hash_of(self.path).encode())
        for name in self.weight_files:
            digest.update(hash_of(self.path.parent / name).encode())
        return digest.hexdigest()

    @cached_property
    def weight_files(self) -> tuple[str, ...]:
        """Files in the graph's folder that hold weights."""
        entries = [entry for t in self.graph.weights.values() for entry in t.external_data]
        return tuple(sorted({entry.value for entry in entries if entry.key == "location"}))

    def describe(self) -> dict[str, str]:
        proto: Any = self.graph.proto
        opsets = ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in proto.opset_import)
        made_by = f" by {proto.producer_name[:80]}" if proto.producer_name else ""
        return {
            "label": self.label,
            "source": self.source,
            "class": f"ONNX graph{made_by}, {len(self.graph.nodes)} nodes, opset {opsets}",
            "parameters": str(sum(math.prod(t.dims) for t in proto.graph.initializer)),
            "fingerprint": self.fingerprint,
            "weights": ", ".join(self.weight_files) or "in the graph",
            "hidden_states": "",
        }


@dataclass(frozen=True, eq=False)
class GraphProbe(Probe):
    """Inputs of a graph: an input may be empty or text there, and there may be none at all."""

    def __post_init__(self) -> None:
        arrays = {name: read_only(np.array(a, order="C")) for name, a in self.inputs.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "fiubUV" or array.dtype.type is np.void:
                raise ProbeError(f"Probe input {name!r} is not an array of numbers or of text.")
        object.__setattr__(self, "inputs", MappingProxyType(arrays))


def graph_probe(model: OnnxModel, given: object, *, batch: int, length: int, seed: int) -> Probe:
    """A probe from arrays by name, a file of them, or nothing; what is left out is made up."""
    taken = model.graph.inputs
    arrays, origin = _read(model, taken, given)
    known = {item.name: item for item in taken}
    for name, array in arrays.items():
        item = known.get(_input_of(name))
        if item is None:
            raise ProbeError(
                f"{model.label} has no input {name!r}; it takes {', '.join(map(str, taken))}."
            )
        cast = item.cast(array)
        if cast is None:
            raise ProbeError(
                f"Probe input {name!r} is {array.dtype.name} {list(array.shape)}; {model.label} "
                f"takes {item}."
            )
        arrays[name] = cast
    sizes, covered = open_sizes(taken, arrays), set(map(_input_of, arrays))
    # Each input has a generator of its own: giving one of them does not change the others.
    made = {
        item.name: _default(item, model, sizes, batch, length, np.random.default_rng([seed, i]))
        for i, item in enumerate(taken)
        if item.name not in covered
    }
    if given is None:
        origin = f"seeded default (seed {seed})"
    elif made:
        origin += f"; made up: {', '.join(made)}"
    # In the graph's own order: another graph may have other names for its inputs.
    every, order = arrays | made, list(known)
    ordered = sorted(every, key=lambda name: order.index(_input_of(name)))
    return GraphProbe({name: every[name] for name in ordered}, origin=origin)


def _input_of(name: str) -> str:
    """The input that an array belongs to: `many[0]` is the first of the sequence `many`."""
    return name.partition("[")[0]


def _read(model: OnnxModel, taken: Sequence[Value], given: object) -> tuple[dict[str, Array], str]:
    if given is None:
        return {}, ""
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(PROBE_FILES)):
        given = GraphProbe.load(given)
    if isinstance(given, InputFiles):
        if given.texts or len(given.arrays) < len(given.files):
            raise ProbeError(
                f"{model.label} is a graph: it has no tokenizer and no processor. Give its inputs "
                "as arrays: --input NAME=FILE.npy."
            )
        given = given.arrays
    if isinstance(given, Probe):
        given.refuse_others(f"The graph {model.label}")
        return dict(given.inputs), given.origin
    if isinstance(given, Mapping):
        return {str(name): _array(name, value) for name, value in given.items()}, "arrays"
    items = given if isinstance(given, list) else [given]
    if items and all(isinstance(item, str) for item in items):
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
    floats = dtype.kind == "f"
    if name == CACHE_FLAG or (floats and "mask" in name):  # masks of floats are added
        return np.zeros(shape, dtype)
    if floats:
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
    if item.kind in FLOAT_KINDS and len(item.shape) == 4:
        if axis == 2 and isinstance(item.shape[1], int) and isinstance(item.shape[3], int):
            return 0 if "past" in name or "past" in item.name else length
        if axis > 0 and not _LENGTHS.search(name):
            return 3 if axis == 1 else _PIXELS
    return batch if axis == 0 and not _LENGTHS.search(name) else length


def rows_chosen(graph: OnnxGraph, name: str) -> int | None:
    """How many rows the smallest stored table has that an input chooses from; None without one."""
    waiting, seen = [name], {name}
    found: list[int] = []
    while waiting:
        tensor = waiting.pop()
        for node in graph.takers(tensor):
            if node.op == "Gather" and len(node.inputs) > 1 and node.inputs[1] == tensor:
                table = graph.weights.get(node.inputs[0])
                found += table.dims[:1] if table is not None else []
            elif node.op in _PASSES_ON and node.inputs[0] == tensor:
                fresh = [n for n in node.outputs if n not in seen]
                seen.update(fresh)
                waiting += fresh
    return min(found) if found else None


def fed(where: str, taken: Sequence[Value], inputs: Arrays) -> dict[str, Any]:
    """What a session is given: inputs by name, else by their place where all types fit."""
    feed: dict[str, Any] = {}
    lacking: list[Value] = []
    spare = list(inputs)
    for item in taken:
        parts = [name for name in inputs if name.startswith(f"{item.name}[")]
        if item.name in inputs:
            feed[item.name] = item.cast(inputs[item.name])
            spare.remove(item.name)
        elif item.is_sequence:
            feed[item.name] = [inputs[name] for name in parts]
            spare = [name for name in spare if name not in parts]
        else:
            lacking.append(item)
    for place, item in enumerate(lacking):
        fits = len(lacking) == len(spare)
        feed[item.name] = item.cast(inputs[spare[place]]) if fits else None
    for item in taken:
        if feed[item.name] is None:
            raise BackendError(nothing_fits(where, item, taken, inputs))
    return feed
