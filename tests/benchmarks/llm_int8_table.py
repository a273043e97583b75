"""LLM.int8 of bitsandbytes: clean copies pass, and faults are caught, placed, and called rightly.

PYTHONPATH=harness:backends:reports:tests python tests/benchmarks/llm_int8_table.py [--real]
    [--seeds N] [--faults] [GLOB ...]

Tiny random models whose norms make some inputs large, in fp32, fp16 and bf16; with --real: MiniLM.
Globs choose among `model/dtype`.

A fault of the kernel is owed where its layer, given the same input, is off by more than OWED times
what rounding a result to the dtype leaves, at the median token. Faults of what is stored all are.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import driftwalk
from benchmarks.owed import input_of
from benchmarks.quantised_matrix import asked, is_asked, models, used

HEADS = ("lm_head", "decoder", "classifier")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
THRESHOLD = 6.0
OWED = 4.0
COLUMNS = (
    *("model", "dtype", "seed", "clean", "used", "format costs", "kernel adds"),
    *("owed", "found", "placed", "called rightly", "not above the noise", "not found"),
)


def with_outliers(model: nn.Module) -> nn.Module:
    """The same model; some channels behind its norms are large."""
    with torch.no_grad():
        for path, part in model.named_modules():
            weight = getattr(part, "weight", None)
            if "norm" in path.lower().rpartition(".")[2] and weight is not None:
                weight[5] *= 12
                weight[11] *= -9
    return model


def eight_bits(model: nn.Module, dtype: torch.dtype, threshold: float = THRESHOLD) -> nn.Module:
    """A copy whose linear layers are those of LLM.int8."""
    import bitsandbytes as bnb

    made = copy.deepcopy(model).to(dtype)
    for path, part in list(made.named_modules()):
        if not isinstance(part, nn.Linear) or path.endswith(HEADS):
            continue
        sizes = part.in_features, part.out_features, part.bias is not None
        one = bnb.nn.Linear8bitLt(*sizes, has_fp16_weights=False, threshold=threshold)
        one.load_state_dict(part.state_dict())
        if one.bias is not None:
            one.bias.data = one.bias.data.to(dtype)
        above, _, name = path.rpartition(".")
        setattr(made.get_submodule(above), name, one.to("cpu"))
    return made.eval()


def _steps(part: Any) -> torch.Tensor:
    found: torch.Tensor = part.weight.SCB if part.state.SCB is None else part.state.SCB
    return found


def _numbers(part: Any) -> torch.Tensor:
    found: torch.Tensor = part.weight.CB if part.state.CB is None else part.state.CB
    return found


def scale(part: Any) -> None:
    _steps(part)[3] *= 1.02


def neighbour(part: Any) -> None:
    steps = _steps(part)
    near = abs(float(steps[3] / steps[4]) - 1) < 0.02
    steps[3] = steps[4] * 1.1 if near else steps[4]


def swapped(part: Any) -> None:
    numbers = _numbers(part)
    numbers[[3, 4]] = numbers[[4, 3]].clone()


def unsigned(part: Any) -> None:
    numbers = _numbers(part)
    numbers[3] = torch.where(numbers[3] < 0, torch.full_like(numbers[3], 127), numbers[3])


def no_outliers(part: Any) -> None:
    """The kernel rounds large columns, too."""
    inner = part.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        part.state.threshold = 0.0
        try:
            made: torch.Tensor = inner(x)
        finally:
            part.state.threshold = THRESHOLD
        return made

    part.forward = forward


def float_weight(part: Any) -> None:
    """It computes in float, whatever it stores."""
    values = (_numbers(part).float() * _steps(part)[:, None] / 127).clone()
    bias = part.bias

    def forward(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, values.to(x.dtype), bias)

    part.forward = forward


FAULTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "one scale x 1.02": (scale, "format"),
    "its neighbour's scale": (neighbour, "format"),
    "rows swapped": (swapped, "format"),
    "signed read as unsigned": (unsigned, "format"),
    "large columns rounded": (no_outliers, "kernel"),
    "inputs not rounded": (float_weight, "kernel"),
}


def times_noise(clean: nn.Module, wrong: nn.Module, x: torch.Tensor) -> float:
    """By how many times what rounding leaves a layer is off, given that input; median token."""
    with torch.no_grad():
        right, other = clean(x), wrong(x).float()
        values = (_numbers(clean).float() * _steps(clean)[:, None] / 127).double()
        exact = nn.functional.linear(x.double(), values)
        rounding = (exact.to(right.dtype).double() - exact).norm(dim=-1).median()
        off = (other - right.float()).norm(dim=-1).median()
    return float(off / rounding)


def main() -> int:
    options = asked(__doc__)
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
    for seed, name, model in models(options):
        if name == "GPT-2":  # its layers are no nn.Linear
            continue
        given = model.eval() if options.real else with_outliers(model.eval())
        for word, dtype in DTYPES.items():
            label = f"{name}/{word}"
            if is_asked(options, label):
                row(given, dtype, f"{name} | {word} | {seed}", options.faults)
    return 0


def row(model: nn.Module, dtype: torch.dtype, label: str, with_faults: bool) -> None:
    clean = eight_bits(model, dtype)
    report = driftwalk.verify(model, clean)
    found = report.format
    cost = list(found.layers.values())[-1] if found else None
    parts = f"{cost.relative_format:.1e} | {cost.relative_kernel:.1e}" if cost else "? | ?"
    paths = [p for p, part in clean.named_modules() if type(part).__name__ == "Linear8bitLt"]
    path = next(one for one in paths if ".1." in one)
    owed = caught = placed = called = below = 0
    missed = []
    x = input_of(clean, path, dtype) if with_faults else None
    for name, (change, part) in FAULTS.items() if with_faults else ():
        wrong = eight_bits(model, dtype)
        change(wrong.get_submodule(path))
        times = math.inf
        if part == "kernel" and x is not None:
            times = times_noise(clean.get_submodule(path), wrong.get_submodule(path), x)
        other = driftwalk.verify(model, wrong)
        cause = other.root_cause.point.module if other.root_cause else ""
        if times <= OWED:
            below += 1
            missed += [f"{name} ({times:.1f} times the noise)"]
            continue
        owed += 1
        caught += other.verdict == "drift"
        placed += bool(cause) and path.startswith(cause)
        says = "format" if other.format and path in other.format.wrong else "kernel"
        called += other.verdict == "drift" and says == part
        missed += [] if other.verdict == "drift" else [f"{name} ({times:.1f} times the noise)"]
    sys.stdout.write(
        f"| {label} | {report.verdict} | {used(report):.2f} | {parts} | {owed} | {caught} "
        f"| {placed} | {called} | {below} | {', '.join(missed)} |\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
