"""Tiny modules, one for each kind of operation that models are made of: input (2, 6, 8), floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from written_ops import (
    Calls,
    Weighted,
    added_mask,
    attention,
    buckets,
    filtered,
    first,
    grid,
    heads,
    image,
    indexed,
    masked,
    mixed_attention,
    mixing,
    norms,
    plain_float32,
    put_into,
    put_wider,
    quantised,
    relative,
    rms_norm,
    rotary_by_complex,
    scan,
    scattered,
    selected,
    short_time,
    solved,
    spectrum,
    stacked,
)

SHAPE = (2, 6, 8)
Op = Callable[[torch.Tensor], Any]


PLAIN: dict[str, Op] = {
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True) + x,
    "gelu and silu": lambda x: F.gelu(x) + F.silu(x) + F.mish(x) + F.hardswish(x),
    "glu": lambda x: F.glu(x, -1),
    "softplus": lambda x: F.softplus(x) + F.elu(x) + F.leaky_relu(x) + F.selu(x),
    "pow and sqrt": lambda x: x.pow(2).add(1).sqrt().reciprocal(),
    "exp and log1p": lambda x: torch.log1p(x.abs()) + torch.expm1(x * 0.1),
    "sin cos": lambda x: x.sin() + x.cos() + x.tanh() + x.erf() + x.atan2(x + 3),
    "sum mean var": lambda x: x - x.mean(-1, keepdim=True) / (x.var(-1, keepdim=True) + 1),
    "std and max": lambda x: x / x.std(1, keepdim=True) + x.amax(-1, keepdim=True),
    "prod": lambda x: x[..., :3].prod(-1),
    "cumsum": lambda x: x.cumsum(1),
    "cumsum in float32": lambda x: x.cumsum(1, dtype=torch.float32).to(x.dtype),
    "cumprod": lambda x: (x * 0.1 + 1).cumprod(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "norms": norms,
    "roll": lambda x: x.roll((1, 2), (1, 2)),
    "flip and rot90": lambda x: x.flip(1) + x.flip(-1),
    "pad": lambda x: F.pad(x, (1, 2)) + F.pad(x, (1, 2), mode="reflect"),
    "replicate pad": lambda x: (
        F.pad(x, (1, 1), mode="replicate") + F.pad(x, (1, 1), mode="circular")
    ),
    "unfold and fold": lambda x: F.fold(F.unfold(image(x), 2, stride=2), (4, 4), 2, stride=2),
    "tensor unfold": lambda x: x.unfold(1, 3, 1).mean(-1),
    "pixel shuffle": lambda x: F.pixel_shuffle(x.reshape(2, 12, 2, 2), 2),
    "pixel unshuffle": lambda x: F.pixel_unshuffle(image(x), 2),
    "channel shuffle": lambda x: F.channel_shuffle(x.reshape(2, 4, 3, 4), 2),
    "nearest": lambda x: F.interpolate(image(x), scale_factor=2),
    "bilinear": lambda x: F.interpolate(image(x), (7, 5), mode="bilinear"),
    "bilinear antialias": lambda x: F.interpolate(
        image(x), (2, 3), mode="bilinear", antialias=True
    ),
    "bicubic": lambda x: F.interpolate(image(x), (7, 5), mode="bicubic", align_corners=True),
    "linear interpolation": lambda x: F.interpolate(x, 5, mode="linear"),
    "trilinear": lambda x: F.interpolate(x.reshape(2, 3, 2, 2, 4), (3, 3, 3), mode="trilinear"),
    "area": lambda x: F.interpolate(image(x), (2, 2), mode="area"),
    "grid sample": lambda x: grid(x, "bilinear"),
    "grid sample nearest": lambda x: F.grid_sample(
        image(x), torch.full((2, 3, 3, 2), 0.3, dtype=x.dtype), mode="nearest", align_corners=True
    ),
    "affine grid": lambda x: F.affine_grid(x[:, :2, :3], [2, 1, 3, 3], align_corners=False),
    "average pool": lambda x: F.avg_pool2d(image(x), 2) + F.adaptive_avg_pool2d(image(x), 2),
    "max pool": lambda x: F.max_pool2d(image(x), 3, 1, 1) + F.adaptive_max_pool2d(image(x), (4, 4)),
    "pool 1d": lambda x: F.avg_pool1d(x, 2) + F.max_pool1d(x, 2) + F.lp_pool1d(x.abs() + 1, 2, 2),
    "einsum": lambda x: torch.einsum("bti,bsi,bsj->btj", x, x, x),
    "bmm and baddbmm": lambda x: torch.baddbmm(x @ x.mT, x, x.mT),
    "outer and dot": lambda x: torch.outer(x[0, 0], x[0, 1]) + torch.dot(x[0, 0], x[1, 0]),
    "cdist": lambda x: torch.cdist(x, x.flip(1) + 1),
    "cdist 1": lambda x: torch.cdist(x, x.flip(1) + 1, p=1.0),
    "cosine": lambda x: F.cosine_similarity(x, x.roll(1, 1), dim=-1),
    "kronecker": lambda x: torch.kron(x[0, :2], x[1, :2]),
    "linalg solve": solved,
    "linalg norm": lambda x: torch.linalg.norm(x, dim=(1, 2)) + x.norm(dim=(1, 2)),
    "cholesky": lambda x: torch.linalg.cholesky(x.float() @ x.float().mT + torch.eye(6) * 9),
    "rotary by complex": rotary_by_complex,
    "stacked pairs": stacked,
    "polar": lambda x: torch.polar(x.float().abs(), x.float()).real.to(x.dtype),
    "fft mixing": mixing,
    "fft spectrum": spectrum,
    "fft in two dimensions": lambda x: torch.fft.ifft2(torch.fft.fft2(x)).real,
    "stft": short_time,
    "attention": attention,
    "attention, causal": lambda x: attention(x, is_causal=True),
    "attention, scaled": lambda x: attention(x, scale=0.3),
    "attention, masked": added_mask,
    "attention, mixed": mixed_attention,
    "attention, keys of few heads": lambda x: F.scaled_dot_product_attention(
        heads(x), heads(x)[:, :1], heads(x)[:, :1], enable_gqa=True
    ),
    "scatter and gather": scattered,
    "put into": put_into,
    "index": indexed,
    "masked": masked,
    "top-k": selected,
    "sort": lambda x: x.sort(-1).values.cumsum(-1) * 0.1 + x.median(-1, keepdim=True).values,
    "where and clamp": lambda x: torch.where(x > 0, x.clamp(max=1), x.clip(-1) * 0.1),
    "one hot": lambda x: F.one_hot(torch.arange(6) % 3, 6).to(x.dtype) @ x,
    "bucketize and bincount": buckets,
    "scan": scan,
    "complex made of halves": lambda x: torch.complex(x.float(), x.float() * 2).abs().to(x.dtype),
    "repeat and expand": lambda x: x.repeat(1, 2, 1).repeat_interleave(2, -1).tile(2),
    "split and chunk": lambda x: torch.cat([part * 2 for part in x.chunk(2, -1)], -1),
    "triangles": lambda x: (x @ x.mT).tril().triu(-2) + torch.eye(6, dtype=x.dtype),
    "meshgrid": lambda x: sum(torch.meshgrid(x[0, 0], x[0, 1], indexing="ij")),
    "trapezoid": lambda x: torch.trapezoid(x, dim=-1),
    "lerp and addcmul": lambda x: torch.lerp(x, x.roll(1, 1), 0.3).addcmul(x, x, value=0.1),
    "quantile in float32": lambda x: torch.quantile(x.float(), 0.3, dim=-1).to(x.dtype),
    "nan to num": lambda x: torch.nan_to_num(x.log()),
    "searchsorted": lambda x: (
        torch.searchsorted(torch.arange(-2.0, 3.0), x.float()).to(x.dtype) * 0 + x
    ),
    "histogram of places": lambda x: (
        torch.histc(torch.arange(6.0), 3)[None, :, None].to(x.dtype) * x[:, :3]
    ),
    "logits to odds": lambda x: F.gumbel_softmax(x, tau=1.0),
    "random like": lambda x: x + torch.randn_like(x) + torch.rand(2, 1, 8),
    "normal in place": lambda x: x + torch.empty_like(x).normal_() + torch.empty_like(x).uniform_(),
    "dropout left on": lambda x: F.dropout(x, 0.5, training=True),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.5)) * x,
    "multinomial": lambda x: x[:, torch.multinomial(torch.ones(6), 3)],
    "random permutation": lambda x: x[:, torch.randperm(6)],
    "losses": lambda x: F.mse_loss(x, x * 0.5, reduction="none") + F.huber_loss(x, x * 0.5),
    "cross entropy": lambda x: F.cross_entropy(
        x.flatten(0, 1), torch.arange(12) % 8, reduction="none"
    ),
    "nested out": lambda x: torch.stack(torch.unbind(x, 1), 1) + torch.movedim(x, 1, 2).mT,
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    "diff": lambda x: torch.diff(x, dim=1, prepend=x[:, :1]) + torch.gradient(x, dim=1)[0],
    "block diagonal": lambda x: torch.block_diag(x[0], x[1]),
    "vander": lambda x: torch.linalg.multi_dot([x[0], x[1].mT, x[0]]),
    "in place": lambda x: x.clone().mul_(2).add_(1).clamp_(-3, 3).div_(3).tanh_(),
}
"""Functions of the input alone."""

WITH_WEIGHTS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(8, 5),
    "bilinear layer": lambda: Calls(lambda x, part: part(x, x.flip(1)), nn.Bilinear(8, 8, 3)),
    "layer norm": lambda: nn.LayerNorm(8),
    "rms norm": lambda: nn.RMSNorm(8),
    "rms norm by hand": lambda: Weighted(rms_norm, (8,)),
    "group norm": lambda: nn.GroupNorm(3, 6),
    "batch norm": lambda: nn.BatchNorm1d(6),
    "batch norm 2d": lambda: Calls(lambda x, part: part(image(x)), nn.BatchNorm2d(3)),
    "instance norm": lambda: Calls(
        lambda x, part: part(image(x)), nn.InstanceNorm2d(3, affine=True)
    ),
    "local response": lambda: Calls(lambda x, part: part(image(x)), nn.LocalResponseNorm(2)),
    "conv 1d": lambda: nn.Conv1d(6, 4, 3, padding=1),
    "conv 1d depthwise": lambda: nn.Conv1d(6, 6, 4, padding=3, groups=6),
    "conv 2d": lambda: Calls(lambda x, part: part(image(x)), nn.Conv2d(3, 4, 3, 2, 1)),
    "conv 2d without bias": lambda: Calls(
        lambda x, part: part(image(x)), nn.Conv2d(3, 6, 3, bias=False, dilation=1)
    ),
    "conv 3d": lambda: Calls(
        lambda x, part: part(x.reshape(2, 3, 2, 2, 4)), nn.Conv3d(3, 4, 2, padding=1)
    ),
    "conv transposed": lambda: Calls(
        lambda x, part: part(image(x)), nn.ConvTranspose2d(3, 4, 2, 2)
    ),
    "conv transposed 1d": lambda: nn.ConvTranspose1d(6, 4, 4, 2, 1),
    "conv, weights normed": lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 4, 3)),
    "lstm": lambda: Calls(first, nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True)),
    "gru": lambda: Calls(first, nn.GRU(8, 5, batch_first=True)),
    "rnn": lambda: Calls(first, nn.RNN(8, 5, batch_first=True)),
    "lstm cell": lambda: Calls(lambda x, part: part(x[:, 0])[0], nn.LSTMCell(8, 5)),
    "lstm, projected": lambda: Calls(first, nn.LSTM(8, 5, batch_first=True, proj_size=3)),
    "multi-head attention": lambda: Calls(
        lambda x, part: part(x, x, x, need_weights=False)[0],
        nn.MultiheadAttention(8, 2, batch_first=True),
    ),
    "multi-head attention with weights": lambda: Calls(
        lambda x, part: part(x, x, x)[1], nn.MultiheadAttention(8, 2, batch_first=True)
    ),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "prelu": lambda: Calls(lambda x, part: part(x), nn.PReLU(6)),
    "embedding": lambda: Calls(lambda x, part: part(torch.arange(6)) + x, nn.Embedding(6, 8)),
    "embedding bag": lambda: Calls(
        lambda x, part: part(torch.arange(6).reshape(3, 2)) + x[0, :3],
        nn.EmbeddingBag(6, 8, mode="mean"),
    ),
    "codebook": lambda: Weighted(quantised, (8, 8)),
    "relative positions": lambda: Weighted(relative, (8, 2)),
    "long convolution": lambda: Weighted(filtered, (6, 8)),
    "dynamic weights": lambda: Weighted(
        lambda x, w: F.conv1d(x, w * x.mean(), groups=6), (6, 1, 3)
    ),
    "state matrix": lambda: Weighted(
        lambda x, w: torch.exp(-torch.exp(w.float())) * x.float(), (8,)
    ),
    "einsum with weights": lambda: Weighted(
        lambda x, w: torch.einsum("btc,chd->bthd", x, w), (8, 2, 3)
    ),
    "grouped products": lambda: Weighted(lambda x, w: x @ w, (2, 8, 3)),
    "scaled by a number of rank 0": lambda: Weighted(lambda x, w: x * w.exp() + w, ()),
}
"""Modules with weights, made anew."""

DRAWS = {
    *("logits to odds", "random like", "normal in place", "dropout left on", "bernoulli"),
    *("multinomial", "random permutation"),
}
"""Those that draw random numbers."""


def build(name: str) -> nn.Module:
    """A module for an operation, with seeded weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        plain = PLAIN | {f"mixed: {key}": function for key, function in MIXED.items()}
        made = WITH_WEIGHTS[name]() if name in WITH_WEIGHTS else Calls(plain[name])
        return made.eval()


