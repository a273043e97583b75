"""The `openvino` backend: the model exported to ONNX and run by OpenVINO.

OpenVINO picks its own arithmetic: on an ARM CPU it computes a float32 graph in float16 unless told
otherwise, and a hint the hardware cannot follow is replaced by another without a word. Here the
dtype of the spec is always the hint, and what was made of it is read back and must be the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from driftwalk.adapter import Backend, BackendInfo, Lap, Offer, Sink
from driftwalk.dtypes import FORMATS, Array
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.spec import THREADS_HELP, Spec
from driftwalk.states import Probe

from .depth import Looks
from .fingerprint import versions
from .onnx.export import Exports
from .onnx.export_options import OPTIONS as EXPORT_OPTIONS
from .onnx.export_options import exporters_for
from .onnx.exported import Exported
from .onnx.graph import Arrays
from .onnx.reading import parsed
from .onnx.runtime import seconds_per_point, tensor_points
from .sources import torch_model

HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
"""OpenVINO's names of the formats it can be asked to compute in."""
DEVICES = ("cpu", "gpu", "npu")
_READ_BACK = {
    "threads": "INFERENCE_NUM_THREADS",
    "streams": "NUM_STREAMS",
    "dynamic quantization group": "DYNAMIC_QUANTIZATION_GROUP_SIZE",
}
"""Flags whose value is OpenVINO's own choice, known once a graph is compiled."""
INSTALL = "Install it: pip install 'driftwalk[openvino]'."


class OpenVino(Looks, Backend):
    """Reads the float32 export that `onnxruntime` reads; half precision is made by OpenVINO."""

    name: ClassVar[str] = "openvino"
    options: ClassVar[Mapping[str, str]] = {
        "mode": "execution mode: accuracy or performance (default accuracy)",
        "cache": "on or off: reuse an export of the same model and shapes (default on)",
        "threads": THREADS_HELP,
        "exporter": "torch (default), transformers, or auto: torch, else transformers",
        **EXPORT_OPTIONS,
    }

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec)
        self._model = torch_model(model)
        self._dtype = spec.dtype or "fp32"
        if self._dtype not in HINTS:
            raise UsageError(
                f"Backend 'openvino' has no dtype {self._dtype!r}; it has {', '.join(HINTS)}."
            )
        self._mode = spec.choice("mode", ("accuracy", "performance"), "accuracy")
        self._threads = spec.count("threads")
        self._device = _device(spec)
        _check_capability(self._device, self._dtype)
        cached = spec.choice("cache", ("on", "off"), "on") == "on"
        exporters = exporters_for(spec, self._model.module)
        self._exports = Exports(self._model, spec, "fp32", cached, self._seconds, exporters)
        self._compiled: dict[Path, Any] = {}
        self._effective: dict[str, str] = {}

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        if why := _not_installed():
            return [Offer("openvino:cpu", False, f"{why} {INSTALL}")]
        import openvino as ov

        core = ov.Core()
        here = f"openvino {versions('openvino').get('openvino', 'of unknown version')}"
        return [
            Offer(f"openvino:{kind.lower()}", True, f"{here}, {_named(core, kind)}")
            for kind in sorted({device.partition(".")[0] for device in core.available_devices})
        ]

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(
            spec=str(self.spec),
            name=self.name,
            device=self.spec.device or "cpu",
            dtype=self._dtype,
            versions=versions("openvino", "onnx", "onnxscript", "torch", "transformers"),
            flags={
                "precision hint": HINTS[self._dtype],
                "mode": self._mode,
                "threads": str(self._threads or "default"),
                **self._exports.flags,
                **self._effective,
            },
        )

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        return self._exports.outputs_skipped

    def _forward(self, probe: Probe, sink: Sink | None) -> Arrays:
        exported = self._export(probe)
        compiled = self._load(exported.plain if sink is None else exported.traced)
        named = self._infer(compiled.create_infer_request(), exported, probe)
        return exported.hand_on({name: self._narrowed(a) for name, a in named.items()}, sink)

    def lap(self, probe: Probe) -> Lap:
        """One plain run; the request is made before the clock starts, as a deployment keeps one."""
        exported = self._export(probe)
        request = self._load(exported.plain).create_infer_request()
        start = time.perf_counter()
        self._infer(request, exported, probe)
        return Lap(time.perf_counter() - start)

    def layer_laps(self, probe: Probe) -> Mapping[str, float]:
        """One run of the plain graph under OpenVINO's counters, nodes folded into points."""
        exported = self._export(probe)
        compiled = self._compile(exported.plain, {"PERF_COUNT": True})
        request = compiled.create_infer_request()
        for _ in range(2):  # the first warms up
            self._infer(request, exported, probe)
        points = [point.name for point in exported.points]
        originals = _originals(parsed(exported.traced).graph, points)
        owners = _owners(compiled.get_runtime_model().get_ordered_ops(), originals)
        spent = request.get_profiling_info()
        timed = [(owners.get(one.node_name), one.real_time.total_seconds()) for one in spent]
        return seconds_per_point(points, timed)

    def _export(self, probe: Probe) -> Exported:
        return self._exports.get(probe, self._look)

    def _infer(self, request: Any, exported: Exported, probe: Probe) -> dict[str, Array]:
        """Copies of all outputs by name; a tensor may have several."""
        compiled = request.get_compiled_model()
        feed, inputs = {}, {**probe.inputs, **self._exports.added(exported, probe)}
        for number, port in enumerate(compiled.inputs):
            array = next((inputs[n] for n in port.get_names() if n in inputs), None)
            if array is not None:
                feed[number] = array.astype(np.float32) if array.dtype.kind == "f" else array
        with _explained(f"failed on {self._model.label}"):
            found = request.infer(feed)
        return {
            name: np.array(found[number])
            for number, port in enumerate(compiled.outputs)
            for name in port.get_names()
        }

    def _narrowed(self, array: Array) -> Array:
        """In the dtype it was computed in: outputs are float32, whatever went on inside.

        Only where not one bit is lost: what OpenVINO chose to compute wider stays wider.
        """
        if array.dtype.kind != "f":
            return array
        narrow = array.astype(FORMATS[self._dtype].dtype)
        same = np.array_equal(narrow.astype(array.dtype), array, equal_nan=True)
        return narrow if same else array

    def _load(self, path: Path) -> Any:
        if path not in self._compiled:
            start = time.perf_counter()
            self._compiled[path] = self._compile(path, {})
            self._seconds["load"] = self._seconds.get("load", 0.0) + time.perf_counter() - start
        return self._compiled[path]

    def _compile(self, path: Path, more: Mapping[str, Any]) -> Any:
        """A compiled graph, in the precision that was asked for and no other."""
        import openvino as ov

        wanted: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": HINTS[self._dtype],
            "EXECUTION_MODE_HINT": self._mode.upper(),
            **more,
        }
        if self._threads:
            wanted["INFERENCE_NUM_THREADS"] = self._threads
        with _explained(f"cannot load the graph of {self._model.label}"):
            core = ov.Core()
            compiled = core.compile_model(core.read_model(str(path)), self._device, wanted)
            taken = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if taken != HINTS[self._dtype]:
            raise BackendUnavailable(_no_such_precision(core, self._device, self._dtype, taken))
        known = compiled.get_property("SUPPORTED_PROPERTIES")
        self._effective = {
            flag: str(compiled.get_property(key))
            for flag, key in _READ_BACK.items()
            if key in known
        }
        return compiled

    def _close(self) -> None:
        self._compiled.clear()
        self._exports.close()


