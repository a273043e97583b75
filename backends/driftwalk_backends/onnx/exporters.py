"""Who makes a graph of a torch model: `exporter=torch`, `transformers`, or `auto`, both in turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import nn
from torch.export import Dim

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.spec import Spec

from ..calls import Inputs
from ..fingerprint import versions
from .exposed import Exposed

OPTIONS: Mapping[str, str] = {
    "dynamic": "on or off: axes have any length, and one graph serves all shapes (default off)",
    "opset": "for exporter=transformers: the ONNX opset to write (default: the newest it knows)",
    "export_limit": "seconds after which an export is given up (default: none)",
}
OWN_EXPORTERS = ("torch", "transformers", "auto")


class ExportFailedError(BackendError):
    """This exporter makes no graph of this model; another one may."""


class Exporter(ABC):
    """Makes an ONNX program of a model that gives its states."""

    label: ClassVar[str]
    for_export: ClassVar[bool]
    """Whether it is given a copy of the model that is easy to trace, or the model as it is."""
    one_for_all: bool = False
    """Whether one graph of it serves probes of all shapes."""

    @property
    def key(self) -> tuple[str, ...]:
        """What else a graph of it depends on: others are stored apart."""
        return ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report must say of it."""
        return ()

    @abstractmethod
    def program(self, exposed: Exposed, outputs: Sequence[str]) -> Any:
        """The program, its outputs called so."""

    def added(self, module: nn.Module, inputs: Inputs, names: Sequence[str]) -> dict[str, Array]:
        """The inputs that it added to those of the model, for a probe."""
        return {}


class TorchExporter(Exporter):
    """`torch.onnx.export`: our own export."""

    label = "torch.onnx dynamo"
    for_export = True

    def __init__(self, dynamic: bool = False) -> None:
        self.one_for_all = dynamic

    @property
    def key(self) -> tuple[str, ...]:
        return ("dynamic",) if self.one_for_all else ()

    def program(self, exposed: Exposed, outputs: Sequence[str]) -> Any:
        called = exposed.called
        axes = tuple(
            {called.open_axes[name]: Dim.DYNAMIC} if name in called.open_axes else None
            for name in called.tensors
        )
        everything = self.one_for_all and not called.open_axes
        if everything:  # what the model fixes is fixed; see `Exported.takes`
            axes = tuple(dict.fromkeys(range(t.ndim), Dim.AUTO) for t in called.tensors.values())
        return torch.onnx.export(
            exposed,
            tuple(called.tensors.values()),
            dynamo=True,
            input_names=list(called.tensors),
            output_names=list(outputs),
            dynamic_shapes={"arrays": axes} if everything or called.open_axes else None,
            verbose=False,
        )


def exporters_for(spec: Spec, module: nn.Module) -> tuple[Exporter, ...]:
    """Those that a spec names, in the order in which they are tried."""
    chosen = spec.choice("exporter", OWN_EXPORTERS, "torch")
    spec.count("export_limit")  # one that is none is refused now
    dynamic = spec.choice("dynamic", ("on", "off"), "off") == "on"
    if chosen == "torch":
        if "opset" in spec.options:
            raise UsageError(f"{spec}: opset= is an option of exporter=transformers.")
        return (TorchExporter(dynamic),)
    from .transformers_exporter import TransformersExporter

    opset = spec.count("opset")
    why = why_not_transformers(module)
    if chosen == "auto":
        return (TorchExporter(dynamic), *(() if why else (TransformersExporter(dynamic, opset),)))
    if why:
        raise why
    return (TransformersExporter(dynamic, opset),)


def why_not_transformers(module: nn.Module) -> BackendUnavailable | UsageError | None:
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
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        return BackendUnavailable(
            f"exporter=transformers needs {' and '.join(missing)}. Install it: "
            "pip install 'driftwalk[onnx]'."
        )
    return None
