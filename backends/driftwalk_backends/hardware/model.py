"""The built-in model, the same to the last bit on every machine; and runs of it, state by state.

Its weights come from the raw output of a counter-based integer stream by shifts and exact
divisions: no generator of torch or numpy, nor any library's logarithm, has a say in them.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from driftwalk.states import Point, Probe

from ..loaded import LoadedModel
from ..torch_eager import TorchEager
from .digest import mixed

Exchange = Callable[[str, torch.Tensor], torch.Tensor | None]
"""Called with each state as it is made; what it gives back takes the state's place."""


@dataclass(frozen=True)
class Size:
    """How large the built-in model and its probe are."""

    width: int
    layers: int
    heads: int
    vocabulary: int
    batch: int
    length: int


SMALL = Size(width=64, layers=4, heads=4, vocabulary=128, batch=2, length=16)
"""For CPUs, where half precision can be very slow, and for every golden trace."""
MEDIUM = Size(width=256, layers=4, heads=4, vocabulary=512, batch=2, length=64)
"""For what needs float64 on the CPU beside a GPU."""
LARGE = Size(width=1024, layers=8, heads=16, vocabulary=4096, batch=8, length=256)
"""For GPUs: enough to keep all of one at work."""
POSITIONS = 512


class Attention(nn.Module):
    """Causal self-attention that takes a mask of what is no padding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed_in = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        given: torch.Tensor = self.out(mixed_in.transpose(1, 2).reshape(batch, length, width))
        return given


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm_1(x), mask)
        given: torch.Tensor = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return given


class Decoder(nn.Module):
    """A plain causal language model; padding moves no position."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(POSITIONS, size.width)
        self.layers = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        length = input_ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        # How many real tokens stand before: whole numbers, so that every device counts alike.
        place = (causal & real[:, None, :].bool()).sum(-1) - 1
        x = self.tokens(input_ids) + self.positions(place.clamp(min=0))
        # A padded position sees itself: with nothing to see, its state would be NaN.
        itself = torch.eye(length, dtype=torch.bool, device=input_ids.device)
        mask = (causal & real[:, None, :].bool()) | itself
        for block in self.layers:
            x = block(x, mask[:, None])
        given: torch.Tensor = self.head(self.norm(x))
        return given


class BuiltIn(LoadedModel):
    """The built-in model; which one it is depends on its weights, and on no version of torch."""

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.label}|1|".encode())
        for name, parameter in self.module.named_parameters():
            digest.update(f"{name}|{tuple(parameter.shape)}|".encode())
            digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()


def built_in(size: Size = SMALL, seed: int = 0) -> BuiltIn:
    """The seeded model; no byte of it depends on the machine."""
    with torch.device("meta"):
        module = Decoder(size)
    module = module.to_empty(device="cpu")
    with torch.no_grad():
        for number, (name, parameter) in enumerate(module.named_parameters()):
            words = mixed(parameter.numel(), seed * 4096 + number + 1, torch.device("cpu"))
            whole = ((words >> 30) & 0xFFFFF).double() / 2**19 - 1  # in [-1, 1), exact
            spread, middle = _spread(name, parameter)
            parameter.copy_((whole * spread + middle).float().view(parameter.shape))
    label = f"hwcheck:decoder-{size.width}x{size.layers}"
    return BuiltIn(module.eval(), label, source="built in")


def _spread(name: str, parameter: torch.Tensor) -> tuple[float, float]:
    """Powers of two only, so that scaling rounds nothing; gains around 1."""
    if "norm" in name:
        return (0.25, 1.0) if name.endswith("weight") else (0.25, 0.0)
    if parameter.ndim == 1:
        return 0.125, 0.0
    if "tokens" in name or "positions" in name:
        return 1.0, 0.0
    # Near sqrt(3 / fan-in), which keeps the size of what passes through.
    return float(2.0 ** round(np.log2(3.0 / parameter.shape[1]) / 2)), 0.0


def default_probe(size: Size = SMALL) -> Probe:
    """Ids that look random, the same everywhere."""
    words = mixed(size.batch * size.length, 7919, torch.device("cpu")).numpy()
    ids = ((words >> 33) % size.vocabulary).reshape(size.batch, size.length)
    return Probe({"input_ids": ids}, origin="hwcheck")


class Repeater(TorchEager):
    """Runs a model again and again, leaving every state where it was made."""

    def states(self, probe: Probe, exchange: Exchange | None = None) -> dict[str, torch.Tensor]:
        """A copy of each state on the device, in order of execution; nothing is waited for."""
        kept: dict[str, torch.Tensor] = {}

        def keep(point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
            instead = exchange(point.name, tensor) if exchange is not None else None
            kept[point.name] = (tensor if instead is None else instead).detach().clone()
            return instead

        with self._ready(probe) as (module, inputs):
            cuda = self._device.type == "cuda"
            # What draws random numbers draws the same ones in every repeat; the user's stay theirs.
            with torch.random.fork_rng(devices=[torch.cuda.current_device()] if cuda else []):
                torch.default_generator.manual_seed(0)
                if cuda:
                    torch.cuda.manual_seed(0)
                self._watched(module, inputs, self._find_layout(module, inputs), keep)
        return kept

    def random_by_design(self, probe: Probe) -> tuple[str, ...]:
        """Operations of this model that torch itself says are not deterministic here."""
        before = torch.are_deterministic_algorithms_enabled()
        gently = torch.is_deterministic_algorithms_warn_only_enabled()
        try:
            torch.use_deterministic_algorithms(True, warn_only=True)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                self.states(probe)
        finally:
            torch.use_deterministic_algorithms(before, warn_only=gently)
        texts = [str(item.message) for item in warned if "determinis" in str(item.message)]
        # cuBLAS is meant with several streams at once; here there is one.
        named = [text.split(" does not")[0].strip() for text in texts if "CuBLAS" not in text]
        return tuple(dict.fromkeys(name[:80] for name in named))
