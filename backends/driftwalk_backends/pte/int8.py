"""`executorch,delegate=xnnpack,quantize=dynamic-int8`: linear layers in eight bits, by XNNPACK.

XNNPACK's own quantiser (PT2E) rounds each matrix of a linear layer to whole numbers, with a step
for each output; the input of the product is rounded while it runs. Its graph says that one step
serves a whole input. XNNPACK takes one for each row, which is finer, and that is what the model it
is compared with does (formats/).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from driftwalk.adapter import BackendInfo
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, UsageError
from driftwalk.spec import Spec
from driftwalk.states import Probe

from ..formats.declared import declared_of
from ..formats.placing import Unplaced
from ..formats.rounded import RoundedWeight, whole_numbers
from ..formats.rounding import InputRounding
from ..loaded import LoadedModel
from .backend import ExecuTorch
from .lowering import XNNPACK, Programs

QUANTISATIONS = ("dynamic-int8",)
MATRICES = "matrices.safetensors"
"""The rounded matrices of a program, and their steps."""


@dataclass(eq=False)
class Int8Programs(Programs):
    """Programs whose linear layers are quantised before they are lowered."""

    kind: ClassVar[str] = "executorch-int8"

    def captured(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path) -> Any:
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        whole = super().captured(module, inputs, folder).module()
        prepared = prepare_pt2e(whole, _quantiser())
        prepared(*inputs)
        converted = convert_pt2e(prepared)
        matrices = dict(_matrices(converted))
        if not matrices:
            raise BackendError("it has no linear layer that XNNPACK's quantiser rounds.")
        save_file(matrices, folder / MATRICES)
        return torch.export.export(converted, inputs, strict=False)


def _quantiser() -> Any:
    """XNNPACK's, for linear layers alone.

    What it prepares other operations with is left out: it makes floats of whole numbers that are
    added or multiplied, and a model's positions are no indices any more.
    """
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    class LinearQuantiser(XNNPACKQuantizer):  # type: ignore[misc]
        def transform_for_annotation(self, model: Any) -> Any:
            return model

    rounding = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    made = LinearQuantiser().set_global(rounding)
    return made.set_filter_function(lambda node: node.target is torch.ops.aten.linear.default)


def _matrices(graph: Any) -> Iterator[tuple[str, Any]]:
    """`numbers.0`, `step.0`, ...: what the quantiser made of each linear layer's weight."""
    number = 0
    for node in graph.graph.nodes:
        if node.op == "call_function" and "dequantize_per_channel" in str(node.target):
            numbers, step = (_stored(graph, source.target) for source in node.args[:2])
            yield f"numbers.{number}", numbers
            yield f"step.{number}", step
            number += 1


def _stored(graph: Any, name: str) -> Any:
    value: Any = graph
    for part in name.split("."):
        value = getattr(value, part)
    return np.ascontiguousarray(value.detach().numpy())


def read_matrices(folder: Path) -> list[Unplaced]:
    """A step for each row, and for each row of the product's input."""
    stored = load_file(folder / MATRICES)
    return [
        Unplaced(_rounded(stored[f"numbers.{i}"], stored[f"step.{i}"]))
        for i in range(len(stored) // 2)
    ]


def _rounded(numbers: Array, step: Array) -> RoundedWeight:
    steps = step.astype(np.float64).reshape(-1, 1)
    return RoundedWeight(
        path="",
        grid=whole_numbers(8),
        numbers=numbers,
        step=steps,
        zero=np.zeros_like(steps),
        block=(1, numbers.shape[1]),
        inputs=InputRounding(rows=True),
    )


class ExecuTorchInt8(ExecuTorch):
    """Exports as its base does; XNNPACK's quantiser then rounds the linear layers."""

    _make: ClassVar[type[Programs]] = Int8Programs

    def __init__(self, spec: Spec, model: object) -> None:
        spec.choice("quantize", QUANTISATIONS, QUANTISATIONS[0])
        if spec.options.get("delegate") != XNNPACK:
            raise UsageError(f"{spec}: quantize= is by XNNPACK; add delegate=xnnpack.")
        if spec.dtype not in ("", "fp32"):
            raise UsageError(f"{spec}: quantize= starts from fp32; leave the dtype out.")
        super().__init__(spec, model)
        self._folder: Path | None = None

    @property
    def info(self) -> BackendInfo:
        base = super().info
        return replace(base, flags={**base.flags, "quantised": QUANTISATIONS[0]})

    def prepare(self, probe: Probe) -> None:
        """Export now: what it may honestly compute is told from the rounded matrices."""
        self._folder = self._plain(probe).folder

    def honest_model(self) -> LoadedModel | None:
        """The model, its linear layers rounded alike by driftwalk itself."""
        if self._folder is None:
            return None
        return declared_of(self._model, read_matrices(self._folder))
