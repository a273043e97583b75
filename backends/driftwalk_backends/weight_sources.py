"""The weights of whatever a user may call a model: a module, a folder, a file, a graph, a name.

Folders and files of safetensors are mapped, and no model is made of them. Nothing is unpickled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from driftwalk.dtypes import Array, dtype_name
from driftwalk.errors import ModelError, UsageError
from driftwalk.files import read_json
from driftwalk.traces.tensor_file import read_tensors
from driftwalk.weight_source import Stored, WeightSource

from .onnx.graph import OnnxGraph
from .onnx.pairs.model import OnnxModel
from .onnx.reading import read_graph
from .shards import what_is_wrong
from .sources import open_model
from .weights import graph_weights, module_weights

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
_REFUSED = (
    "holds pickled weights, which can run code when they are read. Save them as safetensors: "
    "model.save_pretrained(folder), or safetensors.torch.save_file(state_dict, file)."
)


def open_weights(given: object, *, trust_remote_code: bool = False) -> WeightSource:
    """The weights of a module, a folder, a file, or a model by name."""
    if isinstance(given, WeightSource):
        return given
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str):
        path = Path(given)
        if path.suffix == ".safetensors":
            return file_weights([path], given)
        if path.suffix in _PICKLED:
            raise UsageError(f"{given!r} {_REFUSED}")
        if path.is_dir():
            return folder_weights(path)
    model = open_model(given, trust_remote_code=trust_remote_code)
    if isinstance(model, OnnxModel):
        return graph_weights([model.graph], model.label)
    return module_weights(model.module, model.label)


def open_graph(path: str) -> OnnxGraph:
    """A graph alone, read and checked."""
    return read_graph(Path(path))


def folder_weights(folder: Path) -> WeightSource:
    """The safetensors in a folder: those that its index names, one file, or all there are."""
    if not any(folder.glob("*.safetensors")):
        pickled = [file for file in folder.iterdir() if file.suffix in _PICKLED]
        if pickled:
            raise UsageError(f"{str(pickled[0])!r} {_REFUSED}")
        graphs = sorted(folder.glob("*.onnx"))
        if graphs:
            raise UsageError(
                f"Folder {str(folder)!r} holds ONNX graphs; name one: {graphs[0].name}."
            )
        raise ModelError(
            f"Folder {str(folder)!r} has no safetensors. Write some with "
            "model.save_pretrained(folder)."
        )
    if why := what_is_wrong(folder):
        raise ModelError(f"Cannot read the weights in {str(folder)!r}: {why}")
    if (folder / _INDEX).is_file():
        names = sorted({str(name) for name in read_json(folder / _INDEX)["weight_map"].values()})
        if any(Path(name).name != name for name in names):
            raise ModelError(f"{_INDEX} in {str(folder)!r} names files outside of the folder.")
    elif (folder / _SINGLE).is_file():
        names = [_SINGLE]
    else:
        names = sorted(file.name for file in folder.glob("*.safetensors"))
    return file_weights([folder / name for name in names], str(folder))


def file_weights(files: Iterable[Path], label: str) -> WeightSource:
    """All tensors of some safetensors files, mapped."""
    tensors: dict[str, Stored] = {}
    for file in files:
        for name, array in read_tensors(file).items():
            tensors[name] = Stored(array.shape, dtype_name(array), partial(_same, array))
    return WeightSource(label, "files", tensors)


def _same(array: Array) -> Array:
    return array
