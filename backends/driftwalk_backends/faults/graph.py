"""Faults for ONNX Runtime: written into the initialisers of the clean graph, not exported anew.

The exporter folds and renames: a linear weight may stand in the graph transposed and under the name
`val_56`. So a parameter is found by its content, straight or transposed. One that was folded into
something else is not found, and its fault costs an export of the faulty module.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.adapter import Backend
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.registry import create
from driftwalk.states import Probe

from ..loaded import LoadedModel
from ..onnx.exported import PLAIN, TRACED, Exported, read_export
from ..onnx.file import OnnxFile
from ..onnx.runtime import OnnxRuntime
from ..onnx.stored import array_of
from ..tensors import to_numpy
from .planning import FaultyModel

_FLOATS = (1, 10, 11)
"""onnx.TensorProto.DataType of the formats a parameter can be stored in: fp32, fp16, fp64."""


def faulty_backend(clean: Backend, faulty: FaultyModel, probe: Probe) -> Backend:
    """The backend that `clean` is, for a faulty copy of its model."""
    if isinstance(clean, OnnxFile):
        raise BackendError(f"{clean.spec} runs a graph that others made: no fault can be put in.")
    if not isinstance(clean, OnnxRuntime):
        return create(clean.spec, faulty)
    if faulty.fault.in_weights:
        exported = clean._export(probe)
        changes = initialiser_changes(exported, clean._dtype, faulty.clean, faulty)
        if changes is not None:
            return PatchedOnnxRuntime(clean, faulty, exported, changes)
    options = {**clean.spec.options, "cache": "off"}  # a faulty graph is of no use to anybody else
    return create(replace(clean.spec, options=options), faulty)


class PatchedOnnxRuntime(OnnxRuntime):
    """ONNX Runtime on a copy of a clean export in which some initialisers differ."""

    def __init__(
        self,
        clean: OnnxRuntime,
        faulty: FaultyModel,
        exported: Exported,
        changes: Mapping[str, Array],
    ) -> None:
        super().__init__(clean.spec, faulty)
        self._source = exported
        self._changes = changes
        self._patched: Exported | None = None

    def _export(self, probe: Probe) -> Exported:
        if self._patched is None:
            made = tempfile.TemporaryDirectory(prefix="driftwalk-fault-")
            self._scratch.enter_context(made)
            folder = Path(made.name)
            patch(self._source.folder, folder, self._changes)
            self._patched = read_export(folder)
        return self._patched


def initialiser_changes(
    exported: Exported, dtype: str, clean: LoadedModel, faulty: LoadedModel
) -> dict[str, Array] | None:
    """New contents by initialiser; None where a changed parameter does not stand in the graph."""
    right = dict(clean.at(dtype, "cpu", for_export=True).named_parameters())
    wrong = dict(faulty.at(dtype, "cpu", for_export=True).named_parameters())
    before = {name: to_numpy(parameter) for name, parameter in right.items()}
    after = {name: to_numpy(wrong[name]) for name in right}
    changed = [n for n in before if before[n].tobytes() != after[n].tobytes()]
    stored = _stored(exported)
    changes: dict[str, Array] = {}
    for name in changed:
        same = [n for n in before if _key(before[n]) == _key(before[name])]
        places = stored.get(_key(before[name]), [])
        turned = before[name].ndim == 2
        transposed = stored.get(_key(before[name].T), []) if turned else []
        # Two parameters with the same numbers may share one initialiser: nobody can tell.
        if len(same) > 1 or not (places or transposed):
            return None
        changes |= {place: np.ascontiguousarray(after[name].T) for place in transposed}
        changes |= dict.fromkeys(places, after[name])
    return changes


def patch(source: Path, target: Path, changes: Mapping[str, Array]) -> None:
    """Copy an export, with other contents for some initialisers in both of its graphs."""
    import onnx
    from onnx import numpy_helper
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    shutil.copytree(source, target, dirs_exist_ok=True)
    for graph in (TRACED, PLAIN):
        model = onnx.load(str(target / graph), load_external_data=False)
        for tensor in model.graph.initializer:
            if tensor.name not in changes:
                continue
            wanted = np.ascontiguousarray(changes[tensor.name])
            if uses_external_data(tensor):
                beside = ExternalDataInfo(tensor)
                with open(target / beside.location, "r+b") as file:
                    file.seek(beside.offset or 0)
                    file.write(wanted.tobytes())
            else:
                tensor.CopyFrom(numpy_helper.from_array(wanted, tensor.name))
        onnx.save(model, str(target / graph))


def _stored(exported: Exported) -> dict[tuple[Any, ...], list[str]]:
    """Initialisers of a graph by what they hold."""
    import onnx

    names: dict[tuple[Any, ...], list[str]] = {}
    model = onnx.load(str(exported.traced), load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.data_type in _FLOATS and tensor.dims:
            array = array_of(tensor, exported.folder)
            names.setdefault(_key(array), []).append(tensor.name)
    return names


def _key(array: Array) -> tuple[Any, ...]:
    whole = np.ascontiguousarray(array)
    return (*array.shape, array.dtype.name, hashlib.sha256(whole.tobytes()).hexdigest())
