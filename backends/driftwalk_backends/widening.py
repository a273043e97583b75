"""The truth's arithmetic: a model in float64 whose own casts to float32 do not narrow it.

Many models cast to float32 inside (RMSNorm, rotary angles). In a float64 model that means "wide
enough", so that such casts stay float64. Numbers that come from integers and constants alone
(position buckets, lengths, masks) are another matter: where they are rounded down, compared or made
integers again, the float32 result is part of the model's function, and 7.9999995 is not 8. They
are computed twice, in float64 for what is continuous and in the model's own dtype for what is not.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten

Args = tuple[Any, ...]
Kwargs = dict[str, Any] | None

_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_NARROW = {wide: narrow for narrow, wide in _WIDE.items()}

_STEPS = {
    "ceil",
    "div",
    "floor",
    "floor_divide",
    "fmod",
    "frac",
    "heaviside",
    "remainder",
    "round",
    "sgn",
    "sign",
    "trunc",
}
"""Ops with jumps (`div` only with a rounding mode): one roundoff of the input can change all."""

_SUMS = {
    torch.ops.aten.add.Tensor,
    torch.ops.aten.add_.Tensor,
    torch.ops.aten.sub.Tensor,
    torch.ops.aten.sub_.Tensor,
}
_MOST = torch.finfo(torch.float32).max
_HUGE = 2.0**26
"""Masks are added as -1e9 or -1e10; numbers of a model's own are far smaller."""


class MixedOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """An op on float32 and float64 tensors computes in float64, also where PyTorch refuses to."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if any(t.dtype in _NARROW for t in tensors) and any(t.dtype in _WIDE for t in tensors):
            args, kwargs = _matched(func, args, kwargs)
        return func(*args, **kwargs)


class _Own:
    """What the model itself would hold in place of a widened tensor; views share `alive`."""

    __slots__ = ("alive", "tensor")

    def __init__(self, tensor: torch.Tensor, alive: list[bool]) -> None:
        self.tensor = tensor
        self.alive = alive


class WidenedCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Casts to float32 and complex64 keep 64 bits a number; jumps stay where the model has them."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch.is_inference_mode_enabled() and is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if any(t.dtype in _NARROW and _own(t) is None for t in tensors):
            return self._computed(func, args, kwargs, tensors)
        if not tensors and kwargs.get("dtype") in _NARROW and not is_random(func):
            return func(*args, **kwargs)
        return self._born(func, args, kwargs, tensors)

    def _computed(self, func: Any, args: Args, kwargs: dict[str, Any], tensors: list[Any]) -> Any:
        """An op with float64 tensors of the model's own among its inputs."""
        targets = written(func, args, kwargs)
        for tensor in targets:
            if (own := _own(tensor)) is not None:
                own.alive[0] = False  # it now holds more than integers and constants
        if is_random(func):
            return _drawn(func, args, kwargs, targets)
        if kwargs.get("dtype") in _WIDE:
            kwargs["dtype"] = _WIDE[kwargs["dtype"]]
        if func is torch.ops.aten.view.dtype:
            return _reinterpreted(func, args)
        if any(t.dtype in _WIDE for t in tensors):
            args, kwargs = _matched(func, args, kwargs)
        given = func(*args, **kwargs)
        return _absorbed(given, targets) if func in _SUMS else given

    def _born(self, func: Any, args: Args, kwargs: dict[str, Any], tensors: list[Any]) -> Any:
        """An op on integers and constants, and on what was made of them."""
        if is_random(func) and kwargs.get("dtype") in _NARROW:
            kwargs["dtype"] = _NARROW[kwargs["dtype"]]
        native = func(*tree_map(_native, args), **tree_map(_native, kwargs))
        if targets := written(func, args, kwargs):
            return self._born_in_place(func, args, kwargs, targets, native)
        leaves, spec = torch.utils._pytree.tree_flatten(native)
        if not any(isinstance(leaf, torch.Tensor) and leaf.dtype in _WIDE for leaf in leaves):
            return native
        if func.is_view and func is not torch.ops.aten.lift_fresh.default:
            shared = next((own for t in tensors if (own := _own(t)) is not None), None)
            if shared is None:
                return native  # a view of a tensor that was float32 before the run
            wide = tree_leaves(func(*args, **kwargs))
            alive = shared.alive
        else:
            wide, alive = self._wide_of(func, args, kwargs, leaves), [True]
        return tree_unflatten(
            [_paired(w, n, alive) for w, n in zip(wide, leaves, strict=True)], spec
        )

    def _wide_of(
        self, func: Any, args: Args, kwargs: dict[str, Any], natives: list[Any]
    ) -> list[Any]:
        """The same in float64; what the model itself would get where float64 has another answer."""
        if not (_has_steps(func, kwargs) or is_random(func)):
            if kwargs.get("dtype") in _WIDE:
                kwargs["dtype"] = _WIDE[kwargs["dtype"]]
            wide = tree_leaves(func(*tree_map(_widened, args), **tree_map(_widened, kwargs)))
            if all(_fits(w, n) for w, n in zip(wide, natives, strict=True)):
                return [_widened(w) for w in wide]
        return [_widened(n) for n in natives]

    def _born_in_place(
        self, func: Any, args: Args, kwargs: dict[str, Any], targets: list[Any], native: Any
    ) -> Any:
        pairs = [(t, own) for t in targets if (own := _own(t)) is not None]
        if not pairs:
            return targets[0] if isinstance(native, torch.Tensor) else native
        if _has_steps(func, kwargs) or is_random(func):
            for tensor, own in pairs:
                tensor.copy_(own.tensor)
        else:
            args, kwargs = _matched(func, args, kwargs)
            func(*args, **kwargs)
        return targets[0] if isinstance(native, torch.Tensor) else tuple(targets)


