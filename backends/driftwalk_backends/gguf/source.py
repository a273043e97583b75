"""A GGUF file as a torch model: the weights that it declares, as plain numbers in float32.

Architecture, sizes and tokenizer are the file's own, as transformers reads them, and block types
are made plain numbers by the package `gguf`. Before either opens the file its header was read here
(header.py), and the sizes that it claims for the model were held against the tensors it has.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.errors import BackendUnavailable, ModelError, UsageError
from driftwalk.spec import Spec

from ..auto_classes import class_for
from ..calls import first_line
from ..loaded import LoadedModel
from .header import Header, Tensor, read_header, shown

SOURCE = "GGUF file"
PACKAGES = ("gguf", "accelerate")
INSTALL = "pip install 'driftwalk[gguf]'"
_SIZES = (
    *("block_count", "embedding_length", "feed_forward_length", "vocab_size", "expert_count"),
    *("expert_used_count", "expert_feed_forward_length", "attention.head_count"),
    *("attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("rope.dimension_count", "ssm.state_size", "ssm.inner_size", "ssm.conv_kernel"),
)
"""Of which a model is built: none is larger than the longest axis of a tensor."""
_NEEDED = ("block_count", "embedding_length", "attention.head_count")
_MOST_POSITIONS = 1 << 24
_BLOCK = re.compile(r"blk\.([0-9]{1,6})\.")
_FREQUENCIES = "rope_freqs.weight"
_FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")


def open_gguf(path: Path, blocks: str | None = None) -> LoadedModel:
    """The model that a file holds, with its weights as plain numbers."""
    if not path.is_file():
        raise ModelError(f"There is no file {str(path)!r}.")
    header = read_header(path)
    check_sizes(header)
    require(f"the model in {path.name}")
    import transformers

    transformers.utils.logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        with _quietly():
            config = transformers.AutoConfig.from_pretrained(**where)
            kind = class_for(config)
            _check_weights(kind, config, header)
            module, loading = kind.from_pretrained(
                **where, config=config, dtype=torch.float32, output_loading_info=True
            )
    except ModelError:
        raise
    except Exception as error:  # an architecture that transformers lacks, or reads otherwise
        raise ModelError(
            f"transformers cannot load {path.name} ({shown(header.architecture)}): "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
    lacking = [key for group in ("missing_keys", "mismatched_keys") for key in loading[group]]
    if lacking:
        some = ", ".join(sorted(str(key) for key in lacking)[:4])
        raise ModelError(
            f"{path.name} does not have the weights of a {type(module).__name__}: {len(lacking)} "
            f"are missing, or of another size ({some}). Was it converted by another version?"
        )
    _forget_blocks(module)
    notes = tuple(_rotary(module.eval(), header))
    named = str(path)
    return LoadedModel(module, named, SOURCE, named, blocks=blocks, loading_notes=notes, gguf=path)


def file_of(spec: Spec, model: LoadedModel) -> Path:
    """The file that a backend's spec names, or the one that the model was read from."""
    if spec.text:
        path = Path(spec.text)
        if not path.is_file():
            raise UsageError(f"{spec}: there is no file {spec.text!r}.")
        return path
    if model.gguf is None:
        raise UsageError(
            f"{spec}: {model.label} is no GGUF file; name the file that is to be run: "
            f"{spec.name}:model.gguf."
        )
    return model.gguf


def require(what: str) -> None:
    """An error where a package is missing that reads GGUF."""
    if lacking := [name for name in PACKAGES if find_spec(name) is None]:
        raise BackendUnavailable(f"To read {what}, {' and '.join(lacking)} is needed: {INSTALL}.")


def numbers_of(tensor: Tensor, path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor's values, in float32."""
    from gguf import GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType[tensor.type.name]
    *rows, width = tensor.shape
    with path.open("rb") as file:
        raw = np.fromfile(file, np.uint8, tensor.bytes, offset=tensor.start)
    shape = (*rows, width // tensor.type.numbers * tensor.type.bytes)
    made: np.ndarray[Any, np.dtype[np.float32]] = dequantize(raw.reshape(shape), kind)
    return made.reshape(tensor.shape)


def check_sizes(header: Header) -> None:
    """An error where a size that the model is built of is not one that the tensors have."""
    if not header.tensors:
        raise ModelError(f"{header.path.name} has no tensors: a vocabulary, and no model.")
    longest = max(max(one.shape) for one in header.tensors.values())
    numbers = [int(m[1]) for name in header.tensors if (m := _BLOCK.match(name))]
    most = dict.fromkeys(_SIZES, longest) | {
        "block_count": max(numbers, default=-1) + 1,
        "context_length": _MOST_POSITIONS,
    }
    for key, limit in most.items():
        value = header.of_model(key)
        least = 1 if key in _NEEDED else 0
        for size in value if isinstance(value, tuple) else (value,):
            if size is None:
                continue
            if isinstance(size, bool | str | float) or not least <= size <= limit:
                raise ModelError(
                    f"{header.path.name} is not read: {shown(header.architecture)}.{key} is "
                    f"{shown(str(size))}, and by its tensors at most {limit} is possible."
                )
    for key, value in header.metadata.items():
        number = value if isinstance(value, float) else 0.0
        if not math.isfinite(number) or (key.endswith("epsilon") and number < 0):
            raise ModelError(f"{header.path.name} is not read: {shown(key)} is {number}.")
    tokens = header.lengths.get("tokenizer.ggml.tokens", 0)
    if tokens > longest:
        raise ModelError(
            f"{header.path.name} is not read: it has {tokens} tokens, and no tensor of that size."
        )


def _check_weights(kind: Any, config: Any, header: Header) -> None:
    """An error where the model would have far more weights than the file has numbers.

    It is built without memory first: sizes that fit one by one may multiply to anything.
    """
    with torch.device("meta"):
        made = kind._from_config(config) if hasattr(kind, "_from_config") else None
        made = made if made is not None else kind.from_config(config)
    claimed = sum(one.numel() for one in made.parameters())
    there = sum(one.numbers for one in header.tensors.values())
    if claimed > 2 * there + 1024:  # twice: an embedding may be the head, too
        raise ModelError(
            f"{header.path.name} is not read: a {type(made).__name__} of the sizes it claims has "
            f"{claimed:,} weights, and its tensors have {there:,} numbers."
        )


def _forget_blocks(module: nn.Module) -> None:
    """It is a plain model in float32 now, and what transformers notes of blocks no longer true."""
    config: Any = getattr(module, "config", None)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    for name in ("hf_quantizer", "is_quantized", "quantization_method"):
        if name in vars(module):
            delattr(module, name)


def _rotary(module: nn.Module, header: Header) -> Iterator[str]:
    """Rotary frequencies that the file has of its own, which transformers does not read."""
    scale = header.of_model("rope.scaling.factor")
    kind = header.of_model("rope.scaling.type")
    factor = scale if kind == "linear" and isinstance(scale, float) and scale > 0 else 1.0
    own = header.tensors.get(_FREQUENCIES)
    for name, buffer in module.named_buffers():
        if not name.endswith("inv_freq"):
            continue
        if own is not None and own.numbers == buffer.numel():
            buffer.div_(torch.from_numpy(numbers_of(own, header.path)).reshape(buffer.shape))
        buffer.div_(factor)
    if kind not in (None, "none", "linear") or any(name in header.tensors for name in _FACTORS):
        yield (
            f"{header.path.name} stretches its positions ({shown(str(kind or 'longrope'))}), which "
            "transformers does not read from a GGUF file: the torch model computes without."
        )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without transformers' warnings, and its bar on the way, which no option turns off."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
