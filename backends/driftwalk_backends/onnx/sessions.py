"""A session of ONNX Runtime for a question that is asked once: on the CPU, nothing optimised."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def quick_session(graph: bytes, folder: Path) -> Any:
    """A graph as written; weights beside it are looked for in a folder, and not packed anew."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(folder.resolve())
    )
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
