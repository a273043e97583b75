"""One piece of a device's arithmetic at a time: what is run, on what, and what is planned where.

Each unit is run again and again, and must give the same bits; the small ones are also held against
float64 on the CPU (expected.py), so that a unit that is wrong each time is found as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from ..torch_runtime import _tf32
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


@dataclass(frozen=True)
class Unit:
    """A kind of arithmetic in a dtype, at a size, on a bit pattern."""

    kind: str
    dtype: str
    size: tuple[int, ...]
    pattern: str
    checked: bool = False
    """Held against float64 too."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.dtype} {'x'.join(map(str, self.size))} {self.pattern}"


class Prepared:
    """A unit with its inputs on a device."""

    def __init__(self, unit: Unit, device: torch.device) -> None:
        self.unit = unit
        self._device = device
        self._dtype = DTYPES[unit.dtype]
        self.inputs = self._made()

    def _made(self) -> list[torch.Tensor]:
        shapes: list[tuple[tuple[int, ...], str]]
        unit, like = self.unit, ("random" if self.unit.pattern == "random" else "checkerboard")
        if unit.kind == "matmul":
            m, k, n = unit.size
            # Products of two denormals would all be 0.
            shapes = [((m, k), unit.pattern), ((k, n), like)]
        elif unit.kind == "attention":
            shapes = [(unit.size, unit.pattern), (unit.size, like), (unit.size, "random")]
        else:
            shapes = [(unit.size, unit.pattern)]
        return [
            values(pattern, shape, self._dtype, self._device, seed)
            for seed, (shape, pattern) in enumerate(shapes, start=1)
        ]

    def run(self) -> States:
        """One repeat; nothing is waited for."""
        with torch.no_grad(), arithmetic(self.unit.dtype, self._device):
            return {"out": OPERATIONS[self.unit.kind](*self.inputs)}


@contextmanager
def arithmetic(dtype: str, device: torch.device) -> Iterator[None]:
    """TF32 where it is meant and nowhere else; the device is the current one."""
    if device.type != "cuda":
        yield
        return
    with _tf32(dtype == "tf32"), torch.cuda.device(device):
        yield


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype != torch.float8_e4m3fn:
        return a @ b
    one = torch.ones((), dtype=torch.float32, device=a.device)
    columns = b.t().contiguous().t()  # the second factor must lie column by column
    made: torch.Tensor = torch._scaled_mm(
        a, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16
    )
    return made


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _reduce(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.sum(0), x.amax(0), x.sum(1), x.amin(1)])


def _normalise(x: torch.Tensor) -> torch.Tensor:
    normed = F.layer_norm(x, x.shape[-1:])
    return torch.cat([normed, torch.softmax(x, -1)])


def _activate(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([F.gelu(x), torch.exp(x), torch.rsqrt(x.abs() + 1)])


OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "matmul": _matmul,
    "attention": _attention,
    "reduction": _reduce,
    "normalisation": _normalise,
    "activation": _activate,
}


def planned(device: torch.device, dtypes: tuple[str, ...], level: str) -> list[Unit]:
    """Which units a level runs on a device."""
    # Float64 on the CPU is what the others are held against; against itself it says nothing.
    own = ("fp64",) if device.type == "cpu" else ()
    found = _planned(device, dtypes, level)
    return [replace(unit, checked=unit.checked and unit.dtype not in own) for unit in found]


def _planned(device: torch.device, dtypes: tuple[str, ...], level: str) -> Iterator[Unit]:
    """Half precision stays tiny on a CPU, where it can be hundreds of times slower."""
    cuda = device.type == "cuda"
    for dtype in dtypes:
        for pattern in ("random", "checkerboard", "walking", "denormals"):
            # Products of fp8 come in multiples of 16 alone.
            odd = (48, 144, 80) if dtype == "fp8" else (37, 61, 53)
            for size in ((64, 64, 64), odd):
                yield Unit("matmul", dtype, size, pattern, checked=True)
        if dtype != "fp8":
            yield from _small(dtype)
        if cuda:
            yield from _large(device, dtype, level)
        elif dtype in ("fp64", "fp32"):
            n = 256 if level == "quick" else 768
            yield Unit("matmul", dtype, (n, n, n), "random")
            yield Unit("attention", dtype, (2, 4, n // 2, 64), "random")
            yield Unit("reduction", dtype, (4 * n + 3, n + 1), "random")
            yield Unit("normalisation", dtype, (n, 4 * n), "random")


def _small(dtype: str) -> Iterator[Unit]:
    if dtype == "tf32":
        return  # a way to multiply; all else is plain float32
    for pattern in ("random", "checkerboard", "walking"):
        yield Unit("attention", dtype, (1, 2, 37, 32), pattern, checked=True)
        yield Unit("reduction", dtype, (129, 63), pattern, checked=True)
        yield Unit("normalisation", dtype, (33, 129), pattern, checked=True)
        yield Unit("activation", dtype, (17, 63), pattern, checked=True)
    yield Unit("reduction", dtype, (129, 63), "denormals", checked=True)


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
