"""The model that inputs are wanted for, with what is asked of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ..calls import Forward, forward_of
from . import config_sizes
from .config_sizes import AUDIO, TEXT, VISION

_IDS_LIKE = ("input_ids", "decoder_input_ids")


@dataclass(frozen=True)
class Subject:
    """A model, how many rows and positions are asked for, and where its own settings may be."""

    module: nn.Module
    config: Any
    batch: int
    length: int
    folder: str | None = None

    @cached_property
    def _forward(self) -> Forward:
        return forward_of(self.module)

    @property
    def parameters(self) -> Sequence[str]:
        """What forward takes by name, without *args and **kwargs."""
        return self._forward.names

    @property
    def required(self) -> Sequence[str]:
        """What forward cannot be called without, by its signature."""
        return self._forward.needed

    @cached_property
    def mains(self) -> list[str]:
        """The model's main inputs, as it names them itself."""
        named = getattr(self.module, "main_input_name", "input_ids")
        names = [str(n) for n in named] if isinstance(named, list | tuple) else [str(named)]
        there = [name for name in names if name in self.parameters]
        return there or list(self.parameters)[:1] or (names if self._forward.any_name else [])

    @property
    def one_row(self) -> Subject:
        return replace(self, batch=1)

    def number(self, *keys: str, near: Sequence[str] = ()) -> int | None:
        """A whole number of the config or of a part of it."""
        return None if self.config is None else config_sizes.number(self.config, keys, near)

    def value(self, *keys: str, near: Sequence[str] = ()) -> Any:
        return None if self.config is None else config_sizes.value(self.config, keys, near)

    @cached_property
    def vocabulary(self) -> int | None:
        """How many ids there are; None where nothing says so."""
        for holder in (
            self.config,
            *(getattr(self.config, n, None) for n in ("text_config", "decoder")),
        ):
            size = getattr(holder, "vocab_size", None)
            if isinstance(size, int) and size > 0:
                return size
        return self.number("vocab_size", near=TEXT) or self.table

    @cached_property
    def table(self) -> int | None:
        """The rows of the model's table of embeddings."""
        rows = getattr(input_table(self.module), "num_embeddings", None)
        return rows if isinstance(rows, int) else None

    def room(self, length: int, key: str = "max_position_embeddings") -> int:
        """How many positions may be used."""
        most = getattr(self.config, key, None)
        # RoBERTa-like tables keep two rows for padding; a default need not use the last positions.
        return min(length, most - 2) if isinstance(most, int) and most > 2 else length

    @cached_property
    def width(self) -> int:
        """The width of the model's states."""
        keys = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_dim")
        return self.number(*keys, near=TEXT) or 32

    @cached_property
    def sides(self) -> tuple[int, int]:
        """Height and width of an image."""
        for part in [] if self.config is None else config_sizes.in_order(self.config, VISION):
            for key in ("image_size", "img_size", "input_size"):
                if (size := config_sizes.sides(getattr(part, key, None))) is not None:
                    return size
        return self.stored_sides or (224, 224)

    @cached_property
    def stored_sides(self) -> tuple[int, int] | None:
        """The sides of an image that the processor beside the weights makes."""
        stored = (config_sizes.sides(self._processor.get(key)) for key in ("crop_size", "size"))
        return next((size for size in stored if size is not None), None)

    @cached_property
    def channels(self) -> int:
        keys = ("num_channels", "in_channels", "in_chans", "image_channels", "num_image_channels")
        return self.number(*keys, near=VISION) or 3

    @cached_property
    def patch(self) -> int:
        return self.number("patch_size", near=VISION) or 16

    @cached_property
    def bins(self) -> int:
        """Values in a frame of audio."""
        keys = ("num_mel_bins", "n_mels", "input_feat_per_channel", "feature_projection_input_dim")
        stored = self._processor.get("feature_size")
        more = self.number(*keys, "input_dim", "feature_size", "mel_bins", near=AUDIO)
        return more or (stored if isinstance(stored, int) and stored > 1 else 80)

    @cached_property
    def frames(self) -> int:
        """Frames of a video."""
        keys = ("num_frames", "frames_per_clip", "video_length", "num_frames_per_video")
        times = self.number("tubelet_size", "temporal_patch_size", near=VISION) or 1
        return self.number(*keys, near=VISION) or 2 * times

    @cached_property
    def _processor(self) -> dict[str, Any]:
        """What is stored beside the weights of how images or audio are prepared."""
        path = Path(self.folder or "") / "preprocessor_config.json"
        if not self.folder or not path.is_file():
            return {}
        try:
            stored = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return stored if isinstance(stored, dict) else {}


def input_table(module: nn.Module) -> nn.Module | None:
    """The table of embeddings, as a transformers model names it."""
    try:
        table: nn.Module | None = getattr(module, "get_input_embeddings", lambda: None)()
    except (NotImplementedError, AttributeError):
        return None
    return table
