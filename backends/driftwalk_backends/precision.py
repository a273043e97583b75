"""A copy of a model in another dtype, made the way transformers itself would load it.

It computes with its own weights, whatever was patched or hooked. Functions are not copied by
`copy.deepcopy`: a `forward` put on the instance, or a hook, that holds a module or tensor in its
closure would go on using the original's. Here it gets the copy's.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from driftwalk.errors import ModelError

from .calls import first_line
from .lending import Lend, Weights, set_apart
from .tensors import TORCH_DTYPES

_REGISTERED = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_LIBRARIES = {"builtins", "collections", "functools", "logging", "numpy", "threading", "torch"}
_LIBRARIES |= {"transformers", "weakref"}

Change = Callable[[torch.Tensor], torch.Tensor]


@torch.inference_mode(False)
def converted(
    module: nn.Module,
    dtype: str,
    device: str,
    attn: str | None = None,
    experts: str | None = None,
    *,
    weights: Weights | None = None,
    lend: Lend = "off",
    places: Mapping[str, torch.device] | None = None,
) -> nn.Module:
    """A deep copy on `device` in `dtype`; the original is left alone.

    `places` says by their names which tensors lie on other devices (placement.py).

    The weights of a large model are shared with other copies that are made with these `weights`,
    and as `lend` says none are made at all where they can be lent (lending.py).
    """
    wanted, place = TORCH_DTYPES[dtype], _place(device)
    in_halves, formats = _in_halves(module, dtype), formats_in(module, dtype)
    quantised = bool(getattr(module, "is_quantized", False))
    placed: Mapping[int, nn.Parameter] = {}
    if quantised and places is not None:
        raise ModelError(
            f"{type(module).__name__} is quantised, and torch:auto spreads no quantised weights. "
            "Spread it when it is loaded (device_map), and give it as it is."
        )
    if weights is not None and not quantised:
        if places is None:
            placed = weights.placed(module, formats, place, lend)
        else:
            placed = weights.spread(module, formats, _by_id(module, places))
    twin = copied(module, placed)
    if attn is not None:
        twin.set_attn_implementation(attn)  # type: ignore[operator]
    if dtype == "fp64":
        experts = experts or "eager"  # grouped matrix products have no float64 kernel
    if experts is not None and has_experts(twin):
        twin.set_experts_implementation(experts)  # type: ignore[operator]
    with set_apart(twin, placed):
        if in_halves:
            for _, tensor, fits in castable(twin):
                if fits(wanted):
                    tensor.data = tensor.data.to(wanted)
            _move(twin, place, places)
        elif quantised:
            twin.to(device=device, dtype=wanted)  # transformers refuses what cannot be cast
        else:
            _move(twin, place, places)
            twin._apply(lambda tensor: tensor.to(_format(tensor.dtype, wanted)))  # type: ignore[no-untyped-call]
    _change_plain_tensors(twin, lambda tensor: _carried(tensor, wanted, device))
    return twin


def _place(device: str) -> torch.device:
    """A device by its whole name, as tensors have it."""
    return torch.empty(0, device=device).device


def _move(
    module: nn.Module, device: torch.device, places: Mapping[str, torch.device] | None
) -> None:
    """Put all that a module holds on one device, or each tensor on its own."""
    if places is None:
        module.to(device)
        return
    before = dict(named_tensors(module))  # kept: no other tensor takes the id of one of these
    homes = _by_id(module, places)
    module._apply(lambda tensor: tensor.to(homes.get(id(tensor), tensor.device)))  # type: ignore[no-untyped-call]
    del before


def _by_id(module: nn.Module, places: Mapping[str, torch.device]) -> dict[int, torch.device]:
    named = named_tensors(module)
    return {id(tensor): places[name] for name, tensor in named if name in places}


def named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, each under all of its names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _in_halves(module: nn.Module, dtype: str) -> bool:
    """Whether it is cast as transformers casts: some of it stays as it is."""
    return dtype in ("fp16", "bf16") and hasattr(module, "config")


def formats_in(module: nn.Module, dtype: str) -> Callable[[torch.Tensor], torch.dtype]:
    """What each parameter and buffer of a module is in where the module is in a dtype."""
    wanted = TORCH_DTYPES[dtype]
    if not _in_halves(module, dtype):
        return lambda weight: _format(weight.dtype, wanted)
    cast = {id(tensor) for _, tensor, fits in castable(module) if fits(wanted)}
    return lambda weight: wanted if id(weight) in cast else weight.dtype


def _format(dtype: torch.dtype, wanted: torch.dtype) -> torch.dtype:
    """What `.to(wanted)` should make of a tensor; it drops the imaginary part of complex ones.

    There is no complex half that computes: a half-precision model keeps complex64.
    """
    if dtype.is_complex:
        return torch.complex128 if wanted is torch.float64 else torch.complex64
    return wanted if dtype.is_floating_point else dtype


def _carried(tensor: torch.Tensor, wanted: torch.dtype, device: str) -> torch.Tensor:
    """A plain attribute: widened with the model, which is exact; rounded it would not be by
    `.half()`, so that it is not rounded here."""
    dtype = _format(tensor.dtype, wanted)
    wider = dtype.itemsize > tensor.dtype.itemsize
    with torch.no_grad():
        return tensor.to(device, dtype if wider else tensor.dtype)


def has_experts(module: nn.Module) -> bool:
    """Whether this is a mixture of experts whose implementation transformers can switch."""
    named = any("experts" in path.split(".") for path, _ in module.named_modules())
    return named and hasattr(module, "set_experts_implementation")


def is_in(module: nn.Module, dtype: str, device: str) -> bool:
    """Whether every float parameter is already in this dtype on this device."""
    wanted, place = TORCH_DTYPES[dtype], torch.device(device)
    if dtype == "fp64" and any(
        t.dtype != _format(t.dtype, wanted) for t in (*module.parameters(), *module.buffers())
    ):
        return False
    floats = [p for p in module.parameters() if p.is_floating_point()]
    return all(p.dtype == wanted and p.device.type == place.type for p in floats) and (
        place.index is None or all(p.device.index == place.index for p in floats)
    )


def castable(
    module: nn.Module,
) -> Iterator[tuple[str, torch.Tensor, Callable[[torch.dtype], bool]]]:
    """The float parameters and buffers that a copy in another dtype casts, and whether to which.

    Non-persistent buffers (rotary frequencies) are computed in float32 when transformers loads a
    half-precision model, and some modules are kept in float32. Rounding them here would make an
    error no deployment has.
    """
    strict = set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
    kept = strict | set(getattr(module, "_keep_in_fp32_modules", None) or ())
    plain = not hasattr(module, "config")
    persistent = set(module.state_dict(keep_vars=True))

    def fits(name: str) -> Callable[[torch.dtype], bool]:
        parts = set(name.split("."))
        halves = {torch.float16: kept.isdisjoint(parts), torch.bfloat16: strict.isdisjoint(parts)}
        return lambda dtype: halves.get(dtype, True)

    for name, parameter in module.named_parameters():
        if parameter.is_floating_point():
            yield name, parameter, fits(name)
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point() and (plain or name in persistent):
            yield name, buffer, fits(name)


def copied(module: nn.Module, instead: Mapping[int, Any] | None = None) -> nn.Module:
    """A deep copy; what cannot be copied is an error that names it.

    `instead` holds what takes the place of objects that are not to be copied, by their ids.
    """
    memo: dict[int, Any] = dict(instead or {})
    for part in module.modules():
        own = {k: v for k, v in vars(part).items() if k not in ("_parameters", "_modules")}
        for leaf in tree_leaves(own):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad and not leaf.is_leaf:
                # PyTorch refuses to copy what a computation left behind (weight_norm's `weight`).
                memo[id(leaf)] = leaf.detach().clone()
    try:
        twin = copy.deepcopy(module, memo)
    except Exception as error:  # whatever the attributes' own classes raise
        raise ModelError(
            f"{type(module).__name__} cannot be copied: {_culprit(module)}: "
            f"{first_line(error)[:200]}. driftwalk converts a copy and leaves the model alone; "
            "take that attribute off before, or give the class a __deepcopy__."
        ) from error
    for part in twin.modules():
        own = vars(part)
        for name, value in own.items():
            if isinstance(value, types.FunctionType | functools.partial):
                own[name] = _rebound(value, memo)
        for hooks in (own[name] for name in _HOOKS):
            for key, hook in hooks.items():
                hooks[key] = _rebound(hook, memo)
    return twin


def _change_plain_tensors(module: nn.Module, change: Change) -> None:
    """Apply `change` to the tensors that `.to()` passes over: plain attributes, in lists, dicts,
    tuples, partials, objects of one's own, modules in a list, and the closures of hooks."""
    seen: set[int] = {id(part) for part in module.modules()}
    for part in module.modules():
        own = vars(part)
        for name in [name for name in own if name not in _REGISTERED]:
            if name in _HOOKS:
                for hook in own[name].values():
                    _changed(hook, change, seen)
            else:
                own[name] = _changed(own[name], change, seen)


