"""Which exporters a spec asks for: `exporter=torch`, `transformers`, or `auto`, both in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from torch import nn

from driftwalk.errors import BackendUnavailable, UsageError
from driftwalk.spec import Spec

from ..fingerprint import versions
from .exporters import Exporter, TorchExporter
from .transformers_exporter import TransformersExporter

OPTIONS: Mapping[str, str] = {
    "dynamic": "on or off: axes have any length, and one graph serves all shapes (default off)",
    "opset": "for exporter=transformers: the ONNX opset to write (default: the newest it knows)",
    "export_limit": "seconds after which an export is given up (default: none)",
}
ONNX = ("onnx", "onnxscript")
"""Packages that an exporter to ONNX needs."""
OWN_EXPORTERS = ("torch", "transformers", "auto")


def exporters_for(spec: Spec, module: nn.Module) -> tuple[Exporter, ...]:
    """Those that a spec names, in the order in which they are tried."""
    chosen = spec.choice("exporter", OWN_EXPORTERS, "torch")
    spec.count("export_limit")  # one that is none is refused now
    dynamic = spec.choice("dynamic", ("on", "off"), "off") == "on"
    if chosen == "torch":
        if "opset" in spec.options:
            raise UsageError(f"{spec}: opset= is an option of exporter=transformers.")
        return (TorchExporter(dynamic),)
    opset = spec.count("opset")
    why = why_not_transformers(module)
    if chosen == "auto":
        return (TorchExporter(dynamic), *(() if why else (TransformersExporter(dynamic, opset),)))
    if why:
        raise why
    return (TransformersExporter(dynamic, opset),)


def why_not_transformers(
    module: nn.Module, needs: Sequence[str] = ONNX
) -> BackendUnavailable | UsageError | None:
    """Why transformers' own exporter cannot be asked for this model here; None where it can."""
    from transformers import PreTrainedModel

    if not isinstance(module, PreTrainedModel):
        return UsageError(
            f"exporter=transformers exports transformers models only, not {type(module).__name__}."
        )
    if find_spec("transformers.exporters") is None:
        here = versions("transformers").get("transformers", "none")
        return BackendUnavailable(
            "exporter=transformers needs transformers.exporters, which transformers 5.16 and later "
            f"have; here is transformers {here}. Install a newer one (pip install -U "
            "transformers), or ask for exporter=torch or exporter=optimum."
        )
    if missing := [name for name in needs if find_spec(name) is None]:
        return BackendUnavailable(
            f"exporter=transformers needs {' and '.join(missing)}. Install it: "
            f"pip install 'driftwalk[{needs[0]}]'."
        )
    return None
