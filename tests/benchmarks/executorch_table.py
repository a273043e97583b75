"""ExecuTorch on six architectures, clean and with a fault: prints the tables of docs/executorch.md.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/executorch_table.py [WORD ...]

A word is a model, or one of `kernels`, `xnnpack` and `int8`; without any, all rows are made.
"""

from __future__ import annotations

import copy
import datetime
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

import driftwalk
import zoo
from benchmarks.openvino_table import TRAINED, _folder
from driftwalk.registry import create
from driftwalk_backends.sources import LoadedModel, open_model

CANDIDATES = {
    "kernels": "executorch",
    "xnnpack": "executorch,delegate=xnnpack",
    "int8": "executorch,delegate=xnnpack,quantize=dynamic-int8",
}
PACKAGES = ("executorch", "torchao", "torch", "transformers")
HEADER = (
    "| model | candidate | verdict | used, worst point | parts, plain / with states | "
    "bit-identical plain run | wrong weight in | wrong activation in |\n|" + "---|" * 8 + "\n"
)
MIDDLE: dict[str, tuple[str, str, str]] = {
    "gpt2": ("layer.1", "transformer.h.1.mlp.c_proj", "transformer.h.1.mlp.act"),
    "llama": ("layer.1", "model.layers.1.mlp.down_proj", "model.layers.1.mlp.act_fn"),
    "bert": (
        "layer.1",
        "bert.encoder.layer.1.output.dense",
        "bert.encoder.layer.1.intermediate.intermediate_act_fn",
    ),
    "vit": ("layer.1", "vit.layers.1.mlp.fc2", "vit.layers.1.mlp.activation_fn"),
    "t5": (
        "decoder.layer.1",
        "decoder.block.1.layer.2.DenseReluDense.wo",
        "decoder.block.1.layer.2.DenseReluDense.act",
    ),
    "minilm": (
        "layer.3",
        "encoder.layer.3.output.dense",
        "encoder.layer.3.intermediate.intermediate_act_fn",
    ),
}
"""The layer that a fault is put into, its last matrix, and its activation."""


def opened(name: str) -> LoadedModel:
    if name == "minilm":
        return open_model(str(_folder(*TRAINED["MiniLM"])))
    return open_model(zoo.build(name))


def wrong_weight(module: nn.Module, path: str) -> None:
    """One number of a matrix is off by three times the matrix's standard deviation."""
    weight = module.get_submodule(path).weight
    assert isinstance(weight, nn.Parameter)
    with torch.no_grad():
        weight[5, 7] += 3 * weight.std()


def wrong_activation(module: nn.Module, path: str) -> None:
    """Another function of the same kind, as a port gets wrong."""
    parent, _, name = path.rpartition(".")
    own = type(module.get_submodule(path)).__name__.lower()
    setattr(module.get_submodule(parent), name, nn.GELU() if "silu" in own else nn.SiLU())


def placed(clean: LoadedModel, spec: str, layer: str, change: Callable[[nn.Module], None]) -> str:
    faulty = copy.deepcopy(clean.module)
    change(faulty)
    with create(spec, LoadedModel(faulty, "faulty")) as candidate:
        return where(driftwalk.verify(clean, candidate=candidate), layer)


def where(report: driftwalk.Report, layer: str) -> str:
    found = report.root_cause.point.name if report.root_cause else "none"
    return f"{found}, right" if found == layer else f"{report.verdict}: {found}, not {layer}"


@contextmanager
def wrong_number(weight: torch.Tensor) -> Iterator[None]:
    """One of a matrix's numbers in eight bits is another one, in every program made meanwhile."""
    from torchao.quantization.pt2e import quantize_pt2e

    convert = quantize_pt2e.convert_pt2e

    def wrong(prepared: Any) -> Any:
        made = convert(prepared)
        rounded = [
            [getattr(made, source.target) for source in node.args[:2]]
            for node in made.graph.nodes
            if node.op == "call_function" and "dequantize_per_channel" in str(node.target)
        ]
        (numbers,) = [
            numbers
            for numbers, step in rounded
            if numbers.shape == weight.shape
            and ((numbers * step[:, None] - weight).abs() <= step[:, None]).all()
        ]
        with torch.no_grad():
            numbers[5, 7] = numbers[5, 7] - 100 if numbers[5, 7] > 0 else numbers[5, 7] + 100
        return made

    quantize_pt2e.convert_pt2e = wrong
    try:
        yield
    finally:
        quantize_pt2e.convert_pt2e = convert


def placed_in_int8(name: str, spec: str) -> str:
    model, (layer, matrix, _) = opened(name), MIDDLE[name]
    with wrong_number(model.module.get_submodule(matrix).weight.detach()):
        return where(driftwalk.verify(model, candidate=f"{spec},cache=off"), layer)


def row(name: str, spec: str) -> str:
    model = opened(name)
    report = driftwalk.verify(model, candidate=spec)
    rows = [one for one in report.layers if one.metrics and one.tolerance]
    worst = max(rows, key=lambda one: one.tolerance.needed)
    seen, flags = report.observer["candidate"], report.candidate.flags
    plain = "yes" if seen.bit_identical else f"no, {seen.max_abs:.1e}"
    parts = " / ".join(flags[f"operations, {one}"] for one in ("plain", "traced"))
    layer, matrix, activation = MIDDLE[name]
    cells = [
        *(name, f"`{spec}`", report.verdict),
        f"{worst.tolerance.needed:.0%} ({worst.point.name})",
        *(parts, plain),
        placed_in_int8(name, spec)
        if "int8" in spec
        else placed(model, spec, layer, lambda module: wrong_weight(module, matrix)),
        # To lower for XNNPACK takes minutes: one fault each.
        "not run"
        if "xnnpack" in spec
        else placed(model, spec, layer, lambda module: wrong_activation(module, activation)),
    ]
    return "| " + " | ".join(cells) + " |\n"


def main() -> None:
    tried = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    today = datetime.datetime.now(datetime.UTC).date()
    sys.stdout.write(f"{today}, {platform.machine()}, {tried}.\n\n{HEADER}")
    words = {*sys.argv[1:]}
    for name in [one for one in MIDDLE if one in words] or MIDDLE:
        for kind, spec in CANDIDATES.items():
            if kind in words or not words & CANDIDATES.keys():
                sys.stdout.write(row(name, spec))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
