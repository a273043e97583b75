"""Faults of arithmetic: a float32 model that computes a part of itself with less."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..case import EVERY, Done, Site, family
from ..places import blocks, columns, in_blocks, is_product
from ..spots import (
    Call,
    calls,
    generator,
    out_view,
    rms,
    shown,
    used,
    used_heads,
    with_first,
    wrapped,
)
from .porting import OTHER, VARIANT, same_as

WIDE = ("fp32", "module", "compare", "set")
"""Runs in which the candidate is one in float32: elsewhere these are no faults."""
Narrow = Callable[[torch.Tensor], torch.Tensor]


def to_bf16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


def to_fp16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float16).to(x.dtype)


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Ten bits of mantissa, the others cut off."""
    bits = x.float().contiguous().view(torch.int32)
    return (bits & ~0x1FFF).view(torch.float32).to(x.dtype)


def _multiplies(part: nn.Module) -> bool:
    return is_product(part) or isinstance(part, nn.Conv1d | nn.Conv2d)


def _product(part: Any, x: torch.Tensor, narrow: Narrow) -> torch.Tensor:
    """What a product or a convolution gives of operands that are rounded."""
    if is_product(part):
        made = narrow(x) @ narrow(out_view(part)).T
        return made if part.bias is None else made + part.bias
    return part._conv_forward(narrow(x), narrow(part.weight), part.bias)


