"""One piece of a device's arithmetic at a time: what is run, on what, and what is planned where.

Each unit is run again and again, and must give the same bits; the small ones are also compared with
float64 on the CPU, so that a unit that is wrong each time is found as well. How far off a result
may be is plain error analysis: a sum of K products in a format with roundoff u is off by at most
about K u times the sum of their sizes. These bounds leave room for any order of summation and for
accumulation in float32; a unit that drops a bit of an exponent or a high mantissa bit is far
outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from driftwalk.dtypes import FORMATS
from driftwalk.tasks.hardware.result import Difference

from ..torch_runtime import _tf32
from .digest import locate
from .patterns import values

States = Mapping[str, torch.Tensor]
DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}
FP32 = FORMATS["fp32"].roundoff
SMALL_SIZES = {
    "attention": (1, 2, 37, 32),
    "reduction": (129, 63),
    "normalisation": (33, 129),
    "activation": (17, 63),
}


@dataclass(frozen=True)
class Unit:
    """A kind of arithmetic in a dtype, at a size, on a bit pattern."""

    kind: str
    dtype: str
    size: tuple[int, ...]
    pattern: str
    checked: bool = False
    """Compared with float64 too."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.dtype} {'x'.join(map(str, self.size))} {self.pattern}"


class Prepared:
    """A unit with its inputs on a device."""

    def __init__(self, unit: Unit, device: torch.device) -> None:
        self.unit = unit
        self._device = device
        inputs = [(unit.size, unit.pattern)]
        like = "random" if unit.pattern == "random" else "checkerboard"
        if unit.kind == "matmul":
            m, k, n = unit.size
            # Products of two denormals would all be 0.
            inputs = [((m, k), unit.pattern), ((k, n), like)]
        elif unit.kind == "attention":
            inputs += [(unit.size, like), (unit.size, "random")]
        self._inputs = [
            values(pattern, shape, DTYPES[unit.dtype], device, seed)
            for seed, (shape, pattern) in enumerate(inputs, start=1)
        ]

    def run(self) -> States:
        """One repeat; nothing is waited for."""
        with torch.no_grad(), ExitStack() as modes:
            if self._device.type == "cuda":  # TF32 where it is meant and nowhere else
                modes.enter_context(_tf32(self.unit.dtype == "tf32"))
                modes.enter_context(torch.cuda.device(self._device))
            return {"out": OPERATIONS[self.unit.kind](*self._inputs)}

    def judge(self, states: States) -> tuple[float, Difference]:
        """Compare one result with float64, on the CPU: the largest error over what is allowed.

        It is infinite where the result is not finite. Beside it, the elements that are too far off,
        against float64 rounded to the dtype.
        """
        host = states["out"].detach().cpu()
        wide = [tensor.detach().cpu().double() for tensor in self._inputs]
        right = OPERATIONS[self.unit.kind](*wide)
        off = (host.double() - right).abs()
        ratio = torch.where(off > 0, off / _allowed(self.unit, wide, right), 0.0)
        ratio = torch.where(torch.isfinite(host.double()), ratio, torch.inf)
        # Where it is right, its own bits stand in: only what is too far off is listed.
        differing, flips = locate(torch.where(ratio > 1, right.to(host.dtype), host), host)
        return float(ratio.max()), (differing, host.numel(), flips)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype != torch.float8_e4m3fn:
        return a @ b
    one = torch.ones((), dtype=torch.float32, device=a.device)
    columns = b.t().contiguous().t()  # the second factor must lie column by column
    made: torch.Tensor = torch._scaled_mm(
        a, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
    )
    return made


OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "matmul": _matmul,
    "attention": partial(F.scaled_dot_product_attention, is_causal=True),
    "reduction": lambda x: torch.cat([x.sum(0), x.amax(0), x.sum(1), x.amin(1)]),
    "normalisation": lambda x: torch.cat([F.layer_norm(x, x.shape[-1:]), x.softmax(-1)]),
    "activation": lambda x: torch.cat([F.gelu(x), torch.exp(x), torch.rsqrt(x.abs() + 1)]),
}