def _not_installed() -> str:
    """Why OpenVINO cannot be used here; empty where it can."""
    try:
        import openvino  # noqa: F401
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "openvino"
        return "openvino is not installed." if missing else f"openvino cannot be imported: {error}."
    return ""


def _device(spec: Spec) -> str:
    """OpenVINO's name of the device a spec means; one that is not here is refused."""
    kind, _, number = (spec.device or "cpu").partition(":")
    if kind not in DEVICES:
        raise UsageError(f"Backend 'openvino' has no device {kind!r}; it has {', '.join(DEVICES)}.")
    if why := _not_installed():
        raise BackendUnavailable(f"Backend 'openvino' is not usable here: {why} {INSTALL}")
    import openvino as ov

    known = ov.Core().available_devices
    wanted = f"{kind.upper()}.{number}" if number else kind.upper()
    if wanted not in {*known, *(device.partition(".")[0] for device in known)}:
        raise BackendUnavailable(
            f"OpenVINO has no device {wanted} here; it has {', '.join(known)}. Is its driver "
            "installed?"
        )
    return wanted


def _check_capability(device: str, dtype: str) -> None:
    """Refuse a half precision that the device does not have, before anything is exported."""
    import openvino as ov

    core = ov.Core()
    capabilities = core.get_property(device, "OPTIMIZATION_CAPABILITIES")
    if dtype != "fp32" and dtype.upper() not in capabilities:
        raise BackendUnavailable(_no_such_precision(core, device, dtype))


def _no_such_precision(core: Any, device: str, dtype: str, taken: str = "") -> str:
    instead = f": it would compute in {taken}" if taken else ""
    return (
        f"OpenVINO cannot compute in {dtype} on {_named(core, device)}{instead}. Ask for another "
        f"dtype: openvino:{device.lower()}:fp32."
    )


def _originals(graph: Any, points: Sequence[str]) -> dict[str, str]:
    """Point by whatever OpenVINO may call a node of the graph: its name, or that of its tensor."""
    tensors = tensor_points(graph, points)
    nodes = {node.name: tensors[node.output[0]] for node in graph.node if node.name and node.output}
    return nodes | tensors


def _owners(ops: Iterable[Any], originals: Mapping[str, str]) -> dict[str, str]:
    """Node of the compiled graph to point; one that OpenVINO made up goes with whom it feeds."""
    owners: dict[str, str] = {}
    for op in reversed(list(ops)):
        names = str(op.get_rt_info()["originalLayersNames"].value).split(",")
        own = [originals[name] for name in names if name in originals]
        targets = [target for output in op.outputs() for target in output.get_target_inputs()]
        fed = [target.get_node().get_friendly_name() for target in targets]
        feeds = [owners[name] for name in fed if name in owners]
        if own or feeds:
            owners[op.get_friendly_name()] = own[-1] if own else feeds[0]
    return owners


def _named(core: Any, device: str) -> str:
    return str(core.get_property(device, "FULL_DEVICE_NAME")).strip() or device


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """An error's last line that says something: OpenVINO puts the places in its source first."""
    try:
        yield
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        saying = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
        reason = (saying or lines or [type(error).__name__])[-1][:400]
        raise BackendError(f"OpenVINO {what}: {reason}") from error