def _changed(value: Any, change: Change, seen: set[int]) -> Any:
    """The value with its tensors changed: itself where it can hold others, else a new one."""
    if isinstance(value, torch.Tensor):
        return value if isinstance(value, nn.Parameter) else change(value)
    if value is None or isinstance(value, str | bytes | int | float | type) or id(value) in seen:
        return value
    if isinstance(value, tuple):
        items = [_changed(item, change, seen) for item in value]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    seen.add(id(value))
    if isinstance(value, functools.partial):
        return functools.partial(
            _changed(value.func, change, seen),
            *_changed(value.args, change, seen),
            **_changed(dict(value.keywords), change, seen),
        )
    _change_inside(value, change, seen)
    return value


def _change_inside(value: Any, change: Change, seen: set[int]) -> None:
    if isinstance(value, list):
        value[:] = [_changed(item, change, seen) for item in value]
    elif isinstance(value, dict):
        for key in list(value):
            dict.__setitem__(value, key, _changed(value[key], change, seen))
    elif isinstance(value, nn.Module):
        value._apply(change)  # type: ignore[no-untyped-call]
        _change_plain_tensors(value, change)
    elif isinstance(value, types.FunctionType):
        for cell in _filled_cells(value):
            cell.cell_contents = _changed(cell.cell_contents, change, seen)
    elif isinstance(value, types.MethodType):
        _changed(value.__self__, change, seen)
    elif _is_ones_own(value):
        for name, item in list(vars(value).items()):
            vars(value)[name] = _changed(item, change, seen)


