"""`executorch,exporter=transformers`: programs made by `transformers.exporters.ExecutorchExporter`.

It is given the model with its states as further outputs, so that its patches and its fixes apply to
them as to everything else, and lowers to XNNPACK, as it always does on a CPU. What it gives is a
finished program; between its two halves, copies of states are dropped as in our own (lowering.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from driftwalk.errors import UsageError
from driftwalk.spec import Spec

from ..calls import own_copies
from ..onnx.export_options import why_not_transformers
from ..onnx.exporters import Exporter, ExportFailedError
from ..onnx.exposed import Exposed, silence
from ..onnx.transformers_exporter import TransformersExporter, as_the_model, words_for
from ..sources import torch_model
from .backend import ExecuTorch
from .lowering import XNNPACK, Partition, Programs, explained, partition_of, without_copies
from .program import own_log

EXPORTERS = ("torch", "transformers")


class ExecutorchExporter(TransformersExporter):
    """Makes a program for XNNPACK of a model that gives its states."""

    label = "transformers ExecutorchExporter"
    for_export = True  # of experts, the way for which there are kernels: its own choice, too

    def _opened(self) -> Any:
        from transformers.exporters import exporter_dynamo, exporter_executorch

        class Captured(exporter_dynamo.DynamoExporter):  # type: ignore[misc]
            def export(self, model: Any, sample_inputs: Any, config: Any) -> Any:
                taken = [*sample_inputs]
                exported = super().export(model, sample_inputs, config)
                if added := [name for name in sample_inputs if name not in taken]:
                    raise ExportFailedError(
                        f"{ExecutorchExporter.label} adds inputs to those of the model "
                        f"({', '.join(added)}), which is not supported."
                    )
                return without_copies(exported)

        class Own(exporter_executorch.ExecutorchExporter, Captured):  # type: ignore[misc]
            """Theirs; what it calls its base class is `Captured`."""

        Own.__name__ = exporter_executorch.ExecutorchExporter.__name__
        return Own()

    def program(self, exposed: Exposed, outputs: Sequence[str] = ()) -> Any:
        from transformers.exporters.configs import ExecutorchConfig

        words = words_for(exposed.called.tensors)
        tensors = own_copies(exposed.called.tensors)
        exposed.names = {word: name for name, word in words.items()}
        with as_the_model(exposed):
            sample = {words[name]: tensor for name, tensor in tensors.items()}
            return self._made[0].export(exposed, sample, ExecutorchConfig(backend=XNNPACK))


@dataclass(eq=False)
class TransformersPrograms(Programs):
    """Programs that transformers' exporter makes, from the first step to the last."""

    exporters: tuple[Exporter, ...] = field(default_factory=lambda: (ExecutorchExporter(),))

    def program(
        self, label: str, module: Exposed, inputs: tuple[torch.Tensor, ...], folder: Path
    ) -> tuple[Any, Partition]:
        (exporter,) = self.exporters
        what = f"{label} could not be exported to ExecuTorch by {exporter.label}"
        with explained(what), silence(), own_log():
            made = exporter.program(module, ())
            return made, partition_of(made.exported_program().graph_module)


class ExecuTorchByTransformers(ExecuTorch):
    """Runs as its base does; the programs are those of transformers' own exporter."""

    _make: ClassVar[type[Programs]] = TransformersPrograms
    _usual_delegate: ClassVar[str] = XNNPACK

    def __init__(self, spec: Spec, model: object) -> None:
        spec.choice("exporter", EXPORTERS, EXPORTERS[0])
        if spec.options.get("delegate", XNNPACK) != XNNPACK:
            raise UsageError(f"{spec}: exporter=transformers lowers to XNNPACK alone.")
        if "quantize" in spec.options:
            raise UsageError(f"{spec}: quantize= is for exporter=torch, driftwalk's own export.")
        if why := why_not_transformers(torch_model(model).module, Programs.needs):
            raise why
        super().__init__(spec, model)