def is_composite(func: Any) -> bool:
    """Whether an op is made of others; only in inference mode does a dispatch mode see such ops."""
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    )


def _own(tensor: torch.Tensor) -> _Own | None:
    own: _Own | None = getattr(tensor, "_driftwalk_own", None)
    return own if own is not None and own.alive[0] else None


def _native(value: Any) -> Any:
    """What the model itself would hand over; its lowest number is float32's, not float64's."""
    if isinstance(value, float) and math.isfinite(value):
        return max(-_MOST, min(_MOST, value))
    own = _own(value) if isinstance(value, torch.Tensor) else None
    return value if own is None else own.tensor


def _paired(wide: Any, native: Any, alive: list[bool]) -> Any:
    if not isinstance(native, torch.Tensor) or native.dtype not in _WIDE:
        return native
    wide._driftwalk_own = _Own(native, alive)
    return wide


def _fits(wide: Any, native: Any) -> bool:
    return not isinstance(native, torch.Tensor) or wide.shape == native.shape


def _widened(value: Any) -> Any:
    narrow = isinstance(value, torch.Tensor) and value.dtype in _WIDE
    return value.to(_WIDE[value.dtype]) if narrow else value


def _narrowed(value: Any) -> Any:
    wide = isinstance(value, torch.Tensor) and value.dtype in _NARROW
    return value.to(_NARROW[value.dtype]) if wide else value


def _matched(func: Any, args: Args, kwargs: dict[str, Any]) -> tuple[Args, dict[str, Any]]:
    """Every tensor in float64; in float32 where the op writes into a float32 tensor."""
    targets = written(func, args, kwargs)
    change = _narrowed if any(t.dtype in _WIDE for t in targets) else _widened

    def fitted(value: Any) -> Any:
        return value if any(value is t for t in targets) else change(value)

    return tree_map(fitted, args), tree_map(fitted, kwargs)


def written(func: Any, args: Args, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors an op writes to."""
    if not func._schema.is_mutable:
        return []
    found = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            found += [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
    return found


def is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _drawn(func: Any, args: Args, kwargs: dict[str, Any], targets: list[torch.Tensor]) -> Any:
    """Random numbers as the float32 model draws them: float64 has others for the same seed."""
    if kwargs.get("dtype") in _NARROW:
        kwargs["dtype"] = _NARROW[kwargs["dtype"]]
    args, kwargs = tree_map(_narrowed, args), tree_map(_narrowed, kwargs)
    drawn = func(*args, **kwargs)
    if not targets:
        return tree_map(_widened, drawn)
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
    if not total.is_floating_point() or not total.numel() or total.abs().amax() < _HUGE:
        return total
    size = total.abs()
    huge = (size >= _HUGE) & (size <= _MOST)
    rounded = torch.where(huge, total.float().to(total.dtype), total)
    return total.copy_(rounded) if targets else rounded


def _has_steps(func: Any, kwargs: dict[str, Any]) -> bool:
    name = func._overloadpacket.__name__.rstrip("_")
    if name == "div":
        return kwargs.get("rounding_mode") is not None
    return name in _STEPS
