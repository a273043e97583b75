"""Honest families that change no module: copies, other runtimes, exporters and optimisers."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import driftwalk

from ..case import EVERY, WHOLE, Done, NoPlace, Site, family
from ..pipelines import graph
from ..places import mlps, products

ALL = (*EVERY, "int8-generate")


@family("machine", "honest", ALL)
def copied_alone(site: Site) -> Done:
    """Nothing: a copy"""
    return Done(copy.deepcopy(site.module), "nothing")


def _spec(site: Site, spec: str) -> Done:
    return Done(driftwalk.backend(spec, site.module), f"run as {spec}")


@family("machine", "honest", WHOLE)
def graph_not_optimised(site: Site) -> Done:
    """Exported, and run by ONNX Runtime without its optimisations"""
    return _spec(site, "onnxruntime,opt=off")


@family("machine", "honest", WHOLE)
def graph_by_transformers(site: Site) -> Done:
    """Exported by transformers' own exporter, and run by ONNX Runtime"""
    if not hasattr(site.module, "config"):
        raise NoPlace
    return _spec(site, "onnxruntime,exporter=transformers")


@family("machine", "honest", WHOLE)
def graph_of_others(site: Site) -> Done:
    """Exported by PyTorch's own exporter without driftwalk, and run as that file"""
    path = _folder() / "model.onnx"
    graph(site.module, site.inputs, path)
    return Done(f"onnxruntime,file={path}", "exported as a file of others", options=_missing())


@family("machine", "honest", (*WHOLE, "selftest"))
def graph_quantised_by_driftwalk(site: Site) -> Done:
    """Exported, and quantised dynamically to eight bits"""
    if not products(site.module):
        raise NoPlace
    return Done("onnxruntime,quantize=dynamic-int8", "dynamic int8")


@family("machine", "honest", WHOLE)
def graph_fused_and_quantised(site: Site) -> Done:
    """A BERT fused and then quantised dynamically by ONNX Runtime's own tools"""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    kind = str(getattr(getattr(site.module, "config", None), "model_type", ""))
    if kind != "bert":
        raise NoPlace
    folder = _folder()
    _fused(site, folder)
    quantize_dynamic(folder / "fused.onnx", folder / "int8.onnx", weight_type=QuantType.QInt8)
    path = folder / "int8.onnx"
    return Done(f"onnxruntime,file={path}", "fused, then dynamic int8", options=_missing())


@family("machine", "honest", WHOLE)
def graph_quantised_by_others(site: Site) -> Done:
    """A file of PyTorch's exporter, quantised dynamically by ONNX Runtime's own tools"""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    if not products(site.module):
        raise NoPlace
    folder = _folder()
    graph(site.module, site.inputs, folder / "model.onnx")
    path = folder / "int8.onnx"
    quantize_dynamic(folder / "model.onnx", path, weight_type=QuantType.QInt8)
    return Done(f"onnxruntime,file={path}", "dynamic int8 by others", options=_missing())


@family("machine", "honest", WHOLE)
def graph_fused(site: Site) -> Done:
    """A transformer fused by ONNX Runtime's own tools"""
    folder = _folder()
    _fused(site, folder)
    return Done(f"onnxruntime,file={folder / 'fused.onnx'}", "fused", options=_missing())


def _fused(site: Site, folder: Path) -> None:
    from onnxruntime.transformers import optimizer

    config: Any = getattr(site.module, "config", None)
    if getattr(config, "model_type", "") not in ("bert", "gpt2", "roberta", "vit", "distilbert"):
        raise NoPlace
    kind = {"gpt2": "gpt2", "vit": "vit"}.get(config.model_type, "bert")
    graph(site.module, site.inputs, folder / "model.onnx")
    sizes = {"num_heads": config.num_attention_heads, "hidden_size": config.hidden_size}
    made = optimizer.optimize_model(str(folder / "model.onnx"), model_type=kind, **sizes)
    made.save_model_to_file(str(folder / "fused.onnx"))


def _missing() -> dict[str, Any]:
    """States of layers need not be found in a graph of others; what is found must be right."""
    return {"allow_missing": ("embed", "*layer*", "*norm*")}


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="proving-"))


@family("lie", "fault", WHOLE)
def trace_claims_a_coarse_dtype(site: Site) -> Done:
    """A recording of a faulty module in float32, which says that it was computed in bf16"""
    path = site.choose([one.down for one in mlps(site.module)] or products(site.module))
    part: Any = site.module.get_submodule(path)
    with torch.no_grad():
        part.weight.mul_(1 + 2**-9)
    probe = driftwalk.Probe(dict(site.inputs))
    trace = driftwalk.backend("torch", site.module).trace(probe)
    said = replace(trace.backend, dtype="bf16", spec="torch:cpu:bf16")
    file = _folder() / "said.trace"
    replace(trace, backend=said).save(file)
    return Done(f"trace:{file}", f"{path}.weight times 1.002, said to be bf16", (path,))
