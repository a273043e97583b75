"""An ONNX graph that is itself the model: nobody here knows its torch code."""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ..graph import OnnxGraph
from ..reading import hash_of, read_graph


class OnnxModel:
    """A graph in a file. Reading it is cheap: weights beside the graph stay where they are."""

    source: ClassVar[str] = "ONNX graph"
    blocks: ClassVar[None] = None
    """The stack of blocks that a user named: one of torch modules, which a graph has not."""
    notes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: Path, label: str = "") -> None:
        self.path = path
        self.label = label or str(path)
        self.graph: OnnxGraph = read_graph(path)

    @property
    def refusal(self) -> str:
        """What to say to whoever asks for the torch model."""
        return (
            f"{self.label} is an ONNX graph: there is no torch model that torch, emulated or truth "
            "could run. Its backends are onnxruntime (opt=off runs it as written) and "
            "onnxruntime,file=OTHER.onnx; its inputs are arrays."
        )

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the graph and of the weights that lie beside it."""
        digest = hashlib.sha256(hash_of(self.path).encode())
        for name in self.weight_files:
            digest.update(hash_of(self.path.parent / name).encode())
        return digest.hexdigest()

    @cached_property
    def weight_files(self) -> tuple[str, ...]:
        """Files in the graph's folder that hold weights."""
        entries = [entry for t in self.graph.weights.values() for entry in t.external_data]
        return tuple(sorted({entry.value for entry in entries if entry.key == "location"}))

    def describe(self) -> dict[str, str]:
        proto: Any = self.graph.proto
        opsets = ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in proto.opset_import)
        made_by = f" by {proto.producer_name[:80]}" if proto.producer_name else ""
        return {
            "label": self.label,
            "source": self.source,
            "class": f"ONNX graph{made_by}, {len(self.graph.nodes)} nodes, opset {opsets}",
            "parameters": str(sum(math.prod(t.dims) for t in proto.graph.initializer)),
            "fingerprint": self.fingerprint,
            "weights": ", ".join(self.weight_files) or "in the graph",
            "hidden_states": "",
        }
