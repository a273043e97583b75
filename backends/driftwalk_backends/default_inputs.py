"""Inputs for a model nobody gave any: names and shapes from optimum or the config, seeded values.

optimum's dummy-input generators know the shapes of dozens of architectures. Only shapes and kinds
are taken from them: the values come from one seeded generator, so a default probe does not change
with optimum's version, nor where optimum is not installed.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.errors import ProbeError

from .loaded import LoadedModel

_FLOAT_INPUTS = ("pixel_values", "input_features", "input_values")


def default_inputs(model: LoadedModel, batch: int, length: int, seed: int) -> dict[str, Array]:
    """Seeded inputs under the names forward takes them."""
    if batch < 1 or length < 1:
        raise ProbeError(f"batch and length must be 1 or more; got {batch} and {length}.")
    rng = np.random.default_rng(seed)
    if model.config is None:
        return _plain_inputs(model.module, batch, length, rng)
    config, module = model.config, model.module
    parameters = inspect.signature(module.forward).parameters
    main = str(getattr(module, "main_input_name", "input_ids"))
    inputs: dict[str, Array] = {}
    if main in _FLOAT_INPUTS:
        shape = _float_shape(config, main, batch, length)
        inputs[main] = rng.standard_normal(shape, dtype=np.float32)
    else:
        length = min(length, _room(config, length))
        inputs[main] = rng.integers(0, _vocabulary(config), (batch, length))
        if "attention_mask" in parameters:
            inputs["attention_mask"] = _ragged_mask(batch, length)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        steps = min(length, _room(config, length, "max_target_positions"))
        inputs["decoder_input_ids"] = rng.integers(0, _vocabulary(config), (batch, steps))
    return inputs


def _ragged_mask(batch: int, length: int) -> Array:
    """Every second row is padded at its end, so that a default run checks masks too."""
    mask = np.ones((batch, length), dtype=np.int64)
    if length >= 4:
        mask[1::2, length - length // 4 :] = 0
    return mask


def _room(config: Any, length: int, key: str = "max_position_embeddings") -> int:
    most = getattr(config, key, None)
    # RoBERTa-like tables keep two rows for padding; a default need not use the last positions.
    return most - 2 if isinstance(most, int) and most > 2 else length


def _vocabulary(config: Any) -> int:
    for holder in (config, *(getattr(config, n, None) for n in ("text_config", "decoder"))):
        size = getattr(holder, "vocab_size", None)
        if isinstance(size, int) and size > 0:
            return size
    raise ProbeError(
        f"{type(config).__name__} names no vocab_size, so no default ids can be made; "
        "give the probe as text or arrays."
    )


def _float_shape(config: Any, name: str, batch: int, length: int) -> tuple[int, ...]:
    """The shape of pixels or audio: optimum's word, else the config's own numbers."""
    shape = _optimum_shape(config, name, batch, length)
    if name == "input_features" and (frames := getattr(config, "max_source_positions", None)):
        # Whisper takes exactly two frames per encoder position, whatever optimum assumes.
        return (batch, int(getattr(config, "num_mel_bins", 80)), 2 * int(frames))
    if shape is not None:
        return shape
    if name == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return (batch, int(getattr(config, "num_channels", 3)), int(height), int(width))
    if name == "input_values":
        return (batch, 16000)
    return (batch, int(getattr(config, "num_mel_bins", 80)), 100)


def _optimum_shape(config: Any, name: str, batch: int, length: int) -> tuple[int, ...] | None:
    try:
        from optimum.utils import NormalizedConfigManager, input_generators
    except ImportError:
        return None
    kinds = (input_generators.DummyVisionInputGenerator, input_generators.DummyAudioInputGenerator)
    try:
        normalized = NormalizedConfigManager.get_normalized_config_class(config.model_type)(config)
        for kind in kinds:
            if name in kind.SUPPORTED_INPUT_NAMES:
                made = kind("default", normalized, batch_size=batch, sequence_length=length)
                return tuple(int(n) for n in made.generate(name, framework="np").shape)
    except (KeyError, AttributeError, TypeError, ValueError):  # an architecture optimum lacks
        return None
    return None


def _plain_inputs(
    module: nn.Module, batch: int, length: int, rng: np.random.Generator
) -> dict[str, Array]:
    """For a module without a config: one input, read off the first layer that has weights."""
    parameters = inspect.signature(module.forward).parameters
    needed = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty]
    first = next((m for m in module.modules() if any(True for _ in m.parameters(False))), None)
    if len(needed) == 1 and isinstance(first, nn.Embedding):
        return {needed[0]: rng.integers(0, first.num_embeddings, (batch, length))}
    if len(needed) == 1 and isinstance(first, nn.Linear | nn.LayerNorm):
        width = first.in_features if isinstance(first, nn.Linear) else first.normalized_shape[-1]
        return {needed[0]: rng.standard_normal((batch, length, width), dtype=np.float32)}
    raise ProbeError(
        f"No default probe can be made for {type(module).__name__}: its forward takes "
        f"{', '.join(parameters) or 'nothing'}. Give one, as probe={{name: array}} or --probe FILE."
    )