def _rebound(value: Any, memo: dict[int, Any], depth: int = 4) -> Any:
    """The same function with the copy's modules and tensors in its closure."""
    if isinstance(value, functools.partial):
        return functools.partial(_rebound(value.func, memo), *value.args, **value.keywords)
    if not isinstance(value, types.FunctionType) or not value.__closure__ or not depth:
        return value
    if id(value) in memo and memo[id(value)] is not value:
        return memo[id(value)]
    cells = tuple(types.CellType() for _ in value.__closure__)
    made = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, cells
    )
    made.__kwdefaults__ = value.__kwdefaults__
    made.__dict__.update(value.__dict__)
    made.__module__, made.__qualname__ = value.__module__, value.__qualname__
    memo[id(value)] = made
    for cell, filled in zip(cells, value.__closure__, strict=True):
        try:
            content = filled.cell_contents
        except ValueError:  # not filled yet
            continue
        if isinstance(content, types.FunctionType):
            cell.cell_contents = _rebound(content, memo, depth - 1)
            continue
        try:
            cell.cell_contents = copy.deepcopy(content, memo)
        except Exception:  # a lock, a file: shared with the original
            cell.cell_contents = content
    return made


def _filled_cells(function: types.FunctionType) -> Iterator[types.CellType]:
    for cell in function.__closure__ or ():
        try:
            _ = cell.cell_contents
        except ValueError:
            continue
        yield cell


def _is_ones_own(value: Any) -> bool:
    """An object that only holds things: not a config, not part of a library."""
    package = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and package not in _LIBRARIES


def _culprit(module: nn.Module) -> str:
    """The first attribute that does not copy, by its path."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name == "_modules":
                continue
            try:
                copy.deepcopy(value, {id(part): part})
            except Exception:
                return f"attribute {f'{path}.{name}'.lstrip('.')!r} ({type(value).__name__})"
    return "one of its attributes"
