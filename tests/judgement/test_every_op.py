"""Every kind of operation in emulated half precision and in the truth's float64 (op_table.py)."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

import driftwalk
import op_table
from driftwalk_backends.emulated import HalfArithmetic
from driftwalk_backends.precision import converted
from driftwalk_backends.widening import MixedOps, WidenedCasts
from torch_nets import Block

pytestmark = pytest.mark.filterwarnings(
    "ignore:ComplexHalf support", "ignore:LSTM with projections"
)
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
X = torch.randn(*op_table.SHAPE, generator=torch.Generator().manual_seed(3))


def run(module: nn.Module, x: torch.Tensor, *modes: object) -> list[torch.Tensor]:
    """All that a module gives, drawn from the same random numbers each time."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), ExitStack() as stack:
        torch.manual_seed(0)
        for mode in modes:
            stack.enter_context(mode)  # type: ignore[arg-type]
        return [leaf for leaf in tree_leaves(module(x)) if isinstance(leaf, torch.Tensor)]


def error(given: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, relative to the largest number."""
    size = exact.double().abs().max() + 1e-30
    return float((given.double() - exact.double()).abs().max() / size)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", op_table.NAMES)
def test_emulated_halves_are_as_wrong_as_native_ones(name: str, dtype: str) -> None:
    module, half = op_table.build(name), HALVES[dtype]
    exact = run(module, X)
    narrow = converted(module, dtype, "cpu")
    emulated = run(narrow, X.to(half), HalfArithmetic(half))
    eps = torch.finfo(half).eps
    for given, right in zip(emulated, exact, strict=True):
        assert error(given, right) < 40 * eps
    try:
        native = run(narrow, X.to(half))
    except RuntimeError:
        return  # PyTorch has no such kernel on this CPU
    assert [t.dtype for t in emulated] == [t.dtype for t in native]
    for given, own, right in zip(emulated, native, exact, strict=True):
        assert error(given, right) <= 2 * error(own, right) + eps
        assert error(own, right) <= 4 * error(given, right) + 2 * eps


@pytest.mark.parametrize("mode", [WidenedCasts, MixedOps])
@pytest.mark.parametrize("name", op_table.NAMES)
def test_the_truth_takes_every_op(name: str, mode: type) -> None:
    module = op_table.build(name)
    wide = converted(module, "fp64", "cpu")
    if mode is MixedOps and name in op_table.DRAWS:
        pytest.skip("casts as written: float64 draws numbers of its own")
    found = run(wide, X.double(), sdpa_kernel(SDPBackend.MATH), mode())
    for given, right in zip(found, run(module, X), strict=True):
        assert error(given, right) < 1e-5
        if mode is WidenedCasts and right.is_floating_point():
            assert given.dtype == torch.float64


class Behind(nn.Module):
    """Two blocks, and operations on what they give, each an output of its own."""

    def __init__(self, ops: dict[str, nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.ops = nn.ModuleDict(ops)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = layer(x)
        return {name: op(x) for name, op in self.ops.items()}


GROUPS = [op_table.NAMES[at : at + 12] for at in range(0, len(op_table.NAMES), 12)]


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]} to {names[-1]}")
def test_no_op_is_a_false_alarm(names: tuple[str, ...]) -> None:
    ops = {f"op{number}": op_table.build(name) for number, name in enumerate(names)}
    torch.manual_seed(5)
    model = Behind(ops).eval()
    report = driftwalk.verify(model, candidate="emulated:bf16", probe={"x": X}, cache=False)
    wrong = [row.point.name for row in report.layers if not row.ok]
    assert report.ok, (report.verdict, report.reason, wrong, dict(zip(ops, names, strict=True)))
    assert len(report.layers) >= len(names) + 2
