"""Tiny models that take one kind of input alone, and say what is wrong with others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Tensor = torch.Tensor


class WithConfig(nn.Module):
    """A model with a config, as those of transformers have; not of transformers."""

    main_input_name = "input_ids"

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(**settings)
        self.table = nn.Embedding(settings.get("vocab_size", 20), 8)
        self.patches = nn.Conv2d(3, 8, 4, stride=4)


class HandsOn(WithConfig):
    """Gives an input to a part of its own under another name."""

    def forward(self, input_ids: Tensor, shown: Tensor | None = None) -> Tensor:
        return self.inside(
            self.table(input_ids),
            factors=shown,
        )

    def inside(self, states: Tensor, factors: Any = None) -> Tensor:
        return states * factors.float()


class Masks(WithConfig):
    """Looks at the mask of something that nobody asked for yet."""

    def forward(
        self,
        input_ids: Tensor,
        seen_embeds: Tensor | None = None,
        seen_attention_mask: Tensor | None = None,
    ) -> Tensor:
        if seen_attention_mask.size(1) and seen_embeds is None:  # type: ignore[union-attr]
            raise ValueError("Length 0 is not that of the mask.")
        return self.table(input_ids).sum() + seen_embeds


class Indexes(WithConfig):
    main_input_name = "input_values"

    def forward(self, input_values: Tensor) -> Tensor:
        return input_values[:, :, -4:]


class Joins(WithConfig):
    """Two kinds of audio, of which one is halved before they are joined."""

    main_input_name = "input_values"

    def forward(self, input_values: Tensor, input_features: Tensor) -> Tensor:
        wave = input_values[:, None, ::320]
        return torch.cat([input_features.transpose(1, 2), wave], dim=1)


class Album(WithConfig):
    """Several images in a row, which are folded into the rows before they are measured."""

    def forward(
        self,
        input_ids: Tensor,
        pixel_values: Tensor,
        image_attention_mask: Tensor | None = None,
    ) -> Tensor:
        folded = pixel_values.view(-1, *pixel_values.shape[2:])
        _, _, height, _ = folded.shape
        seen = image_attention_mask[..., None].expand(-1, -1, -1, height)  # type: ignore[index]
        return self.table(input_ids) + seen.sum((2, 3))[..., None] + self.patches(folded).sum()


class TakesStates(WithConfig):
    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> Tensor | None:
        if input_ids is not None:
            raise ValueError("input_ids is not expected")
        return inputs_embeds


class TakesNoIds(WithConfig):
    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> Tensor | None:
        if input_ids is not None:
            raise ValueError("`input_ids` is expected to be `None`")
        return inputs_embeds


class AsksForStates(WithConfig):
    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> Tensor | None:
        if input_ids is not None:
            raise ValueError("You cannot pass input_ids here. Pass inputs_embeds instead.")
        return inputs_embeds


class WritesIntoText(WithConfig):
    """Features of an image take the places in the text that a mask marks: no id stands for them."""

    def forward(self, input_ids: Tensor, pixel_values: Tensor, where_mask: Tensor) -> Tensor:
        states = self.table(input_ids)
        features = self.patches(pixel_values).flatten(2).transpose(1, 2).reshape(-1, 8)
        states[where_mask.bool()] = features
        return states


class Table(WithConfig):
    """A position for each patch of an image whose size no key states."""

    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__(image_size=32, patch_size=4)
        self.positions = nn.Parameter(torch.zeros(1, 1 + 36, 8))

    def forward(self, pixel_values: Tensor) -> Tensor:
        states = self.patches(pixel_values).flatten(2).transpose(1, 2)
        return torch.cat([states[:, :1], states], 1) + self.positions


class Windows(WithConfig):
    main_input_name = "pixel_values"

    def forward(self, pixel_values: Tensor) -> Tensor:
        states = self.patches(pixel_values)
        rows, width, side, _ = states.shape
        return states.view(rows, width, 3, side // 3, 3, side // 3).sum(2)


class Pyramid(WithConfig):
    """Halves an image thrice, and adds what is doubled again."""

    main_input_name = "pixel_values"

    def forward(self, pixel_values: Tensor) -> Tensor:
        half = F.avg_pool2d(self.patches(pixel_values), 2)
        return half + F.interpolate(F.avg_pool2d(half, 2), scale_factor=2)


class Unpacks(WithConfig):
    main_input_name = "hidden_states"

    def forward(self, hidden_states: Tensor) -> Tensor:
        _, num_channels, height, width = hidden_states.shape
        return self.patches(hidden_states) * (num_channels + height + width)


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, order: Tensor) -> Tensor:
        return self.layer(x)[order]


class Counts(WithConfig):
    """Takes whole numbers that its signature calls tensors."""

    def forward(self, input_ids: Tensor, part_sizes: Tensor) -> Tensor:
        r"""
        part_sizes (`torch.Tensor` of shape `(num_images_or_videos,)`):
            Sizes.
        """
        return self.table(input_ids).reshape(*part_sizes.tolist(), -1)


class Pads(WithConfig):
    """Takes waves with an axis for their channels, of which it pads a copy."""

    main_input_name = "input_values"

    def __init__(self) -> None:
        super().__init__(audio_channels=1)
        self.conv = nn.Conv1d(1, 4, 3)

    def forward(self, input_values: Tensor) -> Tensor:
        return self.conv(F.pad(input_values, (2, 0)))


class Listens(WithConfig):
    """Has bins of mel frequencies for what it says, and takes waves."""

    main_input_name = "input_values"

    def __init__(self) -> None:
        super().__init__(num_mel_bins=80)
        self.conv = nn.Conv1d(1, 4, 3)

    def forward(self, input_values: Tensor) -> Tensor:
        return self.conv(input_values[:, None])


class Shortens(nn.Module):
    """A wave that many layers make shorter; nothing says that it is one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(1, 1, 3, stride=3) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None]
        for layer in self.layers:
            x = layer(x)
        return x


