"""Makes an ONNX program of a torch model: what an exporter is, and driftwalk's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.export import Dim

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from ..calls import Inputs
from .exposed import Exposed


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
