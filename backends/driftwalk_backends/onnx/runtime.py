"""The `onnxruntime` backend: the model exported to ONNX and run by ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftwalk.adapter import BackendInfo, Sink
from driftwalk.dtypes import FORMATS, Array
from driftwalk.errors import UsageError
from driftwalk.spec import Spec
from driftwalk.states import Probe

from ..sources import torch_model
from .backend import OnnxBackend
from .export import Exported
from .export_cache import Exports
from .layer_times import fold, node_points, tensor_points
from .sessions import WEIGHTS_APART


class OnnxRuntime(OnnxBackend):
    """Exports once for the shapes of a probe, then runs every probe of those shapes."""

    def __init__(self, spec: Spec, model: object) -> None:
        if type(self) is OnnxRuntime and {"file", "quantize"} & spec.options.keys():
            raise UsageError(
                f"{spec}: OnnxRuntime runs its own float export. driftwalk.backend(spec, model) "
                "makes the backend that a spec names."
            )
        self._model = torch_model(model)
        super().__init__(spec, self._model.label)
        self._dtype = spec.dtype or "fp32"
        self._exports = Exports(self._model, spec, self._dtype, self._cached, self._seconds)

    @property
    def info(self) -> BackendInfo:
        packages = ("onnxscript", "torch", "transformers")
        return self._info(self._dtype, packages, {"exporter": "torch.onnx dynamo"})

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        return self._exports.outputs_skipped

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        exported = self._export(probe)
        session = self._sessions.of(exported.plain if sink is None else exported.traced, alone=True)
        named = self._sessions.ask(session, None, self._feed(session, probe), self._model.label)
        return exported.hand_on(named, sink)

    def layer_laps(self, probe: Probe) -> Mapping[str, float]:
        """One run of the plain graph under ONNX Runtime's profiler, nodes folded into points."""
        import onnx

        exported = self._export(probe)
        points = [point.name for point in exported.points]
        with tempfile.TemporaryDirectory(prefix="driftwalk-profile-") as folder:
            optimised = Path(folder) / "optimised.onnx"
            options = self._sessions.options()
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            options.optimized_model_filepath = str(optimised)
            for key, value in WEIGHTS_APART.items():
                options.add_session_config_entry(key, value)
            session = self._sessions.make(exported.plain, options)
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

    def _export(self, probe: Probe) -> Exported:
        return self._exports.get(probe, self._look)

    def _close(self) -> None:
        self._exports.close()
        super()._close()
