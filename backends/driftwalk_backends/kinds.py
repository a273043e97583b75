"""Which backend a spec means whose name stands for several (`registry.KINDS`)."""

from __future__ import annotations

from driftwalk.adapter import Backend
from driftwalk.errors import UsageError
from driftwalk.registry import backend_class
from driftwalk.spec import Spec

from .onnx.pairs.model import OnnxModel
from .sources import open_model
from .torch_devices import AUTO

EXPORTERS = ("torch", "transformers", "optimum", "auto")


def torch_backend(spec: Spec, model: object) -> Backend:
    """`torch`, `emulated`, `truth`: here, over several devices, or over the nodes of a cluster."""
    if "ranges" in spec.options:
        from .ranged import Ranged, RangedTruth

        return (RangedTruth if spec.name == "truth" else Ranged)(spec, model)
    if spec.name == "torch" and spec.device == AUTO:
        from .torch_auto import TorchAuto

        return TorchAuto(spec, model)
    if "folder" in spec.options and spec.name == "torch":
        if others := sorted({"compile", "memory"} & spec.options.keys()):
            raise UsageError(f"{spec}: folder= and {others[0]}= do not go together.")
        from .torch_folder import TorchFolder

        return TorchFolder(spec, model)
    if "memory" in spec.options:
        raise UsageError(f"{spec}: memory= is for torch:{AUTO}, which spreads a model.")
    if "compile" in spec.options and spec.name == "torch":
        from .torch_compiled import TorchCompiled

        return TorchCompiled(spec, model)
    return backend_class(spec.name)(spec, model)  # type: ignore[call-arg]


def onnxruntime_backend(spec: Spec, model: object) -> Backend:
    """`onnxruntime`: of a graph, that graph or another; of a torch model, whose export it says."""
    opened = open_model(model)
    if isinstance(opened, OnnxModel):
        from .onnx.pairs.runtime import GraphRuntime

        return GraphRuntime(spec, opened)
    if "file" in spec.options or spec.choice("exporter", EXPORTERS, "torch") == "optimum":
        from .onnx.file import OnnxFile

        return OnnxFile(spec, opened)
    if "quantize" in spec.options:
        from .onnx.runtime import OnnxInt8

        return OnnxInt8(spec, opened)
    from .onnx.runtime import OnnxRuntime

    return OnnxRuntime(spec, opened)


def executorch_backend(spec: Spec, model: object) -> Backend:
    """`executorch`: driftwalk's own program of a torch model, or one that others made."""
    if "file" in spec.options:
        from .pte.file import ExecuTorchFile

        return ExecuTorchFile(spec, model)
    if spec.options.get("exporter", "torch") != "torch":
        from .pte.by_transformers import ExecuTorchByTransformers

        return ExecuTorchByTransformers(spec, model)
    if "quantize" in spec.options:
        from .pte.int8 import ExecuTorchInt8

        return ExecuTorchInt8(spec, model)
    from .pte.backend import ExecuTorch

    return ExecuTorch(spec, model)
