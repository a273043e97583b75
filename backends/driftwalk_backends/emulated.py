"""The `emulated` backend: a coarser format's arithmetic on a device that may have none.

It predicts the drift of hardware you do not own, and is the yardstick for it.

The model really is in half precision. Every op computes in float32 and its result is rounded to the
dtype the op would have had, which is what a GPU's kernels do inside one op. Views pass through;
what PyTorch itself would give in float32 stays float32, so that upcasts the model itself makes
(RMSNorm, rotary angles, softmax) are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from driftwalk.adapter import BackendInfo, Offer
from driftwalk.errors import UsageError
from driftwalk.mixture import FROM_BIAS, OWN
from driftwalk.spec import Spec

from . import half_attention, scratch
from .bias_sums import bias_sums
from .half_sums import CONVOLUTION, own_convolution
from .loaded import LoadedModel
from .op_values import (
    called_with,
    changed,
    changed_arguments,
    is_random,
    leaves_of,
    tensors_of,
    written,
)
from .reading import announce
from .torch_eager import TorchEager
from .widening import MOVES, Args, EachOp, Kwargs

aten = torch.ops.aten

MATMULS = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.convolution.default: (0, 1),
}
"""Matrix-product-like ops, and which arguments their multipliers take."""


class HalfArithmetic(EachOp):
    """Every op on `dtype` tensors computes in float32 and rounds its results to the dtype it would
    have had."""

    def __init__(self, dtype: torch.dtype, rounds_attention: bool = False) -> None:
        super().__init__()
        self.own_convolutions = False
        self.rounds_attention = rounds_attention
        self._half = dtype
        self._wide = {dtype: torch.float32}
        if dtype is torch.float16:
            self._wide[torch.complex32] = torch.complex64
        self.wider = self._wide
        self._dtypes: dict[Any, list[torch.dtype] | None] = {}

    def op(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        flat = tensors_of(args, kwargs)
        if not flat and is_random(func) and (own := kwargs.get("dtype")) in self._wide:
            # The numbers that other precisions draw, rounded.
            return func(*args, **(kwargs | {"dtype": self._wide[own]})).to(own)
        free = func.is_view or func in MOVES or torch.Tag.inplace_view in func.tags
        if free or not any(t.dtype in self._wide for t in flat):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        dtypes = self._result_dtypes(func, args, kwargs, flat)
        if (own := kwargs.get("dtype")) in self._wide:
            kwargs = kwargs | {"dtype": self._wide[own]}
        read = functools.partial(self._widened, cast=_for_reading)
        given = scratch.run(lambda: called_with(read, func, args, kwargs))
        if self.own_convolutions and func is CONVOLUTION and args[0].dtype == args[1].dtype:
            return own_convolution(args, given)
        if self.rounds_attention and func in half_attention.KERNELS:
            wide = changed_arguments(self._widened, args, kwargs)
            given = half_attention.with_rounded_weights(func, *wide, given, self._half)
        leaves, spec = tree_flatten(given)
        if dtypes is None or len(dtypes) != len(leaves):
            dtypes = [self._promoted(flat)] * len(leaves)
        return tree_unflatten([_rounded(t, d) for t, d in zip(leaves, dtypes, strict=True)], spec)

    def _in_place(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run on float32 copies of what is written, then write back, which rounds."""
        wide_args, wide_kwargs = changed_arguments(self._widened, args, kwargs)
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
        self, func: Any, args: Args, kwargs: Kwargs, flat: list[torch.Tensor]
    ) -> list[torch.dtype] | None:
        """The dtypes that PyTorch itself would give, from a run without data; None: it cannot."""
        key = (func, kwargs.get("dtype"), *((t.dtype, t.ndim > 0) for t in flat))
        if key not in self._dtypes:
            try:
                meta = called_with(_without_data, func, args, kwargs)
                self._dtypes[key] = [getattr(t, "dtype", torch.int64) for t in leaves_of(meta)]
            except (RuntimeError, NotImplementedError, TypeError, ValueError):
                self._dtypes[key] = None  # sizes that depend on the data, or no such kernel
        return self._dtypes[key]

    def _promoted(self, flat: list[torch.Tensor]) -> torch.dtype:
        """Type promotion: a float32 tensor of any rank above zero keeps an op in float32."""
        floats = [t for t in flat if t.is_floating_point() or t.is_complex()]
        counting = [t for t in floats if t.ndim] or floats
        return functools.reduce(torch.promote_types, (t.dtype for t in counting))

    def narrowed(self, given: Any, taken: list[torch.Tensor]) -> Any:
        """Rounded to what the inputs promote to; there are no complex numbers of bfloat16."""
        dtype = self._promoted(taken)
        complex_dtype = torch.complex32 if dtype in (torch.float16, torch.complex32) else None

        def rounded(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_complex():
                return value if complex_dtype is None else _rounded(value, complex_dtype)
            return _rounded(value, torch.float16 if complex_dtype else dtype)

        return changed(rounded, given)

    def _widened(self, value: Any, cast: Callable[..., torch.Tensor] = torch.Tensor.to) -> Any:
        half = isinstance(value, torch.Tensor) and value.dtype in self._wide
        return cast(value, self._wide[value.dtype]) if half else value


def _for_reading(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        announce(tensor)
    return scratch.cast(tensor, dtype)


def _without_data(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("meta")
    return torch.empty_like(value, device="meta") if isinstance(value, torch.Tensor) else value


def _rounded(value: Any, dtype: torch.dtype) -> Any:
    """Of the float32 results, those that are to be half."""
    fits = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.complex64)
    return value.to(dtype) if fits and dtype.itemsize < value.dtype.itemsize else value


class Tf32Arithmetic(EachOp):
    """Matrix products see their float32 inputs rounded to TF32's 10 mantissa bits."""

    def op(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        rounded = MATMULS.get(func, ())
        # A product over one term, as rotary angles are made: no tensor core is used for it.
        if rounded and (args[rounded[0]].ndim > 3 or args[rounded[0]].shape[-1] != 1):
            args = tuple(to_tf32(a) if number in rounded else a for number, a in enumerate(args))
        return func(*args, **kwargs)


class Fp8Linear(TorchFunctionMode):
    """Linear layers see weights and activations rounded to e4m3 with one scale per tensor."""

    def __torch_function__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        if func is torch.nn.functional.linear:
            args = (*(to_fp8(a) for a in args[:2]), *args[2:])
        elif func is torch.addmm and isinstance(args[2], torch.nn.Parameter):
            args = (args[0], to_fp8(args[1]), to_fp8(args[2]), *args[3:])
        return func(*args, **(kwargs or {}))


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

_HOLDS = {"fp16": "fp16", "bf16": "bf16", "tf32": "fp32", "fp8": "fp32"}
"""The dtype the model itself is in under each arithmetic."""


def rounds_attention(model: LoadedModel) -> bool:
    """Whether what attention's kernels round inside shows: where whole numbers come next."""
    return model.declared is not None and model.declared.tips


def attention_for_floats(device: torch.device) -> AbstractContextManager[None]:
    """Of a GPU's kernels for attention, only those that can compute in float32, too.

    One is chosen by the dtype of the model, and given wider numbers afterwards.
    """
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


class Emulated(TorchEager):
    """Eager PyTorch, every op rounded as the format would."""

    name: ClassVar[str] = "emulated"
    draws_as_float32: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str]] = {
        name: text
        for name, text in TorchEager.options.items()
        if name in ("address", "attn", "ranges", "stream", "threads")
    } | {
        "convolutions": "own: by this CPU's own half-precision kernels, which may sum in halves",
        "sums": "from-bias, with fp32: each sum begins with the bias, as XNNPACK's do",
    }

    def __init__(self, spec: Spec, model: object) -> None:
        self._sums = spec.choice("sums", (FROM_BIAS,), "") if "sums" in spec.options else ""
        if self._sums and spec.dtype != "fp32":
            raise UsageError(f"{spec}: sums={self._sums} is for emulated:fp32.")
        if spec.dtype not in ARITHMETIC and not self._sums:
            raise UsageError(
                f"Backend 'emulated' needs a dtype: emulated:{{{','.join(ARITHMETIC)}}}; "
                f"got {str(spec)!r}."
            )
        self._format, self._convolutions = spec.dtype, spec.options.get("convolutions", "")
        if self._convolutions not in ("", OWN):
            raise UsageError(
                f"Option 'convolutions' of backend 'emulated' is {OWN!r} or not given; "
                f"got {self._convolutions!r}."
            )
        super().__init__(replace(spec, dtype=_HOLDS.get(spec.dtype, spec.dtype)), model)
        self.spec = spec

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return [Offer(f"emulated:{name}", True, "emulated in float32") for name in ARITHMETIC]

    @property
    def info(self) -> BackendInfo:
        info = replace(super().info, dtype=self._format)
        return replace(info, flags={**info.flags, "sums": self._sums}) if self._sums else info

    @property
    def _own_convolutions(self) -> bool:
        return self._convolutions == OWN

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        attention = attention_for_floats(self._device)
        arithmetic = bias_sums() if self._sums else ARITHMETIC[self._format]()
        if isinstance(arithmetic, HalfArithmetic):
            arithmetic.own_convolutions = self._own_convolutions
            arithmetic.rounds_attention = rounds_attention(self._model)
        with super()._arithmetic(), attention, arithmetic:
            yield
