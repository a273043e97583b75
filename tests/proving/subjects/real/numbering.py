"""An encoder and decoder that numbers the residues of antibodies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from .language import HEAVY
from .reading import fill, read


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.multihead_attn = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.multihead_attn(x, memory, memory, attn_mask=mask, need_weights=False)[0]


class Feed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc_1 = nn.Linear(width, 4 * width)
        self.fc_2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_2(torch.relu(self.fc_1(x)))


class Block(nn.Module):
    def __init__(self, width: int, decodes: bool) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.ff_layer_norm = nn.LayerNorm(width)
        self.self_attention = Attention(width)
        self.positionwise_feedforward = Feed(width)
        if decodes:
            self.enc_attn_layer_norm = nn.LayerNorm(width)
            self.encoder_attention = Attention(width)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        x = self.self_attn_layer_norm(x + self.self_attention(x, x, mask))
        if memory is not None:
            x = self.enc_attn_layer_norm(x + self.encoder_attention(x, memory))
        return self.ff_layer_norm(x + self.positionwise_feedforward(x))


class Stack(nn.Module):
    def __init__(self, tokens: int, width: int, layers: int, decodes: bool) -> None:
        super().__init__()
        self.tok_embedding = nn.Embedding(tokens, width)
        self.pos_embedding = nn.Embedding(210, width)
        self.layers = nn.ModuleList(Block(width, decodes) for _ in range(layers))
        if decodes:
            self.fc_out = nn.Linear(width, tokens)

    def forward(self, tokens: Tensor, memory: Tensor | None = None) -> Tensor:
        count = tokens.shape[1]
        places = torch.arange(count, device=tokens.device)
        x = self.tok_embedding(tokens) * self.tok_embedding.embedding_dim**0.5
        x = x + self.pos_embedding(places)
        mask = None if memory is None else places[None, :] > places[:, None]
        for layer in self.layers:
            x = layer(x, memory, mask)
        return x if memory is None else self.fc_out(x)


class Anarcii(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Stack(25, 128, 2, decodes=False)
        self.decoder = Stack(136, 128, 2, decodes=True)

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return self.decoder(trg, self.encoder(src))


def load_anarcii(folder: Path) -> nn.Module:
    return fill(Anarcii(), read(Path(folder) / "anarcii/models/antibody/antibody_4_2_128_512.pt"))


def probe_anarcii() -> dict[str, np.ndarray]:
    """<SOS>, the sequence, <EOS>; <SOS>, H, and the IMGT numbers 1 to 9 and 11 to 26."""
    letters = "ACDEFGHIKLMNPQRSTVWXY"
    source = [1, *(4 + letters.index(letter) for letter in HEAVY), 2]
    numbers = [*range(1, 10), *range(11, 27)]
    return {"src": np.array([source]), "trg": np.array([[1, 133, *(3 + n for n in numbers)]])}
