"""What all backends have that go by the name `onnxruntime`: options, and ONNX Runtime's sessions.

See the package for which backends there are.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from driftwalk.adapter import Backend, BackendInfo, Offer
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.spec import THREADS_HELP, Spec
from driftwalk.states import Probe
from driftwalk.switches import Switch, named

from ..calls import first_line
from ..depth import Looks
from ..fingerprint import versions
from .export_options import OPTIONS as EXPORT_OPTIONS
from .graph import OnnxGraph
from .optimisers import changed, refuse_unknown
from .reading import hash_of, read_graph
from .saturation import saturates
from .session_config import read_entries
from .switching import spec_without, switches_of

DTYPES = ("fp32", "fp16", "fp64")
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "dml": "DmlExecutionProvider",
}
OPTIMISATION = {
    "off": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_WEIGHTS_APART = {
    "session.optimized_model_external_initializers_file_name": "weights.bin",
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
}
"""How ONNX Runtime writes an optimised graph of more than 2 GB."""
_BESIDE = "session.model_external_initializers_file_folder_path"
"""Where ONNX Runtime looks for the weights of a graph that comes as bytes."""
_UNPACKED = "session.disable_prepacking", "1"
"""Weights as they lie in the file: most of what a session costs is packing them anew."""
_THEN_IDLE = "session.force_spinning_stop", "1"
"""Between runs its threads wait without a core each, which the other side's run needs."""
_HEAVY = 1 << 28
"""Bytes of weights from which on only one session, traced or plain, is kept at a time."""


class OnnxBackend(Looks, Backend):
    """A backend that has sessions of ONNX Runtime, and folders that go when it is closed."""

    name: ClassVar[str] = "onnxruntime"
    options: ClassVar[Mapping[str, str]] = {
        "opt": "graph optimisation level: off, basic, extended or all (default all)",
        "disable": "graph transformers and rewrite rules to leave out, with ; between them",
        "config": "session entries that change numbers, KEY:VALUE with ; between them",
        "provider": "an execution provider by its full name (default: the device's)",
        "cache": "on or off: reuse an export of the same model and shapes (default on)",
        "file": "verify this .onnx file, or a folder of them, instead of an export",
        "exporter": "torch (default), transformers, optimum, or auto: torch, else transformers",
        "quantize": "dynamic-int8: round the matrices of driftwalk's own export to eight bits",
        "exclude": "nodes that quantize= leaves in float, with ; between them (driftwalk repair)",
        "threads": THREADS_HELP,
        **EXPORT_OPTIONS,
    }

    def __init__(self, spec: Spec, label: str) -> None:
        super().__init__(spec)
        if spec.dtype not in ("", *DTYPES):
            raise UsageError(
                f"Backend 'onnxruntime' has no dtype {spec.dtype!r}; it has {', '.join(DTYPES)}."
            )
        if "exclude" in spec.options and "quantize" not in spec.options:
            raise UsageError(f"{spec}: exclude= is for quantize=, and leaves nodes in float.")
        self._sessions = Sessions(spec, label, self._seconds)
        self._cached = spec.choice("cache", ("on", "off"), "on") == "on"
        self._scratch = ExitStack()

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

    def _info(self, dtype: str, packages: Sequence[str], flags: Mapping[str, str]) -> BackendInfo:
        import onnxruntime as ort

        return BackendInfo(
            spec=str(self.spec),
            name=self.name,
            device=self.spec.device or "cpu",
            dtype=dtype,
            versions=versions("onnxruntime", "onnx", *packages) | {"onnxruntime": ort.__version__},
            flags={**self._sessions.flags, **flags},
        )

    @property
    def _on_cpu(self) -> bool:
        return self.spec.device in ("", "cpu")

    def _file_info(
        self,
        graphs: Sequence[OnnxGraph],
        packages: Sequence[str] = (),
        exporter: str = "none: a file",
        points: str = "",
    ) -> BackendInfo:
        """What is said of graphs that others made."""
        flags = {
            "exporter": exporter,
            "file": ", ".join(graph.path.name for graph in graphs),
            "sha256": ", ".join(hash_of(graph.path)[:16] for graph in graphs),
            "quantised": "yes" if any(graph.quantised for graph in graphs) else "",
            "points": points,
        }
        if flags["quantised"] and self._on_cpu and saturates():
            flags["int8_products"] = "saturate"
        if self._sessions.level in ("extended", "all") and any(
            graph.fuses_int4 for graph in graphs
        ):
            flags["int4_products"] = "int8 inputs"
        given = {flag: text for flag, text in flags.items() if text}
        return self._info(common_dtype(graphs), packages, given)

    def _check_dtype(self, graphs: Sequence[OnnxGraph]) -> None:
        dtypes = {graph.dtype for graph in graphs}
        if self.spec.dtype and dtypes != {self.spec.dtype}:
            raise UsageError(
                f"{self.spec}: the graph's weights are {', '.join(sorted(dtypes))}. Leave the "
                "dtype out of the spec: a file is run as it is."
            )

    @abstractmethod
    def _files(self, probe: Probe) -> Sequence[Path]:
        """The graphs that are run on a probe."""

    @abstractmethod
    def _like(self, spec: Spec) -> Backend:
        """The same with another spec; what the two have in common is not made again."""

    def switches(self, probe: Probe) -> tuple[Switch, ...]:
        files = self._files(probe)
        names = (name for file in files for name in self._sessions.transformers_of(file))
        int4 = any(read_graph(file).fuses_int4 for file in files)
        return tuple(switches_of(self.spec, dict.fromkeys(names), int4))

    def without(self, off: Collection[str]) -> Backend:
        made = self._like(spec_without(self.spec, off))
        made.make_probe = self.make_probe
        return made

    def _close(self) -> None:
        self._sessions.close()
        self._scratch.close()


