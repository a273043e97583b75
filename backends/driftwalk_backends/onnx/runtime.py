"""The `onnxruntime` backend: the model exported to ONNX and run by ONNX Runtime."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from driftwalk.adapter import Backend, BackendInfo, Offer, Sink
from driftwalk.dtypes import FORMATS, Array
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.spec import Spec
from driftwalk.states import Probe

from ..fingerprint import versions
from ..looks import Looks
from ..sources import open_model
from ..torch_eager import THREADS_HELP, parse_threads
from .export import Exported
from .export_cache import Exports, Scratch
from .layer_times import fold, node_points, tensor_points

DTYPES = ("fp32", "fp16", "fp64")
EXPORTERS = ("torch", "optimum")
QUANTISATIONS = ("dynamic-int8",)
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "dml": "DmlExecutionProvider",
}
WEIGHTS_APART = {
    "session.optimized_model_external_initializers_file_name": "weights.bin",
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
}
"""How ONNX Runtime writes an optimised graph of more than 2 GB."""
BESIDE = "session.model_external_initializers_file_folder_path"
"""Where ONNX Runtime looks for the weights of a graph that comes as bytes."""
_HEAVY = 1 << 28
"""Bytes of weights from which on only one session, traced or plain, is kept at a time."""
OPTIMISATION = {
    "off": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


class OnnxRuntime(Looks, Backend):
    """Exports once for the shapes of a probe, then runs every probe of those shapes."""

    name: ClassVar[str] = "onnxruntime"
    options: ClassVar[Mapping[str, str]] = {
        "opt": "graph optimisation level: off, basic, extended or all (default all)",
        "provider": "an execution provider by its full name (default: the device's)",
        "cache": "on or off: reuse an export of the same model and shapes (default on)",
        "file": "verify this .onnx file, or a folder of them, instead of an export",
        "exporter": "torch or optimum: who makes the graph (default torch)",
        "quantize": "dynamic-int8: round the matrices of driftwalk's own export to eight bits",
        "threads": THREADS_HELP,
    }

    def __new__(cls, spec: Spec, *given: object) -> OnnxRuntime:
        """A graph that others made is another kind of work under the same name."""
        from .pairs.model import OnnxModel

        if cls is OnnxRuntime and isinstance(given[0] if given else None, OnnxModel):
            from .pairs.runtime import GraphRuntime

            return super().__new__(GraphRuntime)
        if cls is OnnxRuntime and (
            "file" in spec.options or spec.options.get("exporter", EXPORTERS[0]) != EXPORTERS[0]
        ):
            from .file import OnnxFile

            return super().__new__(OnnxFile)
        if cls is OnnxRuntime and "quantize" in spec.options:
            from .int8 import OnnxInt8

            return super().__new__(OnnxInt8)
        return super().__new__(cls)

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec)
        self._model = open_model(model)
        self._dtype = spec.dtype or "fp32"
        if self._dtype not in DTYPES:
            raise UsageError(
                f"Backend 'onnxruntime' has no dtype {self._dtype!r}; it has {', '.join(DTYPES)}."
            )
        self._level = spec.choice("opt", tuple(OPTIMISATION), "all")
        self._exporter = spec.choice("exporter", EXPORTERS, EXPORTERS[0])
        self._threads = parse_threads(spec)
        self._provider = _provider(spec)
        self._scratch: Scratch = []
        self._cached = spec.choice("cache", ("on", "off"), "on") == "on"
        self._exports = Exports(self._model, spec, self._dtype, self._cached, self._seconds)
        self._sessions: dict[Path, Any] = {}

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        import onnxruntime as ort

        installed = ort.get_available_providers()
        offers = []
        for device, provider in PROVIDERS.items():
            usable = provider in installed
            note = f"onnxruntime {ort.__version__}, {provider}" if usable else _install(provider)
            if usable or device in ("cpu", "cuda"):
                offers.append(Offer(f"onnxruntime:{device}", usable, note))
        return offers

    @property
    def info(self) -> BackendInfo:
        import onnxruntime as ort

        return BackendInfo(
            spec=str(self.spec),
            name=self.name,
            device=self.spec.device or "cpu",
            dtype=self._dtype,
            versions=versions("onnxruntime", "onnx", "onnxscript", "torch", "transformers")
            | {"onnxruntime": ort.__version__},
            flags={
                "provider": self._provider,
                "opt": self._level,
                "threads": str(self._threads or "default"),
                "exporter": "torch.onnx dynamo",
            },
        )

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        return self._exports.outputs_skipped

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        exported = self._export(probe)
        path = exported.plain if sink is None else exported.traced
        if path not in self._sessions and _weights_of(path) > _HEAVY:
            self._sessions.clear()  # each has a copy of all weights
        session = self._session(path)
        named = self._ask(session, None, self._feed(session, probe), self._model.label)
        return exported.hand_on(named, sink)

    def layer_laps(self, probe: Probe) -> Mapping[str, float]:
        """One run of the plain graph under ONNX Runtime's profiler, nodes folded into points."""
        import onnx

        exported = self._export(probe)
        points = [point.name for point in exported.points]
        with tempfile.TemporaryDirectory(prefix="driftwalk-profile-") as folder:
            optimised = Path(folder) / "optimised.onnx"
            options = self._options()
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            options.optimized_model_filepath = str(optimised)
            for key, value in WEIGHTS_APART.items():
                options.add_session_config_entry(key, value)
            session = self._made(exported.plain, options)
            feed = self._feed(session, probe)
            for _ in range(2):  # the first warms up
                session.run(None, feed)
            profile = Path(session.end_profiling())
            graph = onnx.load(str(exported.plain), load_external_data=False).graph
            after = onnx.load(str(optimised), load_external_data=False).graph
            nodes = node_points(after, tensor_points(graph, points), points)
            return fold(profile, nodes, points)

    def _feed(self, session: Any, probe: Probe) -> dict[str, Array]:
        floats = FORMATS[self._dtype].dtype
        return {
            item.name: array.astype(floats) if array.dtype.kind == "f" else array
            for item in session.get_inputs()
            if (array := probe.inputs.get(item.name)) is not None
        }

    @staticmethod
    def _ask(
        session: Any, names: Sequence[str] | None, feed: Mapping[str, Any], what: str
    ) -> dict[str, Any]:
        """Outputs by name, all of them if none are named; what goes wrong is told in a line."""
        wanted = [o.name for o in session.get_outputs()] if names is None else list(names)
        try:
            found = session.run(wanted, dict(feed))
        except Exception as error:  # ONNX Runtime's errors share no base class but Exception
            raise BackendError(
                f"ONNX Runtime failed on {what}: {str(error).splitlines()[0][:400]}"
            ) from error
        return dict(zip(wanted, found, strict=True))

    def _export(self, probe: Probe) -> Exported:
        return self._exports.get(probe, self._look)

    def _options(self, level: str = "") -> Any:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(
            ort.GraphOptimizationLevel, OPTIMISATION[level or self._level]
        )
        if self._threads:
            options.intra_op_num_threads = self._threads
        return options

    def _made(self, graph: Path | bytes, options: Any) -> Any:
        """A session, on the provider that was asked for and no other."""
        import onnxruntime as ort

        source = str(graph) if isinstance(graph, Path) else graph
        try:
            session = ort.InferenceSession(source, options, providers=[self._provider])
        except Exception as error:
            raise BackendError(
                f"ONNX Runtime cannot load the graph of {self._model.label}: "
                f"{str(error).splitlines()[0][:400]}"
            ) from error
        if session.get_providers()[0] != self._provider:  # it falls back without a word
            raise BackendUnavailable(
                f"ONNX Runtime did not take {self._provider}; it would have run on "
                f"{session.get_providers()[0]}. {_install(self._provider)}"
            )
        return session

    def _session(self, path: Path) -> Any:
        if path not in self._sessions:
            start = time.perf_counter()
            session = self._made(path, self._options())
            self._sessions[path] = session
            self._seconds["load"] = self._seconds.get("load", 0.0) + time.perf_counter() - start
        return self._sessions[path]

    def _close(self) -> None:
        self._sessions.clear()
        self._exports.close()
        while self._scratch:
            self._scratch.pop().cleanup()


