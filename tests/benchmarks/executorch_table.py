"""ExecuTorch on six architectures, clean and with a fault: prints the tables of docs/executorch.md.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/executorch_table.py [MODEL ...]
"""

from __future__ import annotations

import copy
import datetime
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version

import torch
from torch import nn

import driftwalk
import zoo
from benchmarks.openvino_table import TRAINED, _folder
from driftwalk.registry import create
from driftwalk_backends.sources import LoadedModel, open_model

CANDIDATES = ("executorch", "executorch,delegate=xnnpack")
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
        report = driftwalk.verify(clean, candidate=candidate)
    found = report.root_cause.point.name if report.root_cause else "none"
    return f"{found}, right" if found == layer else f"{report.verdict}: {found}, not {layer}"


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
        placed(model, spec, layer, lambda module: wrong_weight(module, matrix)),
        # To lower for XNNPACK takes minutes: one fault each.
        "not run"
        if "xnnpack" in spec
        else placed(model, spec, layer, lambda module: wrong_activation(module, activation)),
    ]
    return "| " + " | ".join(cells) + " |\n"


def main() -> None:
    words = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    today = datetime.datetime.now(datetime.UTC).date()
    sys.stdout.write(f"{today}, {platform.machine()}, {words}.\n\n{HEADER}")
    for name in sys.argv[1:] or MIDDLE:
        for spec in CANDIDATES:
            sys.stdout.write(row(name, spec))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
