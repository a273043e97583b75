"""A layer in a folder: its code or graph, its inputs, both outputs, and a script that runs it.

What is written here is read where driftwalk is not: plain numpy archives, JSON, an ONNX graph,
Python that calls torch. Names from the model stand in the JSON alone, never in code or file names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from driftwalk.adapter import Backend
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.states import Trace

from ..onnx.backend import OPTIMISATION
from ..onnx.file import OnnxFile
from ..onnx.runtime import OnnxRuntime
from ..openvino_runtime import OpenVino
from ..tensors import from_numpy
from ..torch_runtime import TorchRuntime
from .layer_code import LayerCode, layer_code
from .layer_graph import graph_of, write_layer

BUNDLE = "bundle.json"
REPLAY, README = "replay.py", "README.md"
GRAPH = "candidate.onnx"


@dataclass(frozen=True, eq=False)
class Subject:
    """One point of a candidate's trace, and what the truth makes of the states before it."""

    trace: Trace
    point: str
    replayed: Array

    @property
    def given(self) -> dict[str, Array]:
        return {state.point.name: state.array for state in self.trace}

    def array(self, name: str) -> Array:
        """A state, or an input of the model."""
        state = self.trace.state(name)
        return self.trace.probe.inputs[name] if state is None else state.array


def write_bundle(
    folder: Path, subject: Subject, truth: Backend, candidate: Backend, facts: Mapping[str, Any]
) -> None:
    """Write all files of a bundle into an empty folder; `facts` are what the report says."""
    assert isinstance(truth, TorchRuntime)
    probe, given, point = subject.trace.probe, subject.given, subject.point
    code = layer_code(truth, probe, given, point)
    taken = _Inputs(subject)
    written = {"truth": _write_code(folder, "truth", code, taken)}
    layer, why = None, ""
    try:
        layer = _candidate_layer(folder, subject, candidate, taken)
        why = "" if layer else f"backend {candidate.info.name!r} keeps its layers to itself."
    except BackendError as error:
        why = str(error)
    arrays = {"candidate": subject.array(point), "truth": subject.replayed}
    if (keep := probe.keep(point, subject.replayed.shape)) is not None:
        arrays["keep"] = keep
    _save(folder / "outputs.npz", arrays)
    _save(folder / "inputs.npz", taken.arrays)
    document = {
        **facts,
        **written,
        "candidate_layer": layer,
        "no_candidate_layer": why,
        "inputs": taken.described,
    }
    (folder / BUNDLE).write_text(json.dumps(document, indent=1, allow_nan=False), encoding="utf-8")
    (folder / REPLAY).write_text(_template(REPLAY), encoding="utf-8")


def write_readme(folder: Path, printed: str) -> None:
    """What is in the folder, and what its script printed."""
    quoted = printed.replace("`", "'").rstrip()
    (folder / README).write_text(_template(README).format(quoted), encoding="utf-8")


def _template(name: str) -> str:
    return files(__package__).joinpath(f"{name}.txt").read_text("utf-8")


class _Inputs:
    """Arrays that are fed to a layer, each stored once, under a number."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.arrays: dict[str, Array] = {}
        self.described: dict[str, dict[str, str]] = {}

    def key(self, name: str, array: Array | None = None) -> str:
        """The number of a state or an input; `array` is what a graph of its own has there."""
        array = self._subject.array(name) if array is None else array
        for key, known in self.described.items():
            if known["name"] == name and self.arrays[key].shape == array.shape:
                return key
        key = f"i{len(self.described)}"
        kind = "input" if self._subject.trace.state(name) is None else "state"
        self.arrays[key] = array
        self.described[key] = {"name": name, "kind": kind, "dtype": _torch_name(array)}
        return key


def _candidate_layer(
    folder: Path, subject: Subject, candidate: Backend, taken: _Inputs
) -> dict[str, Any] | None:
    """What the candidate runs at this point, where it can be taken out of it."""
    point = subject.point
    if isinstance(candidate, TorchRuntime):
        code = layer_code(candidate, subject.trace.probe, subject.given, point)
        return {"runtimes": ["torch"], **_write_code(folder, "candidate", code, taken)}
    if not isinstance(candidate, OnnxRuntime | OnnxFile | OpenVino):
        return None
    source = graph_of(candidate, subject.trace, point)
    inputs = write_layer(source.whole, point, source.states, folder / GRAPH)
    fed = {name: source.fed(name, one.what) for name, one in inputs.items()}
    flags = candidate.info.flags
    layer: dict[str, Any] = {
        "runtimes": ["onnxruntime"],
        "graph": GRAPH,
        "inputs": {n: [taken.key(one.what, fed[n]), one.dtype] for n, one in inputs.items()},
        "optimisation": OPTIMISATION[flags.get("opt", "all")],
        "provider": flags.get("provider", ""),
    }
    if isinstance(candidate, OpenVino):
        layer |= {
            "runtimes": ["openvino", "onnxruntime"],
            "precision": flags["precision hint"],
            "mode": flags["mode"].upper(),
            "device": candidate.info.device.upper(),
        }
    return layer


def _write_code(folder: Path, whose: str, code: LayerCode, taken: _Inputs) -> dict[str, Any]:
    (folder / f"{whose}_layer.py").write_text(code.source, encoding="utf-8")
    stored = {key: tensor.detach().cpu() for key, tensor in code.weights.items()}
    _save(folder / f"{whose}_weights.npz", {key: _plain(t) for key, t in stored.items()})
    return {
        "code": f"{whose}_layer.py",
        "weights": f"{whose}_weights.npz",
        "inputs": [taken.key(name) for name in code.inputs],
        "dtypes": {key: str(t.dtype).removeprefix("torch.") for key, t in stored.items()},
        "names": dict(code.names),
        "device": code.device,
    }


def _plain(tensor: torch.Tensor) -> Array:
    """As numpy can store it: formats it lacks are exact in float32."""
    exotic = tensor.is_floating_point() and tensor.dtype not in (
        torch.float64,
        torch.float32,
        torch.float16,
    )
    array: Array = (tensor.float() if exotic else tensor).contiguous().numpy()
    return array


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    stored: dict[str, Any] = {key: _plain(from_numpy(a)) for key, a in arrays.items()}
    np.savez(path, **stored)


def _torch_name(array: Array) -> str:
    return str(from_numpy(array[:0] if array.ndim else array).dtype).removeprefix("torch.")
