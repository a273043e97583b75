"""Recurrent nets over letters, and a small convolutional one that finds faces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .reading import fill, read


class Additive(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.W = nn.Linear(width, width, bias=False)
        self.U = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.v(torch.tanh(self.W(x)[:, :, None] + self.U(x)[:, None]))[..., 0]
        return torch.softmax(scores, dim=-1) @ x


class Diacritizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(54, 128)
        self.lstm = nn.LSTM(128, 256, 3, batch_first=True, bidirectional=True)
        self.attention = Additive(512)
        self.classifier = nn.Linear(512, 15)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.classifier(self.attention(self.lstm(self.embedding(input_ids))[0]))


def load_arabic_diacritizer(folder: Path) -> nn.Module:
    return fill(Diacritizer(), read(Path(folder) / "diacritize/assets/bilstm_best.pt"))


def probe_arabic_diacritizer() -> dict[str, np.ndarray]:
    """'the boy went to the school', letters only; the vocabulary starts with four others."""
    letters = "\u0621\u0622\u0623\u0624\u0625\u0626\u0627\u0628"
    letters += "\u0629\u062a\u062b\u062c\u062d\u062e\u062f\u0630"
    letters += (
        "\u0631\u0632\u0633\u0634\u0635\u0636\u0637\u0638\u0639\u063a\u0640\u0641\u0642\u0643\u0644"
    )
    letters += (
        "\u0645\u0646\u0647\u0648\u064a "  # then punctuation, of which the blank is the first
    )
    text = "\u0630\u0647\u0628 \u0627\u0644\u0648\u0644\u062f \u0625\u0644\u0649 "
    text += "\u0627\u0644\u0645\u062f\u0631\u0633\u0629"
    places = {letter: 4 + i for i, letter in enumerate(letters)}
    return {"input_ids": np.array([[2, *(places.get(letter, 1) for letter in text), 3]])}


class Sounds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc_emb = nn.Embedding(29, 256)
        self.enc = nn.GRU(256, 256, batch_first=True)
        self.dec_emb = nn.Embedding(74, 256)
        self.dec = nn.GRU(256, 256, batch_first=True)
        self.fc = nn.Linear(256, 74)

    def forward(self, letters: Tensor, sounds: Tensor) -> Tensor:
        last = self.enc(self.enc_emb(letters))[1]
        return self.fc(self.dec(self.dec_emb(sounds), last)[0])


def load_g2p_en(folder: Path) -> nn.Module:
    stored = np.load(Path(folder) / "g2p_en/checkpoint20.npz")
    names = {
        "enc_emb": "enc_emb.weight", "dec_emb": "dec_emb.weight",
        "fc_w": "fc.weight", "fc_b": "fc.bias",
        "w_ih": "weight_ih_l0", "w_hh": "weight_hh_l0", "b_ih": "bias_ih_l0", "b_hh": "bias_hh_l0",
    }  # fmt: skip
    state = {
        names.get(key) or f"{key[:3]}.{names[key[4:]]}": torch.from_numpy(stored[key])
        for key in stored
    }
    return fill(Sounds(), state)


def probe_g2p_en() -> dict[str, np.ndarray]:
    """'transformer', </s>; <s> and T R AE0 N S F AO1 R M ER0, as numbers."""
    letters = [3 + ord(letter) - ord("a") for letter in "transformer"]
    return {
        "letters": np.array([[*letters, 2]]),
        "sounds": np.array([[2, 60, 57, 7, 48, 58, 35, 14, 57, 47, 29]]),
    }


class OutputNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 32, 3), (32, 64, 3), (64, 64, 3), (64, 128, 2))
        for i, (few, many, kernel) in enumerate(sizes, start=1):
            self.add_module(f"conv{i}", nn.Conv2d(few, many, kernel))
            self.add_module(f"prelu{i}", nn.PReLU(many))
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2 = nn.Linear(256, 2), nn.Linear(256, 4)
        self.dense6_3 = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for i, size in enumerate((3, 3, 2, 0), start=1):
            x = getattr(self, f"prelu{i}")(getattr(self, f"conv{i}")(x))
            x = functional.max_pool2d(x, size, 2, ceil_mode=True) if size else x
        x = self.prelu5(self.dense5(x.permute(0, 3, 2, 1).flatten(1)))
        return self.dense6_2(x), self.dense6_3(x), torch.softmax(self.dense6_1(x), dim=1)


def load_facenet_onet(folder: Path) -> nn.Module:
    return fill(OutputNet(), read(Path(folder) / "facenet_pytorch/data/onet.pt"))


def probe_facenet_onet() -> dict[str, np.ndarray]:
    """A face of ellipses, and the same picture without one."""
    y, x = np.mgrid[-1:1:48j, -1:1:48j]

    def spot(cx: float, cy: float, rx: float, ry: float) -> np.ndarray:
        far = ((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2
        return 1 / (1 + np.exp(np.minimum(12 * (far - 1), 50)))

    plain = np.full((48, 48, 3), 0.35)
    face = plain + spot(0, 0, 0.75, 0.95)[..., None] * (np.array([0.85, 0.65, 0.55]) - plain)
    dark = ((-0.33, -0.2, 0.16, 0.08), (0.33, -0.2, 0.16, 0.08), (0, 0.22, 0.13, 0.06))
    dark += ((0, 0.5, 0.32, 0.07), (-0.33, -0.38, 0.22, 0.04), (0.33, -0.38, 0.22, 0.04))
    for place in dark:
        face = face * (1 - 0.7 * spot(*place)[..., None])
    rows = np.stack([face, plain]).transpose(0, 3, 1, 2)
    return {"x": ((rows * 255 - 127.5) / 128).astype(np.float32)}