def _rounded(site: Site, narrow: Narrow, output: Narrow, says: str) -> Done:
    def around(part: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        return output(_product(part, x, narrow))

    return wrapped(site, site.choose(used(site, _multiplies)), around, says)


@family("arithmetic", "fault", WIDE)
@shown
def product_in_bf16(site: Site) -> Done:
    """One product takes its operands, and gives its result, in bf16"""
    return _rounded(site, to_bf16, to_bf16, "computes in bf16")


@family("arithmetic", "fault", WIDE)
@shown
def product_in_fp16(site: Site) -> Done:
    """One product takes its operands, and gives its result, in fp16"""
    return _rounded(site, to_fp16, to_fp16, "computes in fp16")


@family("arithmetic", "fault", WIDE)
@shown
def product_in_tf32(site: Site) -> Done:
    """One product has its operands cut to ten bits of mantissa, as TF32 does"""
    return _rounded(site, to_tf32, lambda y: y, "computes in TF32")


@family("arithmetic", "fault", WIDE)
@shown
def sums_in_half(site: Site) -> Done:
    """One product adds its terms, eight at a time, to a sum in fp16"""

    def around(part: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        weight = out_view(part)
        total = torch.zeros_like(x[..., :1])
        for begin in range(0, columns(part), 8):
            terms = x[..., begin : begin + 8] @ weight[:, begin : begin + 8].T
            total = to_fp16(total + terms)
        return total if part.bias is None else total + part.bias

    path = site.choose(used(site, lambda part: is_product(part) and columns(part) >= 16))
    return wrapped(site, path, around, "adds up in fp16")


@family("arithmetic", "fault", WIDE)
@shown
def small_values_flushed(site: Site) -> Done:
    """One product takes small inputs, below a hundredth of their typical size, for zero"""
    path = site.choose(used(site, _multiplies))
    least = rms(calls(site)[path].input) / 100

    def around(part: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        return forward(torch.where(x.abs() < least, torch.zeros_like(x), x))

    return wrapped(site, path, around, f"takes inputs below {least:.2g} for zero")


@family("arithmetic", "fault", EVERY)
@shown
def large_values_clipped(site: Site) -> Done:
    """The largest tenth of the outputs of one product is clipped"""
    path = site.choose(used(site, _multiplies))
    sizes = calls(site)[path].main.abs().flatten()[:1_000_000]
    most = float(sizes.quantile(0.9))

    def around(part: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        return forward(x).clamp(-most, most)

    return wrapped(site, path, around, f"is clipped at {most:.3g}")


@family("arithmetic", "unsteady", WIDE)
@shown
def differs_from_call_to_call(site: Site) -> Done:
    """The outputs of one product differ from call to call by a thousandth"""
    seed = generator(site).initial_seed()

    def around(part: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        count = vars(part)["_drawn"] = vars(part).get("_drawn", seed) + 1
        result = forward(x)
        noise = torch.randn(result.shape, generator=torch.Generator().manual_seed(count))
        return result * (1 + 1e-3 * noise.to(result))

    path = site.choose(used(site, _multiplies))
    return wrapped(site, path, around, "gives other numbers at each call")


# ---- norms ----


def _rows_normed(site: Site) -> list[str]:
    """Norms over the last axis."""

    def is_one(call: Call, part: nn.Module) -> bool:
        weight = getattr(part, "weight", None)
        name = type(part).__name__.lower()
        if "norm" not in name or not isinstance(weight, nn.Parameter) or weight.ndim != 1:
            return False
        last = isinstance(call.input, torch.Tensor) and call.input.shape[-1:] == weight.shape
        return last and ("layer" in name or "rms" in name)

    found = calls(site)
    paths = [path for path in found if is_one(found[path], site.module.get_submodule(path))]
    return in_blocks(site.module, paths)


def _norm(site: Site, ratio: Callable[[torch.Tensor], torch.Tensor], says: str) -> Done:
    """A norm whose factor for each row is off by a ratio; its bias is as it was."""
    path = site.choose(_rows_normed(site))
    centred = isinstance(site.module.get_submodule(path), nn.LayerNorm)

    def around(part: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        bias = getattr(part, "bias", None)
        bias = 0.0 if bias is None else bias
        rows = x - x.mean(-1, keepdim=True) if centred else x
        return (forward(x) - bias) * ratio(rows).to(x.dtype) + bias

    return wrapped(site, path, around, says)


@family("arithmetic", "fault", WIDE)
@shown
def norm_factor_in_bf16(site: Site) -> Done:
    """The factor of one norm, 1/rms, is rounded to bf16"""

    def ratio(rows: torch.Tensor) -> torch.Tensor:
        factor = rows.square().mean(-1, keepdim=True).clamp(min=1e-30).rsqrt()
        return to_bf16(factor) / factor

    return _norm(site, ratio, "rounds its factor to bf16")


@family("arithmetic", "fault", WIDE)
@shown
def variance_in_half(site: Site) -> Done:
    """The variance of one norm is computed in bf16"""

    def ratio(rows: torch.Tensor) -> torch.Tensor:
        right = rows.square().mean(-1, keepdim=True).clamp(min=1e-30)
        half = rows.to(torch.bfloat16)
        wrong = (half * half).mean(-1, keepdim=True).to(rows.dtype).clamp(min=1e-30)
        return (right / wrong).sqrt()

    return _norm(site, ratio, "computes its variance in bf16")


@family("arithmetic", "fault", WIDE)
@shown
def gain_in_bf16(site: Site) -> Done:
    """The gain of one norm in an otherwise float32 model is in bf16"""
    path = site.choose(_rows_normed(site))
    gain = site.module.get_submodule(path).weight.data  # type: ignore[union-attr]
    gain.copy_(to_bf16(gain))  # type: ignore[arg-type,operator]
    return Done(site.module, f"The gain of {path} is rounded to bf16", (path,))


# ---- functions ----


def fast_exp(x: torch.Tensor) -> torch.Tensor:
    """A power of two and a parabola for the rest: right to 0.3%."""
    scaled = x * math.log2(math.e)
    whole = scaled.clamp(min=-120).floor()
    rest = scaled.clamp(min=-120) - whole
    return torch.exp2(whole) * (1 + rest * (0.6565 + 0.3435 * rest))


def fast_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    low = torch.finfo(x.dtype).min / 2
    top = x.amax(dim, keepdim=True).clamp(min=low)
    powers = torch.where(x < low, torch.zeros_like(x), fast_exp(x - top))
    return powers / powers.sum(dim, keepdim=True)


def fast_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention as `scaled_dot_product_attention` has it, with the softmax above."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (one.repeat_interleave(repeats, -3) for one in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    low = torch.finfo(scores.dtype).min
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, low)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return fast_softmax(scores, -1) @ value


class FastExp(TorchFunctionMode):
    """Every softmax inside is computed with an approximate exponential."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return fast_attention(*args, **kwargs)
        if func in (F.softmax, torch.softmax, torch.Tensor.softmax):
            given = {**dict(zip(("input", "dim"), args, strict=False)), **kwargs}
            return fast_softmax(given["input"], given["dim"])
        return func(*args, **kwargs)


@family("arithmetic", "fault", WIDE)
@shown
def exponential_approximated(site: Site) -> Done:
    """One attention has an exponential that is right to 0.3%"""

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        with FastExp():
            return forward(*args, **kwargs)

    path = site.choose(in_blocks(site.module, [one.path for one in used_heads(site)]))
    return wrapped(site, path, around, "has an approximate exponential")


@family("arithmetic", "fault", WIDE)
@shown
def activation_out_of_a_table(site: Site) -> Done:
    """One activation is looked up in a table with steps of 1/256"""

    def around(part: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        return forward((x * 256).round() / 256)

    def bends(part: nn.Module) -> bool:
        plain = not any(True for _ in (*part.children(), *part.parameters()))
        return plain and any(
            same_as(part, known) for known in {**OTHER, **VARIANT} if known is not F.relu
        )

    return wrapped(site, site.choose(used(site, bends)), around, "is read from a table")


@family("arithmetic", "fault", WIDE)
@shown
def sums_of_block_in_bf16(site: Site) -> Done:
    """The output of one layer is rounded to bf16 in a float32 model"""

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        return with_first(forward(*args, **kwargs), to_bf16)

    return wrapped(site, site.choose(layers(site)), around, "gives its output in bf16")


def layers(site: Site) -> list[str]:
    """Repeated blocks that are called once with a tensor; products where there are none."""
    found = calls(site)
    homes = [
        p for p in blocks(site.module) if p in found and isinstance(found[p].input, torch.Tensor)
    ]
    return homes or [p for p in used(site, _multiplies) if found[p].count == 1]
