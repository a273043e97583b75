"""Programs quantised by PT2E: clean ones pass, and faults are caught, placed, and called rightly.

PYTHONPATH=harness:backends:reports:tests python tests/benchmarks/pt2e_table.py [--real]
    [--seeds N] [--faults] [GLOB ...]

torchao's X86InductorQuantizer, and a small one of linear layers (a step for a matrix or for each
output), static and dynamic, on tiny random models; with --real: MiniLM. A fault is changed in one
linear layer of the middle block. Globs choose among `model/quantiser`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from transformers.pytorch_utils import Conv1D

import driftwalk
import exported_programs as programs
from benchmarks.quantised_matrix import asked, is_asked, models, used

Change = Callable[[fx.GraphModule, str], None]
QUANTISERS: dict[str, Callable[[], Any]] = {
    "x86, static": programs.inductor,
    "x86, dynamic": lambda: programs.inductor(dynamic=True),
    "matrix, static": programs.own,
    "matrix, dynamic": lambda: programs.own(dynamic=True),
    "output, static": lambda: programs.own(per_channel=True, unsigned=True),
    "output, dynamic": lambda: programs.own(per_channel=True, dynamic=True),
}


def _set(program: fx.GraphModule, node: fx.Node, place: int, value: Any) -> None:
    node.args = (*node.args[:place], value, *node.args[place + 1 :])
    program.recompile()


def scale(program: fx.GraphModule, path: str, of: Callable[[Any], Any]) -> None:
    """Another step for one output, or for the whole matrix."""
    node = programs.reader(program, path)
    if isinstance(node.args[1], fx.Node):
        steps = programs.held(program, node.args[1])
        steps[3] = of(steps)
    else:
        _set(program, node, 1, float(of(torch.tensor([node.args[1]] * 5))))


def zero(program: fx.GraphModule, path: str) -> None:
    node = programs.reader(program, path)
    if isinstance(node.args[2], fx.Node):
        programs.held(program, node.args[2])[3] += 1
    else:
        _set(program, node, 2, node.args[2] + 1)


def neighbour(steps: torch.Tensor) -> Any:
    near = abs(float(steps[3] / steps[4]) - 1) < 0.02
    return steps[4] * 1.1 if near else steps[4]


def swapped(program: fx.GraphModule, path: str) -> None:
    numbers = programs.held(program, programs.reader(program, path).args[0])
    numbers[[3, 4]] = numbers[[4, 3]].clone()


def unsigned(program: fx.GraphModule, path: str) -> None:
    node = programs.reader(program, path)
    name = f"unsigned_{path.replace('.', '_')}"
    program.register_buffer(name, programs.held(program, node.args[0]).view(torch.uint8).clone())
    with program.graph.inserting_before(node):
        taken = program.graph.get_attr(name)
    low = len(node.args) - 3
    node.args = (taken, *node.args[1:low], 0, 255, torch.uint8)
    program.recompile()


def _read_input(program: fx.GraphModule, path: str) -> fx.Node:
    """The operation that reads the rounded input of a product."""
    weight = programs.reader(program, path)
    product = next(iter(weight.users))
    found = [node for node in product.all_input_nodes if node is not weight]
    return next(node for node in found if ".dequantize" in str(node.target))


def read_step(program: fx.GraphModule, path: str) -> None:
    node = _read_input(program, path)
    if not isinstance(node.args[1], fx.Node):
        _set(program, node, 1, node.args[1] * 1.02)
        return
    with program.graph.inserting_before(node):
        other = program.graph.call_function(torch.ops.aten.mul.Tensor, (node.args[1], 1.02))
    _set(program, node, 1, other)


def read_zero(program: fx.GraphModule, path: str) -> None:
    node = _read_input(program, path)
    if not isinstance(node.args[2], fx.Node):
        _set(program, node, 2, node.args[2] + 1)
        return
    with program.graph.inserting_before(node):
        other = program.graph.call_function(torch.ops.aten.add.Tensor, (node.args[2], 1))
    _set(program, node, 2, other)


def half_sums(program: fx.GraphModule, path: str) -> None:
    product = next(iter(programs.reader(program, path).users))
    if product.target is torch.ops.aten.linear.default:
        product.target = _linear
    else:
        product.target = _addmm
    program.recompile()


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
    return _addmm(0 if bias is None else bias, x, weight.T)


def _addmm(bias: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(*x.shape[:-1], weight.shape[1], dtype=torch.float16)
    for column in range(len(weight)):
        total += (x[..., column, None] * weight[column]).half()
    return total.float() + bias


def another_eps(program: fx.GraphModule, path: str) -> None:
    """In a norm of the same block."""
    block = path[: path.index(".1.") + 2]
    for node in program.graph.nodes:
        stack = [str(one[0]) for one in (node.meta.get("nn_module_stack") or {}).values()]
        if "layer_norm" in str(node.target) and block in stack:
            _set(program, node, 4, 1e-3)
            return
        if "rsqrt" in str(node.target) and block in stack:
            _set(program, node.args[0], 1, 1e-3)
            return
    raise LookupError(block)


FAULTS: dict[str, tuple[Change, str]] = {
    "one scale x 1.02": (lambda p, at: scale(p, at, lambda s: s[3] * 1.02), "format"),
    "its neighbour's scale": (lambda p, at: scale(p, at, neighbour), "format"),
    "zero point off by one": (zero, "format"),
    "rows swapped": (swapped, "format"),
    "signed read as unsigned": (unsigned, "format"),
    "input read by 1.02 x its step": (read_step, "format"),
    "input read by another zero": (read_zero, "format"),
    "sums in fp16": (half_sums, "kernel"),
    "a norm's eps": (another_eps, "kernel"),
}


def inputs(model: nn.Module, name: str, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=draw)}
    most = model.config.vocab_size
    ids = torch.randint(min(1000, most // 2), most, (2, 16), generator=draw)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def linear(model: nn.Module) -> str:
    """A linear layer of the middle block."""
    paths = [p for p, part in model.named_modules() if isinstance(part, nn.Linear | Conv1D)]
    return [path for path in paths if ".1." in path][-1]


def main() -> int:
    options = asked(__doc__)
    for seed, name, model in models(options):
        model.eval().config.use_cache = False
        for word, make in QUANTISERS.items():
            label = f"{name}/{word}"
            if is_asked(options, label):
                row(model, make, inputs(model, name, seed), f"{name} | {word} | {seed}", options)
    return 0


def row(
    model: nn.Module, make: Any, given: dict[str, torch.Tensor], label: str, options: Any
) -> None:
    probe = {name: value.numpy() for name, value in given.items()}
    clean = programs.quantised(model, given, make())
    report = driftwalk.verify(model, programs.copied(clean), probe=probe)
    found = report.format
    cost = list(found.layers.values())[-1] if found else None
    parts = f"{cost.relative_format:.1e} | {cost.relative_kernel:.1e}" if cost else "? | ?"
    tried = caught = placed = called = 0
    missed = []
    path = linear(model)
    has_weight = bool(found) and path not in found.in_float
    for name, (change, part) in FAULTS.items() if options.faults and has_weight else ():
        wrong = programs.copied(clean)
        change(wrong, path)
        other = driftwalk.verify(model, wrong, probe=probe)
        cause = other.root_cause.point.module if other.root_cause else ""
        tried += 1
        caught += other.verdict == "drift"
        placed += bool(cause) and path.startswith(cause)
        stored = other.format.wrong.get(path) if other.format else None
        says = "kernel" if stored is None or "another computation" in stored.sentence else "format"
        called += other.verdict == "drift" and says == part
        missed += [] if other.verdict == "drift" else [f"{name} ({used(other):.2f})"]
    sys.stdout.write(
        f"| {label} | {report.verdict} | {used(report):.2f} | {parts} | {caught} of {tried} "
        f"| {placed} | {called} | {', '.join(missed)} |\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
