"""`onnxruntime,quantize=dynamic-int8`: driftwalk's own export, its matrices in eight bits.

Convolutions stay as they are: they are few in a transformer, and lose most.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

from driftwalk.adapter import BackendInfo
from driftwalk.cache import key_of
from driftwalk.errors import BackendError, UsageError
from driftwalk.files import sha256_of
from driftwalk.spec import Spec
from driftwalk.states import Probe
from driftwalk.workers import in_threads

from ..calls import first_line
from ..fingerprint import versions
from ..loaded import LoadedModel
from .export import NAMES, PLAIN, TRACED, Exported, read_export, silence
from .export_cache import EVIDENCE, MADE_WITH, kept
from .parts import open_parts
from .quantised import honest_model
from .runtime import OnnxRuntime

QUANTISATIONS = ("dynamic-int8",)


class OnnxInt8(OnnxRuntime):
    """Exports as its base does; ONNX Runtime's own quantiser then rounds the matrices."""

    _only: ClassVar[str] = f"quantize={QUANTISATIONS[0]}"

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec, model)
        spec.choice("quantize", QUANTISATIONS, QUANTISATIONS[0])
        if self._dtype != "fp32":
            raise UsageError(f"{spec}: {self._only} starts from fp32; leave the dtype out.")
        self._rounded: dict[Path, Exported] = {}

    @property
    def info(self) -> BackendInfo:
        base = super().info
        flags = {**base.flags, "quantised": QUANTISATIONS[0]}
        return BackendInfo(base.spec, base.name, base.device, base.dtype, base.versions, flags)

    def prepare(self, probe: Probe) -> None:
        """Export now: what it may honestly compute is told from the graph."""
        self._export(probe)

    def honest_model(self) -> LoadedModel | None:
        """The model, quantised alike by driftwalk itself; see quantised.py."""
        latest = next(reversed(self._rounded.values()), None)
        return None if latest is None else honest_model(self._model, open_parts(latest.plain))

    def _export(self, probe: Probe) -> Exported:
        whole = super()._export(probe)
        if whole.folder not in self._rounded:
            self._rounded[whole.folder] = read_export(self._quantised(whole))
        return self._rounded[whole.folder]

    def _quantised(self, whole: Exported) -> Path:
        def make(folder: Path) -> None:
            shutil.copy(whole.folder / NAMES, folder / NAMES)
            for graph in (TRACED, PLAIN):
                _quantise(whole.folder / graph, folder / graph)

        key = ""
        if self._cached and self._model.has_known_code:
            made_by = str(versions("onnxruntime", "onnx"))
            # By what it is made from, to the last byte: whether that is the model's is settled.
            files = sorted(f for f in whole.folder.iterdir() if f.name not in (MADE_WITH, EVIDENCE))
            hashes = in_threads(sha256_of, files)
            key = key_of(self._only, *(file.name for file in files), *hashes, made_by)
        return kept("onnx-int8", key, make, self._scratch)

    def _close(self) -> None:
        self._rounded.clear()
        super()._close()


def _quantise(graph: Path, into: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(graph))
    del model.graph.value_info[:]  # the quantiser changes nodes, and then trips over old shapes
    try:
        with silence():
            quantize_dynamic(
                model,
                str(into),
                op_types_to_quantize=["MatMul", "Gather"],
                weight_type=QuantType.QInt8,
                use_external_data_format=True,
            )
    except Exception as error:  # a graph that its passes do not know fails in any way
        raise BackendError(
            f"ONNX Runtime could not quantise the graph: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
