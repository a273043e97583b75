"""Modules to leave in float, in the words of the tools that quantise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def lists_for(tool: str, modules: Sequence[str], sources: Mapping[str, str]) -> dict[str, str]:
    """By the name of each tool that may have made the candidate; `tool` is its backend.

    `sources` are the names that an artefact has for modules: nodes of a graph, tensors of a file.
    """
    if not modules:
        return {}
    named = list(dict.fromkeys(sources[path] for path in modules if path in sources))
    if tool == "onnxruntime":
        nodes = json.dumps(named)
        return {"onnxruntime.quantization": f"nodes_to_exclude={nodes}"} if named else {}
    if tool in ("gguf", "llamacpp"):
        return {"llama-quantize": " ".join(f"--tensor-type {name}=f16" for name in named)}
    paths = json.dumps(list(modules))
    keep = "isinstance(module, torch.nn.Linear) and path not in kept"
    return {
        "torchao": f"kept = {paths}\nquantize_(model, config, lambda module, path: {keep})",
        "transformers": f"modules_to_not_convert={paths}",
    }
