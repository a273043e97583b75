"""Arithmetic as a coarser format would do it: dispatch modes that round what every op gives.

The model really is in half precision. Every op computes in float32 and its result is rounded to the
dtype the op would have had, which is what a GPU's kernels do inside one op. Views pass through;
what PyTorch itself would give in float32 stays float32, so that upcasts the model itself makes
(RMSNorm, rotary angles, softmax) are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .widening import is_composite, is_random, written

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
    """Every op on `dtype` tensors computes in float32 and rounds its results to the dtype it would
    have had."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wide = {dtype: torch.float32}
        if dtype is torch.float16:
            self._wide[torch.complex32] = torch.complex64
        self._dtypes: dict[Any, list[torch.dtype] | None] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch.is_inference_mode_enabled() and is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        flat = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not flat and is_random(func) and (own := kwargs.get("dtype")) in self._wide:
            # The numbers that other precisions draw, rounded.
            return func(*args, **(kwargs | {"dtype": self._wide[own]})).to(own)
        if _is_free(func) or not any(t.dtype in self._wide for t in flat):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        dtypes = self._result_dtypes(func, args, kwargs, flat)
        if kwargs.get("dtype") in self._wide:
            kwargs["dtype"] = self._wide[kwargs["dtype"]]
        given = func(*tree_map(self._widened, args), **tree_map(self._widened, kwargs))
        leaves, spec = tree_flatten(given)
        if dtypes is None or len(dtypes) != len(leaves):
            dtypes = [self._promoted(flat)] * len(leaves)
        return tree_unflatten([_rounded(t, d) for t, d in zip(leaves, dtypes, strict=True)], spec)

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run on float32 copies of what is written, then write back, which rounds."""
        wide_args, wide_kwargs = tree_map(self._widened, args), tree_map(self._widened, kwargs)
        given = func(*wide_args, **wide_kwargs)
        targets = written(func, args, kwargs)
        for target, wide in zip(targets, written(func, wide_args, wide_kwargs), strict=True):
            if target is not wide:
                if target.shape != wide.shape:  # `out=` of another shape is resized
                    target.resize_(wide.shape)
                target.copy_(wide)
        if isinstance(given, torch.Tensor):
            return targets[0]
        return given if given is None else type(given)(targets)

    def _result_dtypes(
        self, func: Any, args: Args, kwargs: dict[str, Any], flat: list[torch.Tensor]
    ) -> list[torch.dtype] | None:
        """The dtypes that PyTorch itself would give, from a run without data; None: it cannot."""
        key = (func, kwargs.get("dtype"), *((t.dtype, t.ndim > 0) for t in flat))
        if key not in self._dtypes:
            try:
                meta = func(*tree_map(_without_data, args), **tree_map(_without_data, kwargs))
                self._dtypes[key] = [getattr(t, "dtype", torch.int64) for t in tree_leaves(meta)]
            except (RuntimeError, NotImplementedError, TypeError, ValueError):
                self._dtypes[key] = None  # sizes that depend on the data, or no such kernel
        return self._dtypes[key]

    def _promoted(self, flat: list[torch.Tensor]) -> torch.dtype:
        """Type promotion: a float32 tensor of any rank above zero keeps an op in float32."""
        floats = [t for t in flat if t.is_floating_point() or t.is_complex()]
        counting = [t for t in floats if t.ndim] or floats
        return functools.reduce(torch.promote_types, (t.dtype for t in counting))

    def _widened(self, value: Any) -> Any:
        half = isinstance(value, torch.Tensor) and value.dtype in self._wide
        return value.to(self._wide[value.dtype]) if half else value


def _is_free(func: Any) -> bool:
    """Views, moves and changes of shape: nothing is rounded."""
    return func.is_view or func in _MOVES or torch.Tag.inplace_view in func.tags


def _without_data(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("meta")
    return torch.empty_like(value, device="meta") if isinstance(value, torch.Tensor) else value


def _rounded(value: Any, dtype: torch.dtype) -> Any:
    """Of the float32 results, those that are to be half."""
    fits = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.complex64)
    return value.to(dtype) if fits and dtype.itemsize < value.dtype.itemsize else value


class Tf32Arithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Matrix products see their float32 inputs rounded to TF32's 10 mantissa bits."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs = None
    ) -> Any:
        if torch.is_inference_mode_enabled() and is_composite(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
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


class Jittered(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every float64 result is off by a random part of `roundoff`, relatively; moves are exact."""

    def __init__(self, roundoff: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._roundoff = roundoff
        self._random: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs = None
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        exact = func.is_view or func in _MOVES or func._schema.is_mutable
        return given if exact else tree_map(self._off, given)

    def _off(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
            return value
        random = self._random.setdefault(value.device, torch.Generator(value.device).manual_seed(0))
        noise = torch.empty_like(value).uniform_(-self._roundoff, self._roundoff, generator=random)
        off = value.addcmul(value, noise)
        return torch.where(off.isfinite(), off, value)  # a mask's lowest number stays what it is


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


ARITHMETIC: dict[str, Callable[[], Any]] = {
    "fp16": lambda: HalfArithmetic(torch.float16),
    "bf16": lambda: HalfArithmetic(torch.bfloat16),
    "tf32": Tf32Arithmetic,
    "fp8": Fp8Linear,
}