def planned(device: torch.device, dtypes: tuple[str, ...], level: str) -> list[Unit]:
    """Which units a level runs on a device."""
    cuda = device.type == "cuda"
    units: list[Unit] = []
    for dtype in dtypes:
        # Float64 on the CPU is what the others are compared with; with itself it says nothing.
        units += _small(dtype, checked=cuda or dtype != "fp64")
        if cuda:
            units += _large(device, dtype, level)
        elif dtype in ("fp64", "fp32"):  # halves can be hundreds of times slower on a CPU
            n = 256 if level == "quick" else 768
            units += [
                Unit("matmul", dtype, (n, n, n), "random"),
                Unit("attention", dtype, (2, 4, n // 2, 64), "random"),
                Unit("reduction", dtype, (4 * n + 3, n + 1), "random"),
                Unit("normalisation", dtype, (n, 4 * n), "random"),
            ]
    return units


def _small(dtype: str, checked: bool) -> Iterator[Unit]:
    for pattern in ("random", "checkerboard", "walking", "denormals"):
        # Products of fp8 come in multiples of 16 alone.
        odd = (48, 144, 80) if dtype == "fp8" else (37, 61, 53)
        for size in ((64, 64, 64), odd):
            yield Unit("matmul", dtype, size, pattern, checked)
    if dtype in ("fp8", "tf32"):
        return  # for products alone
    for pattern in ("random", "checkerboard", "walking"):
        for kind, extents in SMALL_SIZES.items():
            yield Unit(kind, dtype, extents, pattern, checked)
    yield Unit("reduction", dtype, SMALL_SIZES["reduction"], "denormals", checked)


def _large(device: torch.device, dtype: str, level: str) -> Iterator[Unit]:
    """Sizes that keep all of a GPU at work; from `standard` on, ones that fill it."""
    n = 2048 if level == "quick" else _filling(device, dtype)
    odd = (n - 16, n // 2 + 16, n // 4 + 16) if dtype == "fp8" else (n - 1, n // 2 + 7, 777)
    for pattern in ("random", "walking"):
        yield Unit("matmul", dtype, (n, n, n), pattern)
    yield Unit("matmul", dtype, odd, "random")
    if dtype in ("tf32", "fp8"):
        return
    length = 1024 if level == "quick" else 4096
    heads = 2 if dtype == "fp64" else 16  # float64 attention holds the whole table of weights
    yield Unit("attention", dtype, (2, heads, length, 64), "random")
    yield Unit("attention", dtype, (1, 3, length - 25, 128), "random")
    yield Unit("reduction", dtype, (8 * n + 3, n + 1) if level == "quick" else (n, n + 1), "random")
    yield Unit("normalisation", dtype, (n, n), "random")
    yield Unit("activation", dtype, (n, n + 3), "random")


def _filling(device: torch.device, dtype: str) -> int:
    """The largest matrix product that a fifth of the free memory holds; at most 16384 wide."""
    free, _ = torch.cuda.mem_get_info(device)
    most = 8192 if dtype == "fp64" else 16384
    # Inputs are made from several 64-bit integers an element, one matrix at a time.
    side = int((free * 0.2 / (3 * 8 + 4 * 8)) ** 0.5)
    return max(256, min(most, side // 256 * 256))


def _allowed(unit: Unit, wide: list[torch.Tensor], right: torch.Tensor) -> torch.Tensor:
    u = _roundoff(unit)
    native = DTYPES[unit.dtype]
    least = float(torch.finfo(native).tiny)  # denormals may be flushed to 0, in or out
    # Formats below float32 are summed in float32 and rounded at the end, or a few times on the way.
    terms = FP32 if u > FP32 else u
    if unit.kind == "matmul":
        a, b = wide
        sizes = a.abs() @ b.abs()
        few = 4 if unit.dtype in ("fp64", "fp32") else 16
        flushed = a.shape[1] * least * float(b.abs().max())
        return (few * u + a.shape[1] * terms) * sizes + flushed
    x = wide[0]
    if unit.kind == "attention":
        return (16 * u + 64 * terms) * wide[2].abs().amax() + torch.zeros_like(right) + least
    if unit.kind == "reduction":
        down, along = x.abs().sum(0), x.abs().sum(1)
        summed = [down * x.shape[0], x.new_zeros(x.shape[1]), along * x.shape[1]]
        many = torch.cat([*summed, x.new_zeros(x.shape[0])]) * terms
        return many + 4 * u * right.abs() + least * max(x.shape)
    if unit.kind == "normalisation":
        return (8 * u + 64 * terms) * (right.abs().amax() + 1) + torch.zeros_like(right)
    return (8 * u + 32 * terms) * (right.abs() + 1)


def _roundoff(unit: Unit) -> float:
    """Of one operation; where the user has allowed float32 products to be coarser, of that."""
    mode = os.environ.get("DNNL_DEFAULT_FPMATH_MODE", "").upper()
    if unit.dtype == "fp32" and unit.kind in ("matmul", "attention") and mode in ("BF16", "ANY"):
        return FORMATS["bf16"].roundoff
    if unit.dtype == "tf32":
        return 2 * FORMATS["tf32"].roundoff  # some devices cut off instead of rounding
    if unit.dtype == "fp8":
        return FORMATS["bf16"].roundoff  # inputs are exact; sums are kept in few bits
    return FORMATS[unit.dtype].roundoff
