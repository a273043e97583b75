"""Arithmetic as a coarser format would do it: dispatch modes that round what every op gives.

The model really is in half precision. Every op computes in float32 and its result is rounded to the
dtype the op would have had, which is what a GPU's kernels do inside one op. Views pass through; an
op with a float32 tensor among its inputs stays float32, so that upcasts the model itself makes
(RMSNorm, rotary angles, softmax) are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten

Args = tuple[Any, ...]
Kwargs = dict[str, Any] | None

_MOVES = {
    aten._to_copy.default,
    aten.clone.default,
    aten.copy_.default,
    aten.embedding.default,
    aten.index_select.default,
    aten.cat.default,
}
"""Ops that only move numbers: exact in any dtype, so they need no detour through float32."""

MATMULS = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.convolution.default: (0, 1),
}
"""Matrix-product-like ops, and which arguments their multipliers take."""


class HalfArithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every op on `dtype` tensors computes in float32 and rounds its results to `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs = None
    ) -> Any:
        kwargs = kwargs or {}
        flat = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if _is_float(t)]
        if func.is_view or func in _MOVES or not any(t.dtype == self._dtype for t in flat):
            return func(*args, **kwargs)
        # Type promotion: a float32 tensor of any rank above zero keeps the op in float32.
        wider = any(t.dtype != self._dtype and t.ndim > 0 for t in flat)
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        given = func(*tree_map(self._widened, args), **tree_map(self._widened, kwargs))
        if wider or kwargs.get("dtype") not in (None, self._dtype):
            return given
        return tree_map(self._rounded, given)

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run on a float32 copy of what is written, then write back, which rounds."""
        target = args[0]
        wide = tree_map(self._widened, args)
        func(*wide, **tree_map(self._widened, kwargs))
        target.copy_(wide[0])
        return target

    def _widened(self, value: Any) -> Any:
        return value.float() if _is_float(value) and value.dtype == self._dtype else value

    def _rounded(self, value: Any) -> Any:
        fits = _is_float(value) and value.dtype == torch.float32
        return value.to(self._dtype) if fits else value


class Tf32Arithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Matrix products see their float32 inputs rounded to TF32's 10 mantissa bits."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs = None
    ) -> Any:
        if func in MATMULS and not _is_outer_product(func, args):
            args = tuple(
                to_tf32(a) if number in MATMULS[func] else a for number, a in enumerate(args)
            )
        return func(*args, **(kwargs or {}))


class Fp8Linear(TorchFunctionMode):
    """Linear layers see weights and activations rounded to e4m3 with one scale per tensor."""

    def __torch_function__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.linear:
            args = (*(to_fp8(a) for a in args[:2]), *args[2:])
        elif func is torch.addmm and isinstance(args[2], torch.nn.Parameter):
            args = (args[0], to_fp8(args[1]), to_fp8(args[2]), *args[3:])
        return func(*args, **kwargs)


def _is_outer_product(func: Any, args: Args) -> bool:
    """A product over one term, as rotary angles are made: no tensor core is used for it."""
    first = args[MATMULS[func][0]]
    return bool(first.ndim <= 3 and first.shape[-1] == 1)


def to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Round float32 to 10 mantissa bits, to nearest, ties away from zero (`cvt.rna.tf32`)."""
    if tensor.dtype != torch.float32:
        return tensor
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).view(tensor.shape)


def to_fp8(tensor: torch.Tensor) -> torch.Tensor:
    """Round to e4m3 under a scale that puts the largest magnitude at the format's largest."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    scale = tensor.abs().amax().clamp_min(torch.finfo(torch.float32).tiny) / largest
    return (tensor / scale).to(torch.float8_e4m3fn).to(tensor.dtype) * scale


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


ARITHMETIC: dict[str, Callable[[], Any]] = {
    "fp16": lambda: HalfArithmetic(torch.float16),
    "bf16": lambda: HalfArithmetic(torch.bfloat16),
    "tf32": Tf32Arithmetic,
    "fp8": Fp8Linear,
}
