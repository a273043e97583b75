"""Folders of packed weights: clean ones pass, and faults are caught, placed, and called rightly.

PYTHONPATH=harness:backends:reports:tests python tests/benchmarks/packed_table.py [--real]
    [--seeds N] [--faults] [GLOB ...]

GPTQ (2 to 8 bits, both conventions of zeros, columns in an order of their own), AWQ, and fp8 in
blocks, on tiny random models; with --real: MiniLM, rounded to the nearest number and by GPTQ's own
algorithm. With --faults one tensor of the middle block is changed. Globs choose `model/format`.

A fault in what is stored is owed where some number is more than half a step from its weight, as
computed here from the folder's bits: what is nearer is what rounding to the nearest gives, and an
honest quantiser that chose this step would have stored the same.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from transformers.pytorch_utils import Conv1D

import driftwalk
import packed_folders as pack
from benchmarks.quantised_matrix import asked, is_asked, models, real, used
from driftwalk_backends.sources import as_saved

SUMS = "sums in fp16"
HALF = 0.501
"""In steps: as far as rounding to the nearest leaves a number from its weight, and a tie."""
COLUMNS = (
    *("model", "format", "seed", "clean", "used", "format costs", "kernel adds", "stored"),
    *("owed", "found", "placed", "called rightly", "not above the noise", SUMS, "not found"),
)
HEADS = ("lm_head", "decoder", "classifier", "pooler.dense")
V2 = {"checkpoint_format": "gptq_v2"}
FORMATS: dict[str, tuple[pack.Rounder, dict[str, Any]]] = {
    "gptq 4": (pack.gptq(), pack.gptq_says()),
    "gptq 4, order": (pack.gptq(order=True), pack.gptq_says(desc_act=True)),
    "gptq 4, zeros, v2": (pack.gptq(symmetric=False, second=True), pack.gptq_says(**V2)),
    "gptq 3": (pack.gptq(3), pack.gptq_says(3)),
    "gptq 2": (pack.gptq(2, symmetric=False), pack.gptq_says(2)),
    "gptq 8": (pack.gptq(8), pack.gptq_says(8)),
    "awq": (pack.awq(), pack.AWQ_SAYS),
    "fp8": (pack.fp8((32, 32)), pack.fp8_says((32, 32))),
}


def by_gptq(model: nn.Module, bits: int, size: int, order: bool) -> pack.Rounder:
    """The published algorithm: the error of a column is made up for in those that follow it."""
    seen: dict[str, list[torch.Tensor]] = {}

    def note(path: str) -> Any:
        def hook(part: nn.Module, args: Any) -> None:
            seen.setdefault(path, []).append(args[0].detach().flatten(0, -2).double())

        return hook

    linear = [(path, part) for path, part in model.named_modules() if isinstance(part, nn.Linear)]
    hooks = [part.register_forward_pre_hook(note(path)) for path, part in linear]
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model(torch.randint(1000, 25000, (16, 64), generator=draw))
    for hook in hooks:
        hook.remove()

    def store(path: str, weight: torch.Tensor) -> pack.Tensors:
        inputs = torch.cat(seen[path])
        squares = inputs.T @ inputs
        place = (
            torch.argsort(squares.diag(), descending=True) if order else torch.arange(len(squares))
        )
        left, squares = weight.double()[:, place], squares[place][:, place]
        squares += torch.eye(len(squares)) * 0.01 * squares.diag().mean()
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(squares))
        upper = torch.linalg.cholesky(inverse, upper=True)
        most, groups = (1 << bits) - 1, -(-left.shape[1] // size)
        numbers, steps = torch.empty_like(left), torch.empty(len(left), groups).double()
        for column in range(left.shape[1]):
            group = column // size
            if column % size == 0:
                largest = left[:, column : column + size].abs().amax(1)
                steps[:, group] = (2 * largest / most).half().double()
            step, zero = steps[:, group], (most + 1) / 2
            numbers[:, column] = (left[:, column] / step + zero).round().clamp(0, most)
            off = left[:, column] - (numbers[:, column] - zero) * step
            left[:, column + 1 :] -= torch.outer(
                off / upper[column, column], upper[column, column + 1 :]
            )
        back = torch.argsort(place)
        of = (torch.arange(left.shape[1]) // size)[back]
        zeros = torch.full(steps.shape, (most + 1) // 2)
        return pack.gptq_tensors(numbers[:, back].long(), steps.float(), zeros, of, bits)

    return store


def formats(model: nn.Module, is_real: bool) -> dict[str, tuple[pack.Rounder, dict[str, Any]]]:
    if not is_real:
        return FORMATS
    own = {
        f"GPTQ's algorithm, {bits} bits{', order' if order else ''}": (
            by_gptq(model, bits, 128, order),
            pack.gptq_says(bits, 128, desc_act=order),
        )
        for bits, order in ((4, False), (4, True), (3, False), (8, False))
    }
    kept = {name: FORMATS[name] for name in ("gptq 4, order", "awq")}
    return kept | own | {"fp8": (pack.fp8((128, 128)), pack.fp8_says((128, 128)))}


def faults(
    path: str, word: str, own: torch.Tensor
) -> Iterator[tuple[str, Callable[[pack.Tensors], None]]]:
    """What is changed, and how."""
    numbers, step = (
        (f"{path}.weight", f"{path}.weight_scale_inv")
        if word == "fp8"
        else (f"{path}.qweight", f"{path}.scales")
    )

    def raw(tensors: pack.Tensors) -> torch.Tensor:
        held = tensors[numbers]
        return held.view(torch.uint8) if held.dtype == torch.float8_e4m3fn else held

    def scale(tensors: pack.Tensors) -> None:
        tensors[step][0, 1] *= 1.02

    def neighbour(tensors: pack.Tensors) -> None:
        held = tensors[step]
        held[0, 1] = (
            held[0, 0] if abs(float(held[0, 0] / held[0, 1]) - 1) > 0.02 else held[0, 0] * 1.1
        )

    def swapped(tensors: pack.Tensors) -> None:
        held = raw(tensors)
        held[[0, 1]] = held[[1, 0]].clone()

    def zero(tensors: pack.Tensors) -> None:
        tensors[f"{path}.qzeros"][0, 0] += 1

    def nibbles(tensors: pack.Tensors) -> None:
        held = tensors[numbers].view(torch.uint8)
        held[0] = held[0] >> 4 | held[0] << 4

    def sign(tensors: pack.Tensors) -> None:
        held = raw(tensors)
        held[0] = held[0] & 127

    def order(tensors: pack.Tensors) -> None:
        of = tensors[f"{path}.g_idx"]
        tensors[f"{path}.g_idx"] = torch.arange(len(of)).int() // 32

    def in_float(tensors: pack.Tensors) -> None:
        parts = [name for name in tensors if name.startswith(f"{path}.") and "bias" not in name]
        for name in parts:
            del tensors[name]
        tensors[f"{path}.weight"] = own.detach().half()

    yield "left in float", in_float
    yield "one scale x 1.02", scale
    yield "its neighbour's scale", neighbour
    yield "rows swapped", swapped
    if word == "fp8":
        yield "signs lost", sign
        return
    yield "zero point off by one", zero
    yield "nibbles swapped", nibbles
    if "order" in word:
        yield "order lost", order


def every_fault(
    folder: Path, path: str, word: str, model: nn.Module
) -> Iterator[tuple[str, str | nn.Module, float]]:
    """What is wrong, the candidate that has it, and how many steps a number is off, at most."""
    part = model.get_submodule(path)
    own = part.weight
    assert isinstance(own, torch.Tensor)
    for number, (name, change) in enumerate(faults(path, word, own)):
        wrong = Path(shutil.copytree(folder, folder.with_name(f"wrong-{number}")))
        pack.changed(wrong, change)
        yield name, f"torch,folder={wrong}", _farthest(wrong, path, part)
    yield SUMS, half_sums(as_saved(str(folder)), path), 0.0


def _farthest(folder: Path, path: str, part: Any) -> float:
    """A layer that is stored in float, unlike what the folder declares, is off without bounds."""
    says = json.loads((folder / "config.json").read_text())["quantization_config"]
    every = load_file(folder / "model.safetensors")
    held = {name.removeprefix(f"{path}."): one for name, one in every.items()}
    if not {"scales", "weight_scale_inv"} & set(held):
        return math.inf
    return pack.farthest(held, part.weight.T if isinstance(part, Conv1D) else part.weight, says)


def half_sums(module: nn.Module, path: str) -> nn.Module:
    """Its products are added up in fp16, one after the other."""
    part: Any = module.get_submodule(path)
    turned = isinstance(part, Conv1D)

    def forward(x: torch.Tensor) -> torch.Tensor:
        weight = part.weight if turned else part.weight.T
        total = torch.zeros(*x.shape[:-1], weight.shape[1], dtype=torch.float16)
        for column in range(weight.shape[0]):
            total += (x[..., column, None] * weight[column]).half()
        return total.to(x.dtype) + (0 if part.bias is None else part.bias)

    part.forward = forward
    return module


def main() -> int:
    options = asked(__doc__)
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
    for seed, name, model in models(options, whole(real())):
        for word, (rounder, says) in formats(model.eval(), options.real).items():
            label = f"{name}/{word}"
            if not is_asked(options, label):
                continue
            with tempfile.TemporaryDirectory() as where:
                folder = pack.written(model, Path(where) / "m", rounder, says, leave=HEADS)
                row(model, folder, word, f"{name} | {word} | {seed}", options.faults)
    return 0


def whole(models: Iterator[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    """With all that a folder's class has: a BertModel is loaded with its pooler."""
    for name, model in models:
        folder = model.config._name_or_path
        yield name, type(model).from_pretrained(folder)


