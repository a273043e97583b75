"""ONNX Runtime's sessions: the provider, the optimisation level and the threads of a spec."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from driftwalk.adapter import Offer
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.spec import Spec

from ..calls import first_line
from .graph import OnnxGraph

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
UNPACKED = "session.disable_prepacking", "1"
"""Weights as they lie in the file: most of what a session costs is packing them anew."""
_HEAVY = 1 << 28
"""Bytes of weights from which on only one session, traced or plain, is kept at a time."""
OPTIMISATION = {
    "off": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


def provider_offers() -> list[Offer]:
    """What of ONNX Runtime is installed here."""
    import onnxruntime as ort

    installed = ort.get_available_providers()
    offers = []
    for device, provider in PROVIDERS.items():
        usable = provider in installed
        note = f"onnxruntime {ort.__version__}, {provider}" if usable else _install(provider)
        if usable or device in ("cpu", "cuda"):
            offers.append(Offer(f"onnxruntime:{device}", usable, note))
    return offers


class Sessions:
    """Makes the sessions of one backend, keeps those of whole files, and books what they cost."""

    def __init__(self, spec: Spec, label: str, seconds: MutableMapping[str, float]) -> None:
        self._label = label
        self._seconds = seconds
        self.level = spec.choice("opt", tuple(OPTIMISATION), "all")
        self._threads = spec.count("threads")
        self._provider = _provider(spec)
        self._kept: dict[Path, Any] = {}

    @property
    def flags(self) -> dict[str, str]:
        """What of it changes the arithmetic."""
        threads = str(self._threads or "default")
        return {"provider": self._provider, "opt": self.level, "threads": threads}

    def of(self, path: Path, alone: bool = False) -> Any:
        """The session of a graph as it lies in a file; a heavy one can be kept `alone`."""
        if path not in self._kept:
            if alone and _weights_of(path) > _HEAVY:
                self._kept.clear()  # each has a copy of all weights
            self._kept[path] = self.make(path, self.options())
        return self._kept[path]

    def exposing(
        self, graph: OnnxGraph, names: Iterable[str], level: str = "", packed: bool = True
    ) -> Any:
        """A session of a graph with some of its tensors as outputs too; it is not kept.

        `packed=False` is for what runs once: such a session is made much faster.
        """
        return self.of_bytes(graph.exposing(names), graph.folder, level, packed)

    def of_bytes(self, graph: bytes, folder: Path, level: str = "", packed: bool = True) -> Any:
        """A session of a graph whose weights lie in a folder; it is not kept."""
        options = self.options(level)
        options.add_session_config_entry(BESIDE, str(folder.resolve()))
        if not packed:
            options.add_session_config_entry(*UNPACKED)
        return self.make(graph, options)

    def options(self, level: str = "") -> Any:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(
            ort.GraphOptimizationLevel, OPTIMISATION[level or self.level]
        )
        if self._threads:
            options.intra_op_num_threads = self._threads
        return options

    def make(self, graph: Path | bytes, options: Any) -> Any:
        """A session, on the provider that was asked for and no other."""
        import onnxruntime as ort

        start = time.perf_counter()
        source = str(graph) if isinstance(graph, Path) else graph
        try:
            session = ort.InferenceSession(source, options, providers=[self._provider])
        except Exception as error:
            raise BackendError(
                f"ONNX Runtime cannot load the graph of {self._label}: {first_line(error)}"
            ) from error
        if session.get_providers()[0] != self._provider:  # it falls back without a word
            raise BackendUnavailable(
                f"ONNX Runtime did not take {self._provider}; it would have run on "
                f"{session.get_providers()[0]}. {_install(self._provider)}"
            )
        taken = time.perf_counter() - start
        self._seconds["load"] = self._seconds.get("load", 0.0) + taken
        return session

    @staticmethod
    def ask(
        session: Any, names: Sequence[str] | None, feed: Mapping[str, Any], what: str
    ) -> dict[str, Any]:
        """Outputs by name, all of them if none are named; what goes wrong is told in a line."""
        wanted = [o.name for o in session.get_outputs()] if names is None else list(names)
        try:
            found = session.run(wanted, dict(feed))
        except Exception as error:  # ONNX Runtime's errors share no base class but Exception
            raise BackendError(f"ONNX Runtime failed on {what}: {first_line(error)}") from error
        return dict(zip(wanted, found, strict=True))

    def close(self) -> None:
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)


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