MIXED: dict[str, Op] = {
    "product": lambda x: x @ plain_float32(8, 3),
    "linear": lambda x: F.linear(x, plain_float32(4, 8), plain_float32(4)),
    "linear, wide input": lambda x: F.linear(x.float(), x[0], x[0, :, 0]),
    "baddbmm": lambda x: torch.baddbmm((x @ x.mT).float(), x, x.mT),
    "einsum": lambda x: torch.einsum("btc,cd->btd", x, plain_float32(8, 3)),
    "convolution with a float32 bias": lambda x: F.conv1d(x, x[:, :, :3], plain_float32(2)),
    "convolution of float32": lambda x: F.conv1d(x.float(), x[:, :, :3]),
    "convolution, transposed": lambda x: F.conv_transpose1d(x, x[0, :, None, :3], plain_float32(1)),
    "convolution with float32 weights": lambda x: F.conv2d(
        image(x), plain_float32(4, 3, 3, 3), plain_float32(4)
    ),
    "attention with a float32 query": lambda x: F.scaled_dot_product_attention(
        heads(x).float(), heads(x), heads(x)
    ),
    "attention with float32 values": lambda x: F.scaled_dot_product_attention(
        heads(x), heads(x), plain_float32(2, 2, 6, 4)
    ),
    "attention with a float32 mask": lambda x: F.scaled_dot_product_attention(
        heads(x), heads(x), heads(x), attn_mask=plain_float32(6, 6)
    ),
    "layer norm": lambda x: F.layer_norm(x, (8,), plain_float32(8), plain_float32(8)),
    "layer norm, wide input": lambda x: F.layer_norm(x.float(), (8,), x[0, 0], x[0, 1]),
    "group norm": lambda x: F.group_norm(x, 3, plain_float32(6), plain_float32(6)),
    "batch norm": lambda x: F.batch_norm(
        x, plain_float32(6), plain_float32(6).abs() + 1, x[0, :, 0], x[0, :, 1]
    ),
    "index put": put_wider,
    "scatter": lambda x: torch.zeros(2, 6, 8, dtype=x.dtype).scatter(
        1, torch.zeros(2, 1, 8, dtype=torch.long), plain_float32(2, 1, 8)
    ),
    "index add": lambda x: x.index_add(1, torch.tensor([0]), plain_float32(2, 1, 8)),
    "masked scatter": lambda x: x.masked_scatter(x > 0, plain_float32(2, 6, 8)),
    "grid sample": lambda x: F.grid_sample(
        image(x), plain_float32(2, 3, 3, 2).tanh(), align_corners=False
    ),
    "cdist": lambda x: torch.cdist(x, plain_float32(2, 3, 8)),
    "lerp": lambda x: torch.lerp(x, plain_float32(2, 6, 8), 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, plain_float32(2, 6, 8)),
    "cat": lambda x: torch.cat((x, plain_float32(2, 6, 8)), 1),
    "where": lambda x: torch.where(x > 0, x, plain_float32(2, 6, 8)),
    "fft": lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(plain_float32(8))),
    "dot": lambda x: torch.dot(x[0, 0], plain_float32(8)) + x,
    "prelu": lambda x: F.prelu(x, plain_float32(6)),
    "complex turns": lambda x: torch.view_as_real(
        torch.view_as_complex(x.float().reshape(2, 6, 4, 2).contiguous())
        * torch.polar(torch.ones(6, 4), plain_float32(6, 4))
    ),
}
"""Functions in which a model's own dtype meets float32."""

NAMES = (*PLAIN, *WITH_WEIGHTS, *(f"mixed: {name}" for name in MIXED))