def row(model: nn.Module, folder: Path, word: str, label: str, with_faults: bool) -> None:
    report = driftwalk.verify(model, f"torch,folder={folder}")
    found = report.format
    cost = list(found.layers.values())[-1] if found else None
    parts = f"{cost.relative_format:.1e} | {cost.relative_kernel:.1e}" if cost else "? | ?"
    said = f"{len(found.wrong)} wrong, {len(found.own_way)} own way" if found else "no format"
    owed = caught = placed = called = below = sums = 0
    missed = []
    paths = [p for p, part in model.named_modules() if isinstance(part, nn.Linear | Conv1D)]
    paths = [path for path in paths if ".1." in path and not path.endswith(HEADS)]
    at = paths[-1] if with_faults and paths else ""
    for name, change, steps in every_fault(folder, at, word, model) if at else ():
        other = driftwalk.verify(model, change)
        drifts, is_owed = other.verdict == "drift", steps > HALF
        if name == SUMS:
            sums += drifts
            continue
        below += not is_owed
        owed += is_owed
        caught += drifts and is_owed
        placed += is_owed and bool(other.root_cause) and other.root_cause.point.name == "layer.1"
        stored = list(other.format.wrong) if other.format else []
        called += is_owed and drifts and stored == [at]
        missed += [] if drifts else [f"{name} ({steps:.3f} steps)"]
    sys.stdout.write(
        f"| {label} | {report.verdict} | {used(report):.2f} | {parts} | {said} "
        f"| {owed} | {caught} | {placed} | {called} | {below} | {sums} | {', '.join(missed)} |\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
