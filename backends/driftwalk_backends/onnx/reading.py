"""Reading an ONNX graph that others made: safely, and without its weights.

The file is hostile until proven otherwise: it may be no graph at all, may be cyclic, and may name
weight files anywhere on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from driftwalk.errors import BackendError
from driftwalk.files import sha256_of

from ..calls import first_line
from .graph import OnnxGraph, branches

CACHE_FLAG = "use_cache_branch"
"""The input by which optimum's merged decoders choose: with a past, or without."""

_EXTERNAL = 1  # onnx.TensorProto.EXTERNAL


def parsed(path: Path) -> Any:
    """The onnx.ModelProto in a file; the weights beside it stay there."""
    import onnx

    with path.open("rb") as file:
        return onnx.load_model(file, load_external_data=False)


def read_graph(path: Path) -> OnnxGraph:
    """Parse and check a graph; anything wrong with the file is told in one line."""
    try:
        model = parsed(path)
    except OSError as error:
        raise BackendError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    except Exception as error:  # protobuf's errors differ from version to version
        raise BackendError(
            f"{str(path)!r} is no ONNX graph: {first_line(error)}. "
            "Was it cut off while it was copied?"
        ) from None
    if not model.graph.node:
        raise BackendError(f"{str(path)!r} is no ONNX graph, or one with no nodes: nothing to run.")
    _check_weights(path, _tensors(model.graph))
    for function in model.functions:
        _check_weights(path, _in_nodes(function.node))
    _without_cache_branch(model.graph)
    return OnnxGraph(path, model)


def fetch(path: Path, tensors: Iterable[Any]) -> None:
    """Read the weights that lie beside a graph into it.

    onnx's own reader refuses a file that has a second name, as all that comes from the cache has.
    """
    wanted = [tensor for tensor in tensors if tensor.data_location == _EXTERNAL]
    _check_weights(path, wanted)
    for tensor in wanted:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        with (path.parent / entries["location"]).open("rb") as file:
            file.seek(int(entries.get("offset", 0)))
            tensor.raw_data = file.read(int(entries.get("length", -1)))
        tensor.ClearField("data_location")
        del tensor.external_data[:]


def _tensors(graph: Any) -> Iterator[Any]:
    """Every stored tensor, in branches and attributes too."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _in_nodes(graph.node)


def _in_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
        for inner in branches(node):
            yield from _tensors(inner)


def _check_weights(path: Path, tensors: Iterable[Any]) -> None:
    """Weights must lie in the graph's own folder: a graph is no reason to read any other file."""
    folder = Path(os.path.realpath(path.parent))
    for tensor in tensors:
        if tensor.data_location != _EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        wants = f"{path.name!r} wants the weights {tensor.name[:80]!r} from {location[:200]!r}"
        inside = not os.path.isabs(location) and ".." not in Path(location).parts
        target = Path(os.path.realpath(folder / location)) if "\0" not in location else folder
        if not location or not inside or folder not in target.parents:
            raise BackendError(
                f"{wants}, which is not in its own folder. Weights outside it, also through "
                "links, are not read: copy them beside the graph."
            )
        try:
            size = target.stat().st_size
            end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
        except (OSError, ValueError):
            raise BackendError(
                f"{wants}, which cannot be read. Was the file left behind when the graph was "
                "copied?"
            ) from None
        if end > size:
            raise BackendError(
                f"{path.name!r} wants {end} bytes of {location[:200]!r}, which has {size}. "
                "Was it cut off while it was copied?"
            )


def _without_cache_branch(graph: Any) -> None:
    """Optimum's merged decoder is one `If` over two decoders: put the one without a past in.

    Tensors inside a branch cannot be exposed. Which branch runs is decided by an input, and
    driftwalk always feeds it `False`, so what is computed stays the same.
    """
    from onnx import helper

    if CACHE_FLAG not in {value.name for value in graph.input}:
        return
    kept: list[Any] = []
    for node in graph.node:
        if node.op_type != "If" or node.input[0] != CACHE_FLAG:
            kept.append(node)
            continue
        branch = next(a.g for a in node.attribute if a.name == "else_branch")
        graph.initializer.extend(branch.initializer)
        kept += branch.node
        kept += [
            helper.make_node("Identity", [inner.name], [outer])
            for inner, outer in zip(branch.output, node.output, strict=True)
            if inner.name != outer
        ]
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)


def hash_of(path: Path) -> str:
    """sha256 of a file, computed once for as long as it stays as it is."""
    stat = path.stat()
    return _hashed(path, stat.st_mtime_ns, stat.st_size)


@cache
def _hashed(path: Path, _time: int, _size: int) -> str:
    return sha256_of(path)
