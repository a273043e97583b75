"""Programs that torch.export made, quantised by PT2E: torchao's own quantiser, and a small one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

Inputs = Mapping[str, torch.Tensor]
_PRODUCTS = {torch.ops.aten.linear.default: (0, 1), torch.ops.aten.addmm.default: (1, 2)}
"""Operations, and which of their arguments are the input and the weight."""


def exported(model: nn.Module, inputs: Inputs, **options: Any) -> fx.GraphModule:
    """The flat program of a model."""
    made = torch.export.export(model, (), dict(inputs), strict=False, **options).module()
    assert isinstance(made, fx.GraphModule)
    return made


def quantised(
    model: nn.Module, inputs: Inputs, quantiser: Any, fold: bool = True, **options: Any
) -> fx.GraphModule:
    """The same, calibrated with the inputs and converted."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    prepared = prepare_pt2e(exported(model, inputs, **options), quantiser)
    prepared(**inputs)
    made = convert_pt2e(prepared, fold_quantize=fold)
    assert isinstance(made, fx.GraphModule)
    return made


def inductor(dynamic: bool = False) -> Any:
    """torchao's, for Intel's kernels: a step for each output, and one for all of an input."""
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    config = x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic)
    return x86.X86InductorQuantizer().set_global(config)


def own(
    per_channel: bool = False, dynamic: bool = False, leave: str = "", unsigned: bool = False
) -> Any:
    """A quantiser of linear layers, GPT-2's too; `leave`: not of the module of that path."""
    from torchao.quantization.pt2e import observer as seen
    from torchao.quantization.pt2e.quantizer import (
        QuantizationAnnotation,
        QuantizationSpec,
        Quantizer,
    )

    class Small(Quantizer):  # type: ignore[misc]
        def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
            for node in model.graph.nodes:
                if node.target not in _PRODUCTS or _path(node) == leave:
                    continue
                place, weight = (node.args[i] for i in _PRODUCTS[node.target])
                axis = 0 if node.target is torch.ops.aten.linear.default else 1
                given = {place: _activation(), weight: _weight(axis)}
                node.meta["quantization_annotation"] = QuantizationAnnotation(
                    input_qspec_map=given, _annotated=True
                )
            return model

        def validate(self, model: fx.GraphModule) -> None:
            pass

    def _activation() -> QuantizationSpec:
        observer = seen.PlaceholderObserver if dynamic else seen.MinMaxObserver
        lowest = 0 if unsigned else -128
        return QuantizationSpec(
            dtype=torch.uint8 if unsigned else torch.int8,
            observer_or_fake_quant_ctr=observer.with_args(),
            quant_min=lowest,
            quant_max=lowest + 255,
            qscheme=torch.per_tensor_affine,
            is_dynamic=dynamic,
        )

    def _weight(axis: int) -> QuantizationSpec:
        one = seen.PerChannelMinMaxObserver if per_channel else seen.MinMaxObserver
        way = torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric
        return QuantizationSpec(
            dtype=torch.int8,
            observer_or_fake_quant_ctr=one.with_args(eps=2**-12),
            quant_min=-127,
            quant_max=127,
            qscheme=way,
            ch_axis=axis if per_channel else None,
        )

    return Small()


def _path(node: fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def reader(program: fx.GraphModule, path: str) -> fx.Node:
    """The operation that reads the stored weight of a module."""
    for node in program.graph.nodes:
        if node.op == "call_function" and ".dequantize" in str(node.target):
            constant = node.args[0].op == "get_attr"
            if constant and any(_path(user) == path for user in node.users):
                return node
    raise LookupError(path)


def held(program: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    """The tensor of a constant."""
    found: Any = program
    for name in str(node.target).split("."):
        found = getattr(found, name)
    assert isinstance(found, torch.Tensor)
    return found


def copied(program: fx.GraphModule) -> fx.GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its own classes
        made = copy.deepcopy(program)
    assert isinstance(made, fx.GraphModule)
    return made
