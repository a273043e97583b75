"""Honest families that write attention, softmax or sigmoid otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..case import HALVES, MANY, WHOLE, Done, NoPlace, Site, family
from ..judging import SAME
from ..places import copied, run, wrap
from ..spots import difference
from .forms import UNTRACED, _wide
from .wiring import drawn

Tensor = torch.Tensor


class Instead(TorchFunctionMode):
    """Calls of some functions answered by others."""

    def __init__(self, others: dict[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.others, self.used = others, 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        other = self.others.get(function)
        self.used += other is not None
        return (other or function)(*args, **(kwargs or {}))


def answered(site: Site, others: dict[Any, Callable[..., Any]], what: str) -> Done:
    """All calls of some functions in the model answered by others."""
    with Instead(others) as mode, torch.no_grad():
        run(site.module, site.inputs)
    if not mode.used:
        raise NoPlace

    def around(_: nn.Module, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with Instead(others):
            return inner(*args, **kwargs)

    def change(module: nn.Module, path: str) -> str:
        wrap(module.get_submodule(path), around)
        return what

    return drawn(site, [""], change)


Softmax = Callable[[Tensor], Tensor]


def base_two(scores: Tensor) -> Tensor:
    """A softmax over the last axis by powers of two."""
    scores = scores * math.log2(math.e)
    powers = torch.exp2(scores - scores.amax(-1, keepdim=True).clamp(min=-1e30))
    return powers / powers.sum(-1, keepdim=True).clamp(min=1e-30)


def other_maximum(scores: Tensor) -> Tensor:
    """A softmax over the last axis, less the logarithm of the sum."""
    return (scores - torch.logsumexp(scores, -1, keepdim=True)).exp().nan_to_num(0)


def scores_of(
    q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    scores = (
        _wide(q) @ _wide(k).transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    )
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores


def attention_by(softmax: Softmax) -> Callable[..., Tensor]:
    """Scaled dot product attention with its whole matrix written out."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, *_: Any, **more: Any
    ) -> Tensor:
        if more.get("enable_gqa") and k.shape[-3] != q.shape[-3]:
            k, v = (one.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for one in (k, v))
        scores = scores_of(q, k, attn_mask, more.get("is_causal", False), more.get("scale"))
        return (softmax(scores) @ _wide(v)).to(q.dtype)

    return attention


def softmax_by(softmax: Softmax) -> Callable[..., Tensor]:
    def of(
        x: Tensor, dim: int = -1, *_: Any, dtype: torch.dtype | None = None, **__: Any
    ) -> Tensor:
        made = softmax(_wide(x).transpose(dim, -1)).transpose(dim, -1)
        return made.to(dtype or x.dtype)

    return of


def softmaxes(softmax: Softmax) -> dict[Any, Callable[..., Any]]:
    """Everything in a model that takes a softmax, by one's own."""
    names = dict.fromkeys((F.softmax, torch.softmax, Tensor.softmax), softmax_by(softmax))
    return {**names, F.scaled_dot_product_attention: attention_by(softmax)}


@family("rewrite", "honest", UNTRACED)
def softmax_in_base_two(site: Site) -> Done:
    """Every softmax by powers of two, as fast kernels take it."""
    return answered(site, softmaxes(base_two), "softmax by powers of two")


@family("rewrite", "honest", UNTRACED)
def softmax_by_logarithm(site: Site) -> Done:
    """Every softmax as the exponential of its logarithm."""
    return answered(site, softmaxes(other_maximum), "softmax by the logarithm of its sum")


@family("rewrite", "honest", UNTRACED)
def attention_as_whole_matrix(site: Site) -> Done:
    """Scaled dot product attention with the matrix of its weights written out."""
    whole = attention_by(lambda scores: scores.softmax(-1).nan_to_num(0))
    others = {F.scaled_dot_product_attention: whole}
    return answered(site, others, "attention with its whole matrix")


@family("machine", "honest", UNTRACED)
def sigmoid_by_tanh(site: Site) -> Done:
    """Every sigmoid, and that in SiLU, by a hyperbolic tangent."""

    def sigmoid(x: Tensor, *_: Any, **__: Any) -> Tensor:
        return 0.5 * (1 + torch.tanh(0.5 * x))

    def silu(x: Tensor, *_: Any, **__: Any) -> Tensor:
        return x * sigmoid(x)

    others = dict.fromkeys((torch.sigmoid, F.sigmoid, Tensor.sigmoid), sigmoid)
    return answered(site, {**others, F.silu: silu}, "sigmoid by tanh")


def in_blocks_of_keys(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, *_: Any, **more: Any
) -> Tensor:
    """Attention over a few keys at a time with running sums, as FlashAttention has it."""
    if more.get("enable_gqa") and k.shape[-3] != q.shape[-3]:
        k, v = (one.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for one in (k, v))
    scores = scores_of(q, k, attn_mask, more.get("is_causal", False), more.get("scale"))
    most = torch.full_like(scores[..., :1], -1e30)
    total, mixed = torch.zeros_like(most), torch.zeros_like(scores[..., :1] * _wide(v)[..., :1, :])
    for part, values in zip(scores.split(4, -1), _wide(v).split(4, -2), strict=True):
        new = torch.maximum(most, part.amax(-1, keepdim=True))
        powers, before = (part - new).exp(), (most - new).exp()
        total = total * before + powers.sum(-1, keepdim=True)
        mixed, most = mixed * before + powers @ values, new
    return (mixed / total.clamp(min=1e-30)).to(q.dtype)


@family("machine", "honest", UNTRACED)
def attention_in_blocks_of_keys(site: Site) -> Done:
    """Attention over four keys at a time with running sums, as FlashAttention has it."""
    others = {F.scaled_dot_product_attention: in_blocks_of_keys}
    return answered(site, others, "attention in blocks of keys")


@family("machine", "honest", UNTRACED)
def attention_in_float64(site: Site) -> Done:
    """Attention in float64 and rounded: nearer to the truth than the reference is."""
    whole = attention_by(lambda scores: scores.softmax(-1).nan_to_num(0))

    def exact(q: Tensor, k: Tensor, v: Tensor, *args: Any, **more: Any) -> Tensor:
        return whole(q.double(), k.double(), v.double(), *args, **more).to(q.dtype)

    return answered(site, {F.scaled_dot_product_attention: exact}, "attention in float64")


@family("machine", "honest", (*WHOLE, *HALVES, "int8", "onnx", *MANY))
def attention_as_transformers_writes_it(site: Site) -> Done:
    """The plain attention of transformers, `eager`, in place of the default."""

    before = _attention_of(site.module)
    candidate = copied(site.module)
    candidate.set_attn_implementation("eager")  # type: ignore[operator]
    right = candidate.config._attn_implementation == "eager"  # type: ignore[union-attr]
    if not right or not difference(site.module, candidate, site.inputs) < SAME / 2:
        raise NoPlace
    return Done(candidate, f"attention eager instead of {before}")


def _attention_of(module: nn.Module) -> str:
    """What a model of transformers calls its attention, where it has another one, too."""
    before = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if before in (None, "eager"):
        raise NoPlace
    return str(before)


@family("machine", "honest", WHOLE)
def attention_by_option(site: Site) -> Done:
    """driftwalk's own backend with the option `attn=eager`."""
    before = _attention_of(site.module)
    return Done("torch,attn=eager", f"attention eager by an option instead of {before}")
