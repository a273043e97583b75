"""The truth's arithmetic: a model in float64 whose own casts to float32 do not narrow it.

Many models cast to float32 inside (RMSNorm, rotary angles). In a float64 model that means "wide
enough", so that such casts stay float64. Numbers that come from integers and constants alone
(position buckets, lengths, masks) are another matter: where they are rounded down, compared or made
integers again, the float32 result is part of the model's function, and 7.9999995 is not 8. They
are computed twice, in float64 for what is continuous and in the model's own dtype for what is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .constants import MASK_SIZE
from .op_mode import OpMode
from .op_values import (
    called_with,
    changed,
    changed_arguments,
    is_random,
    leaves_of,
    tensors_of,
    written,
)

aten = torch.ops.aten

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_NARROW = {wide: narrow for narrow, wide in _WIDE.items()}
_HALVES = {torch.float16: torch.float64, torch.bfloat16: torch.float64}
_HALVES |= {torch.complex32: torch.complex128}
_WIDER = _WIDE | _HALVES

_STEPS = {"ceil", "floor", "floor_divide", "fmod", "frac", "heaviside", "remainder", "round"}
_STEPS |= {"sgn", "sign", "trunc"}
"""Ops with jumps, as `div` with a rounding mode is: one roundoff of the input can change all."""

SUMS = {aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor}
_MOST = torch.finfo(torch.float32).max


MOVES = {
    *(aten._to_copy.default, aten.clone.default, aten.copy_.default),
    *(aten.embedding.default, aten.index_select.default, aten.cat.default),
}
"""Ops that only move numbers: exact in any dtype."""


class EachOp(OpMode):
    """Sees every operation; in inference mode also those that others are made of.

    Some functions refuse a dtype, or a mixture of dtypes, before any operation is seen: Fourier
    transforms of halves, attention with a query wider than its keys. `wider` has these run on
    wider inputs.
    """

    wider: Mapping[torch.dtype, torch.dtype] = {}
    """The dtypes that a function which refuses them is given wider, and how wide."""
    most: float = math.inf
    """The largest number of the model's own dtype, where this arithmetic has larger ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._entered = 0
        self._retrying: _Retrying | None = None

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._entered += 1
        if self._entered == 1 and self.wider:  # not again for the parts of an operation
            self._retrying = _Retrying(self.wider, self.narrowed, self.most)
            self._retrying.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        self._entered -= 1
        if not self._entered and self._retrying is not None:
            self._retrying.__exit__(*raised)  # type: ignore[no-untyped-call]
            self._retrying = None
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def narrowed(self, given: Any, taken: list[torch.Tensor]) -> Any:
        """What a function gave on wider inputs, as it would have been for those it was given."""
        return given

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        return self.op(func, args, kwargs)

    def op(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """What the operation gives here."""
        raise NotImplementedError


class _Retrying(TorchFunctionMode):
    """Calls a function that refuses its inputs once more, on wider ones."""

    def __init__(
        self,
        wider: Mapping[torch.dtype, torch.dtype],
        narrowed: Callable[[Any, list[torch.Tensor]], Any],
        most: float,
    ) -> None:
        super().__init__()
        self._wider = wider
        self._narrowed = narrowed
        self._most = most

    def __torch_function__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor:  # of a Python number: float32, and infinite beyond it
            args = tree_map(partial(_held, most=self._most), args)
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError):
            taken = tensors_of(args, kwargs)
            writes = str(getattr(func, "__name__", "")).endswith("_") or "out" in kwargs
            if writes or not any(t.dtype in self._wider for t in taken):
                raise
            widen = partial(_cast, dtypes=self._wider)
            try:
                given = func(*tree_map(widen, args), **tree_map(widen, kwargs))
            except (RuntimeError, NotImplementedError, TypeError):
                given = None
            if given is None:
                raise  # it was not the dtype
            return self._narrowed(given, taken)