def common_dtype(graphs: Sequence[OnnxGraph]) -> str:
    """What some graphs compute in; fp32 where they differ."""
    dtypes = {graph.dtype for graph in graphs}
    return dtypes.pop() if len(dtypes) == 1 else "fp32"


class Sessions:
    """Makes the sessions of one backend, keeps those of whole files, and books what they cost."""

    def __init__(self, spec: Spec, label: str, seconds: MutableMapping[str, float]) -> None:
        self._label = label
        self._seconds = seconds
        self.level = spec.choice("opt", tuple(OPTIMISATION), "all")
        self._threads = spec.count("threads")
        self._provider = _provider(spec)
        self._entries = read_entries(spec.options.get("config", ""))
        self._disabled: tuple[str, ...] = ()
        left_out = named(spec.options.get("disable", ""))
        refuse_unknown(left_out, lambda graph: self._make(graph, self._loud("all")))
        self._disabled = left_out
        self._kept: dict[Path, Any] = {}
        self._exposed: dict[tuple[Path, frozenset[str], str], Any] = {}

    @property
    def flags(self) -> dict[str, str]:
        """What of it changes the arithmetic."""
        threads = str(self._threads or "default")
        flags = {"provider": self._provider, "opt": self.level, "threads": threads}
        flags |= {"disable": ", ".join(self._disabled)} if self._disabled else {}
        return flags | self._entries

    def transformers_of(self, path: Path) -> tuple[str, ...]:
        """The graph transformers that change a graph when a session of it is made."""
        options = self._loud()
        options.add_session_config_entry(*_UNPACKED)
        return changed(lambda: self._make(path, options))

    def of(self, path: Path, alone: bool = False) -> Any:
        """The session of a graph as it lies in a file; a heavy one can be kept `alone`."""
        if path not in self._kept:
            files = [path, *path.parent.glob("*.data")]
            if alone and sum(file.stat().st_size for file in files if file.is_file()) > _HEAVY:
                self._kept.clear()  # each has a copy of all weights
            self._kept[path] = self._make(path, self._options())
        return self._kept[path]

    def exposing(
        self,
        graph: OnnxGraph,
        names: Collection[str],
        level: str = "",
        packed: bool = True,
        keep: bool = False,
    ) -> Any:
        """A session of a graph with some of its tensors as outputs too."""
        key = graph.path, frozenset(names), level
        session = self._exposed.get(key)
        if session is None:
            session = self.of_bytes(graph.exposing(names), graph.path.parent, level, packed)
        if keep:
            self._exposed[key] = session
        return session

    def of_bytes(self, graph: bytes, folder: Path, level: str = "", packed: bool = True) -> Any:
        """A session of a graph whose weights lie in a folder; it is not kept.

        `packed=False` is for what runs once: such a session is made much faster.
        """
        options = self._options(level)
        options.add_session_config_entry(_BESIDE, str(folder.resolve()))
        if not packed:
            options.add_session_config_entry(*_UNPACKED)
        return self._make(graph, options)

    def writing_optimised(self, path: Path, target: Path, profile: Path | None = None) -> Any:
        """A session of a file that writes down what it makes of the graph.

        With the beginning of a `profile`'s name it can be run, and is profiled.
        """
        options = self._options()
        options.optimized_model_filepath = str(target)
        for key, value in _WEIGHTS_APART.items():
            options.add_session_config_entry(key, value)
        if profile is None:
            options.add_session_config_entry(*_UNPACKED)
        else:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        return self._make(path, options)

    def _loud(self, level: str = "") -> Any:
        """Options of a session whose log is read."""
        options = self._options(level)
        options.log_severity_level = 0
        return options

    def _options(self, level: str = "") -> Any:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry(*_THEN_IDLE)
        for entry in self._entries.items():
            options.add_session_config_entry(*entry)
        options.graph_optimization_level = getattr(
            ort.GraphOptimizationLevel, OPTIMISATION[level or self.level]
        )
        if self._threads:
            options.intra_op_num_threads = self._threads
        return options

    def _make(self, graph: Path | bytes, options: Any) -> Any:
        """A session, on the provider that was asked for and no other."""
        import onnxruntime as ort

        start = time.perf_counter()
        source = str(graph) if isinstance(graph, Path) else graph
        without = {"disabled_optimizers": list(self._disabled)} if self._disabled else {}
        try:
            session = ort.InferenceSession(source, options, [self._provider], **without)
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
        """Outputs by name, all of them if none are named, for as much of a feed as is taken."""
        wanted = [o.name for o in session.get_outputs()] if names is None else list(names)
        taken = {i.name: feed[i.name] for i in session.get_inputs() if i.name in feed}
        try:
            found = session.run(wanted, taken)
        except Exception as error:  # ONNX Runtime's errors share no base class but Exception
            raise BackendError(f"ONNX Runtime failed on {what}: {first_line(error)}") from error
        return dict(zip(wanted, found, strict=True))

    def close(self) -> None:
        self._kept.clear()
        self._exposed.clear()

    def __len__(self) -> int:
        return len(self._kept)


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
