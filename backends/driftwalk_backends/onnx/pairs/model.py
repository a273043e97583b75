"""An ONNX graph that is itself the model: nobody here knows the torch code it came from."""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from driftwalk.errors import UsageError

from ...fingerprint import versions
from ...sources import GRAPH, LoadedModel
from ..graph import OnnxGraph
from ..reading import hash_of, read_graph

_OF_TORCH = ("module", "_tokenizer", "_folder", "_layouts", "_blocks")


class OnnxModel(LoadedModel):
    """A graph in a file. What a torch model has beside that is refused by name, not by a crash."""

    def __init__(self, path: Path, label: str = "") -> None:
        # Not the parent's: there is no module. Reading is cheap, weights beside the graph stay.
        self.path = path
        self.label = label or str(path)
        self.source = GRAPH
        self._notes, self._layouts, self._blocks = (), {}, None
        self.graph: OnnxGraph = read_graph(path)

    def __getattr__(self, name: str) -> NoReturn:
        if name in _OF_TORCH:
            raise UsageError(self.refusal)
        raise AttributeError(name)

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

    @property
    def has_known_code(self) -> bool:
        return True

    @property
    def versions(self) -> dict[str, str]:
        return versions("onnx", "onnxruntime", "driftwalk")

    @cached_property
    def weight_files(self) -> tuple[str, ...]:
        """Files in the graph's folder that hold weights."""
        found = {
            entry.value
            for tensor in self.graph.proto.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        return tuple(sorted(found))

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