class MixedOps(EachOp):
    """An op on float32 and float64 tensors computes in float64, also where PyTorch refuses to."""

    wider = _WIDER
    most = _MOST

    def op(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        tensors = tensors_of(args, kwargs)
        if any(t.dtype in _NARROW for t in tensors) and any(t.dtype in _WIDE for t in tensors):
            args, kwargs = _matched(func, args, kwargs)
        return func(*args, **kwargs)


class _Own(NamedTuple):
    """What the model itself would hold in place of a widened tensor; views share `alive`."""

    tensor: torch.Tensor
    alive: list[bool]


class WidenedCasts(EachOp):
    """Casts to float32 and complex64 keep 64 bits a number; jumps stay where the model has them."""

    wider = _WIDER

    def __init__(self, lowest: float = -_MOST) -> None:
        """`lowest` is the lowest number of the model's own dtype, where float64 has a lower one."""
        super().__init__()
        self.most = -lowest

    def op(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        kwargs, tensors = dict(kwargs), tensors_of(args, kwargs)
        if any(t.dtype in _NARROW and own_of(t) is None for t in tensors):
            return self._computed(func, args, kwargs, tensors)
        if not tensors and kwargs.get("dtype") in _NARROW and not is_random(func):
            return func(*args, **kwargs)
        return self._born(func, args, kwargs, tensors)

    def _computed(self, func: Any, args: Args, kwargs: Kwargs, tensors: list[Any]) -> Any:
        """An op with float64 tensors of the model's own among its inputs."""
        targets = written(func, args, kwargs)
        for tensor in targets:
            if (own := own_of(tensor)) is not None:
                own.alive[0] = False  # it now holds more than integers and constants
        if is_random(func):
            return _drawn(func, args, kwargs, targets)
        if kwargs.get("dtype") in _WIDE:
            kwargs["dtype"] = _WIDE[kwargs["dtype"]]
        if func is aten.view.dtype:
            return _reinterpreted(func, args)
        if any(t.dtype in _WIDE for t in tensors):
            args, kwargs = _matched(func, args, kwargs)
        held = partial(_held, most=self.most)
        given = func(*map(held, args), **{name: held(value) for name, value in kwargs.items()})
        return _absorbed(given, targets) if func in SUMS else given

    def _born(self, func: Any, args: Args, kwargs: Kwargs, tensors: list[Any]) -> Any:
        """An op on integers and constants, and on what was made of them."""
        if is_random(func) and kwargs.get("dtype") in _NARROW:
            kwargs["dtype"] = _NARROW[kwargs["dtype"]]
        native = called_with(_native, func, args, kwargs)
        if targets := written(func, args, kwargs):
            return self._born_in_place(func, args, kwargs, targets, native)
        leaves, spec = tree_flatten(native)
        if not any(isinstance(leaf, torch.Tensor) and leaf.dtype in _WIDE for leaf in leaves):
            return native
        if func.is_view and func is not aten.lift_fresh.default:
            shared = next((own for t in tensors if (own := own_of(t)) is not None), None)
            if shared is None:
                return native  # a view of a tensor that was float32 before the run
            wide = leaves_of(func(*args, **kwargs))
            alive = shared.alive
        else:
            wide, alive = self._wide_of(func, args, kwargs, leaves), [True]
        return tree_unflatten(
            [paired(w, n, alive) for w, n in zip(wide, leaves, strict=True)], spec
        )

    def _wide_of(self, func: Any, args: Args, kwargs: Kwargs, natives: list[Any]) -> list[Any]:
        """The same in float64; what the model itself would get where float64 has another answer."""
        if not (_has_steps(func, kwargs) or is_random(func)):
            if kwargs.get("dtype") in _WIDE:
                kwargs["dtype"] = _WIDE[kwargs["dtype"]]
            with _floats_in(torch.float64):  # of whole numbers and a float, too
                wide = leaves_of(called_with(_widened, func, args, kwargs))
            shapes = [
                [getattr(leaf, "shape", None) for leaf in leaves] for leaves in (wide, natives)
            ]
            if shapes[0] == shapes[1]:
                return [_within(_widened(w), n) for w, n in zip(wide, natives, strict=True)]
        return [_widened(n) for n in natives]

    def _born_in_place(
        self, func: Any, args: Args, kwargs: Kwargs, targets: list[Any], native: Any
    ) -> Any:
        pairs = [(t, own) for t in targets if (own := own_of(t)) is not None]
        if not pairs:
            return targets[0] if isinstance(native, torch.Tensor) else native
        if _has_steps(func, kwargs) or is_random(func):
            for tensor, own in pairs:
                tensor.copy_(own.tensor)
        else:
            args, kwargs = _matched(func, args, kwargs)
            func(*args, **kwargs)
        return targets[0] if isinstance(native, torch.Tensor) else tuple(targets)


@contextmanager
def _floats_in(dtype: torch.dtype) -> Iterator[None]:
    """What torch makes of Python's floats."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def is_composite(func: Any) -> bool:
    """Whether an op is made of others; only in inference mode does a dispatch mode see such ops."""
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    )


def own_of(tensor: torch.Tensor) -> _Own | None:
    """What the model itself would hold in place of a tensor; None where that is not known."""
    own: _Own | None = getattr(tensor, "_driftwalk_own", None)
    return own if own is not None and own.alive[0] else None


def _held(value: Any, most: float) -> Any:
    """What is filled in with the lowest number of a dtype is filled in with the model's own."""
    beyond = isinstance(value, float) and most < abs(value) < math.inf
    return math.copysign(most, value) if beyond else value


def _native(value: Any) -> Any:
    """What the model itself would hand over; its lowest number is float32's, not float64's."""
    value = _held(value, _MOST)
    own = own_of(value) if isinstance(value, torch.Tensor) else None
    return value if own is None else own.tensor


def _within(wide: Any, native: Any) -> Any:
    """What a float32 model cannot hold is its own number: float32's lowest, not float64's."""
    if not isinstance(native, torch.Tensor) or native.dtype != torch.float32:
        return wide
    beyond = wide.abs() > _MOST
    return torch.where(beyond, native.to(wide.dtype), wide) if beyond.any() else wide


def paired(wide: Any, native: Any, alive: list[bool]) -> Any:
    """A widened result, with what the model itself would hold in its place."""
    if not isinstance(native, torch.Tensor) or native.dtype not in _WIDE:
        return native
    wide._driftwalk_own = _Own(native, alive)
    return wide


def _cast(value: Any, dtypes: Mapping[torch.dtype, torch.dtype]) -> Any:
    fits = isinstance(value, torch.Tensor) and value.dtype in dtypes
    return value.to(dtypes[value.dtype]) if fits else value


_widened, _narrowed = partial(_cast, dtypes=_WIDE), partial(_cast, dtypes=_NARROW)


def _matched(func: Any, args: Args, kwargs: Kwargs) -> tuple[Args, dict[str, Any]]:
    """Every tensor in float64; in float32 where the op writes into a float32 tensor."""
    targets = written(func, args, kwargs)
    change = _narrowed if any(t.dtype in _WIDE for t in targets) else _widened

    def fitted(value: Any) -> Any:
        return value if any(value is t for t in targets) else change(value)

    return changed_arguments(fitted, args, kwargs)


def _drawn(func: Any, args: Args, kwargs: Kwargs, targets: list[torch.Tensor]) -> Any:
    """Random numbers as the float32 model draws them: float64 has others for the same seed."""
    if kwargs.get("dtype") in _NARROW:
        kwargs["dtype"] = _NARROW[kwargs["dtype"]]
    args, kwargs = changed_arguments(_narrowed, args, kwargs)
    drawn = func(*args, **kwargs)
    if not targets:
        return changed(_widened, drawn)
    for tensor, own in zip(targets, written(func, args, kwargs), strict=True):
        tensor.copy_(own)
    return targets[0]


def _reinterpreted(func: Any, args: Args) -> Any:
    """Bits of a float32 that was widened: read as those of a float32."""
    tensor, dtype = args
    if dtype.itemsize == tensor.dtype.itemsize or dtype in _NARROW:
        return func(tensor, dtype)
    return func(_narrowed(tensor), dtype)


def _absorbed(total: torch.Tensor, targets: list[torch.Tensor]) -> torch.Tensor:
    """A mask of -1e10 leaves nothing of the score it is added to in float32, and nothing here:
    a row that is masked all over is uniform to the model."""
    if not total.is_floating_point() or not total.numel():
        return total
    size = total.abs()
    if total.device.type == "cpu" and size.amax() < MASK_SIZE:  # a GPU takes longer to be asked
        return total
    huge = (size >= MASK_SIZE) & (size <= _MOST)
    rounded = torch.where(huge, total.float().to(total.dtype), total)
    return total.copy_(rounded) if targets else rounded


def _has_steps(func: Any, kwargs: Kwargs) -> bool:
    name = func._overloadpacket.__name__.rstrip("_")
    return name in _STEPS or (name == "div" and kwargs.get("rounding_mode") is not None)
