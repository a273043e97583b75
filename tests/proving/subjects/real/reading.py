"""Reading tensors out of files, and sounds made by formula: what several models share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def read(path: Path) -> Any:
    """A checkpoint's tensors; `argparse.Namespace`, a plain record, is all that is let through."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def fill(module: nn.Module, state: dict[str, Tensor], missing: tuple[str, ...] = ()) -> nn.Module:
    """All weights of `state`; only what `missing` names may stay as it was made."""
    keys = module.load_state_dict(state, strict=False)
    left = [key for key in keys.missing_keys if not key.endswith(missing or ("\0",))]
    if left or keys.unexpected_keys:
        raise ValueError(f"missing {left}, unexpected {keys.unexpected_keys}")
    return module.eval()


def tone(hertz: float, samples: int, rate: int = 16000) -> np.ndarray:
    """A voice-like tone: ten harmonics, each weaker than the one before, with a slow vibrato."""
    time = np.arange(samples) / rate
    phase = 2 * np.pi * hertz * time + 0.5 * np.sin(2 * np.pi * 5 * time)
    wave = sum(np.sin(k * phase) / k for k in range(1, 11))
    return (0.3 * wave / np.abs(wave).max()).astype(np.float32)


def mel_filters(rate: int, size: int, bands: int) -> np.ndarray:
    """Slaney's mel filters, as librosa makes them: [bands, size // 2 + 1]."""

    def hertz(mel: np.ndarray) -> np.ndarray:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))

    top = 15 + 27 * np.log(rate / 2 / 1000) / np.log(6.4)
    edges = hertz(np.linspace(0, top, bands + 2))
    bins = np.linspace(0, rate / 2, size // 2 + 1)
    rise = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    fall = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    height = 2 / (edges[2:] - edges[:-2])
    return (np.maximum(0, np.minimum(rise, fall)) * height[:, None]).astype(np.float32)


def mel(wave: np.ndarray, size: int, hop: int, bands: int, power: float) -> np.ndarray:
    """[frames, bands] of a wave at 16 kHz."""
    found = torch.stft(
        torch.from_numpy(wave), size, hop, window=torch.hann_window(size), return_complex=True
    )
    return (mel_filters(16000, size, bands) @ (found.abs() ** power).numpy()).T.astype(np.float32)
