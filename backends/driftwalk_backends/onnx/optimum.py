"""Optimum's exporter, as its command line runs it. It needs an older transformers than most do."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from driftwalk.cache import key_of
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.spec import Spec

from ..calls import first_line
from ..fingerprint import versions
from ..loaded import LoadedModel
from ..probes import make_probe
from .export import silence
from .export_cache import Scratch, kept

_PAST = "-with-past"


def check(module: nn.Module, spec: Spec) -> None:
    """Refuse what optimum can never export, before anything is loaded."""
    if not hasattr(module, "config") or not hasattr(module.config, "model_type"):
        raise UsageError(
            f"{spec}: optimum exports transformers models only, not {type(module).__name__}."
        )
    if spec.dtype not in ("", "fp32"):
        raise UsageError(f"{spec}: optimum's export is made in fp32; leave the dtype out.")
    installed = versions("transformers", "optimum-onnx")
    if "optimum-onnx" not in installed or find_spec("optimum.exporters.onnx") is None:
        raise BackendUnavailable(
            f"exporter=optimum needs optimum-onnx, which needs transformers below 4.58; here is "
            f"transformers {installed.get('transformers', 'none')}. Install both into an "
            "environment of their own: pip install 'driftwalk[optimum]'. Or export there "
            "(optimum-cli export onnx) and give the graph here: onnxruntime,file=FOLDER."
        )


def exported(model: LoadedModel, cached: bool, scratch: Scratch) -> Path:
    """The folder of optimum's export of a model; stored where it may be."""

    def make(folder: Path) -> None:
        export(model.at("fp32", "cpu"), folder)

    key = ""
    if cached and model.has_known_code:
        packages = versions("torch", "transformers", "optimum", "optimum-onnx", "onnx")
        # By what the model itself gives now, too: a patched function is in no fingerprint.
        evidence = model.evidence.of(make_probe(model), "fp32")
        key = key_of("optimum", model.fingerprint, evidence, str(packages)) if evidence else ""
    return kept("optimum", key, make, scratch)


def export(module: nn.Module, folder: Path) -> None:
    """Write optimum's graphs into a folder: with a past where the model can have one."""
    from optimum.exporters.onnx import onnx_export_from_model
    from optimum.exporters.tasks import TasksManager

    own: Any = copy.deepcopy(module)  # optimum changes the config of what it exports
    try:
        with silence():
            task = TasksManager.infer_task_from_model(own)
            known = TasksManager.get_supported_tasks_for_model_type(own.config.model_type, "onnx")
            if f"{task}{_PAST}" in known:
                task = f"{task}{_PAST}"
            onnx_export_from_model(own, folder, task=task, do_validation=False)
    except Exception as error:  # every architecture fails in its own way
        raise BackendError(
            f"optimum could not export {type(module).__name__}: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