def _weights_of(path: Path) -> int:
    """Bytes of a graph and of the weights that lie beside it."""
    beside = [file for file in path.parent.glob("*.data") if file.is_file()]
    return sum(file.stat().st_size for file in (path, *beside))


def _provider(spec: Spec) -> str:
    """The execution provider a spec means; one that is not installed is an error with a remedy."""
    import onnxruntime as ort

    device = (spec.device or "cpu").partition(":")[0]
    wanted = spec.options.get("provider") or PROVIDERS.get(device)
    if wanted is None:
        raise UsageError(
            f"Backend 'onnxruntime' has no device {device!r}; it has {', '.join(PROVIDERS)}, or "
            "name a provider: provider=NAMEExecutionProvider."
        )
    installed = ort.get_available_providers()
    if wanted not in installed:
        raise BackendUnavailable(
            f"ONNX Runtime has no {wanted} here (it has {', '.join(installed)}). {_install(wanted)}"
        )
    return wanted


def _install(provider: str) -> str:
    packages = {
        "CUDAExecutionProvider": "onnxruntime-gpu",
        "TensorrtExecutionProvider": "onnxruntime-gpu",
        "OpenVINOExecutionProvider": "onnxruntime-openvino",
        "DmlExecutionProvider": "onnxruntime-directml",
    }
    package = packages.get(provider, "a build of onnxruntime that has it")
    return f"Install {package} for {provider}."
