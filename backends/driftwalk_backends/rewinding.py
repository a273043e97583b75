"""What transformers does to a cache between steps: rows change places, tokens are taken back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from driftwalk.errors import BackendError

from .calls import first_line


def reordered(module: nn.Module, cache: Any, origins: torch.Tensor) -> Any:
    """The cache in which row r is what row `origins[r]` was, as beam search has it."""
    own: Any = getattr(module, "_reorder_cache", None)
    if own is not None:
        return own(cache, origins)
    reorder = getattr(cache, "reorder_cache", None)
    if reorder is None:
        raise BackendError(
            f"{type(module).__name__} cannot be decoded in beams: its cache, a "
            f"{type(cache).__name__}, cannot be reordered."
        )
    reorder(origins)
    return cache


def cropped(module: nn.Module, cache: Any, tokens: int, first: bool) -> Any:
    """The cache without its last tokens, as assisted decoding leaves it after each step."""
    record = getattr(cache, "activate_past_recording", None)
    crop = getattr(cache, "crop", None)
    refused = f"{type(module).__name__} cannot take drafted tokens back"
    if not getattr(cache, "is_croppable", True) or crop is None:
        raise BackendError(f"{refused}: its cache, a {type(cache).__name__}, cannot be cropped.")
    if first and record is not None:  # windows keep what may be taken back, from here on
        record()
    try:
        # Where windows were recorded, they are cut to size even if nothing is taken back;
        # before transformers 5, 0 is a length.
        if tokens or (record is not None and not first):
            crop(-tokens)
    except Exception as error:  # caches differ in what they raise
        raise BackendError(f"{refused}: {first_line(error)}") from error
    return cache
