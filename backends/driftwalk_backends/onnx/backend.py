"""What all backends have that go by the name `onnxruntime`; see the package for which there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from driftwalk.adapter import Backend, BackendInfo, Offer
from driftwalk.errors import UsageError
from driftwalk.spec import THREADS_HELP, Spec

from ..depth import Looks
from ..fingerprint import versions
from .export_cache import Scratch
from .sessions import Sessions, provider_offers

DTYPES = ("fp32", "fp16", "fp64")


class OnnxBackend(Looks, Backend):
    """A backend that has sessions of ONNX Runtime, and scratch folders."""

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

    def __init__(self, spec: Spec, label: str) -> None:
        super().__init__(spec)
        if spec.dtype not in ("", *DTYPES):
            raise UsageError(
                f"Backend 'onnxruntime' has no dtype {spec.dtype!r}; it has {', '.join(DTYPES)}."
            )
        self._sessions = Sessions(spec, label, self._seconds)
        self._cached = spec.choice("cache", ("on", "off"), "on") == "on"
        self._scratch: Scratch = []

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return provider_offers()

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

    def _close(self) -> None:
        self._sessions.close()
        while self._scratch:
            self._scratch.pop().cleanup()