class Mono(WithConfig):
    main_input_name = "input_values"

    def __init__(self) -> None:
        super().__init__(sampling_rate=16000)

    def forward(self, input_values: Tensor) -> Tensor:
        if input_values.ndim != 3 or input_values.shape[1] != 1:
            raise ValueError(f"Audio must be mono, but got {input_values.shape[1]}")
        return input_values * 2


class Placed(WithConfig):
    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__(patch_size=4, num_channels=3, pooling_kernel_size=2)
        self.layer = nn.Linear(48, 8)
        self.places = nn.Embedding(4, 8)

    def forward(self, pixel_values: Tensor, pixel_position_ids: Tensor) -> Tensor:
        return self.layer(pixel_values) + self.places(pixel_position_ids).sum(2)


class Series(WithConfig):
    main_input_name = "past_values"

    def __init__(self) -> None:
        super().__init__(context_length=64, patch_length=8, freq_size=3, hidden_size=8)
        self.kinds = nn.Embedding(3, 8)

    def forward(self, past_values: Tensor, past_values_padding: Tensor, freq: Tensor) -> Tensor:
        """
        Args:
            past_values_padding (`torch.LongTensor` of shape `(batch_size, sequence_length)`):
                1 for what is padding.
            freq (`torch.LongTensor` of shape `(batch_size,)`): Of which kind it is.
        """
        padded = past_values_padding.view(len(past_values), -1, 8)
        patches = past_values.view(len(past_values), -1, 8).masked_fill(padded != 0, 0)
        return patches + self.kinds(freq)


class Questions(WithConfig):
    def forward(self, input_ids: Tensor) -> Tensor:
        if not (input_ids == 7).any(1).all():
            raise ValueError("All samples must have at least one question token.")
        return self.table(input_ids)


class Ends(WithConfig):
    def forward(self, input_ids: Tensor) -> Tensor:
        eos_mask = input_ids.eq(3)
        return self.table(input_ids)[eos_mask, :].view(len(input_ids), -1, 8)[:, -1, :]


class Separated(WithConfig):
    def forward(self, input_ids: Tensor) -> Tensor:
        if not ((input_ids == 9).sum(1) == 3).all():
            raise ValueError("There should be exactly three separator tokens: 9 in every sample")
        return self.table(input_ids)


class Boxes(WithConfig):
    main_input_name = "boxes"

    def forward(self, boxes: Tensor) -> Tensor:
        r"""
        boxes (`torch.Tensor` of shape `(batch_size, sequence_length, 4)`):
            Boxes.
        """
        if (boxes < 0).any() or (boxes > 500).any():
            raise IndexError("The `bbox` coordinate values should be within 0-500 range.")
        return boxes.float()
