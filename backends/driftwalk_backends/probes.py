"""Probes for a model: texts through its tokenizer, ids, arrays, a file, or a seeded default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.errors import ProbeError
from driftwalk.states import Probe

from .calls import check_names
from .default_inputs import default_inputs
from .demo import ByteTokenizer
from .loaded import LoadedModel
from .onnx.pairs.model import OnnxModel, graph_probe
from .padding import with_padding
from .sources import open_model

BATCH, LENGTH = 2, 16


def make_probe(
    model: LoadedModel | OnnxModel,
    given: object = None,
    *,
    batch: int = BATCH,
    length: int = LENGTH,
    seed: int = 0,
) -> Probe:
    """A checked probe from whatever a user may give."""
    if isinstance(model, OnnxModel):
        return graph_probe(model, given, batch=batch, length=length, seed=seed)
    probe = _read(model, given, batch, length, seed)
    check_names(model.module, probe)
    check_values(model, probe)
    return with_padding(model, probe)


def probe_for(model: object, given: object = None) -> Probe:
    """The same for whatever a user may call a model: what `backend.trace` and `.run` ask for."""
    return make_probe(open_model(model), given)


def _read(model: LoadedModel, given: object, batch: int, length: int, seed: int) -> Probe:
    if given is None:
        origin = f"seeded default (seed {seed})"
        return Probe(default_inputs(model, batch, length, seed), origin=origin)
    if isinstance(given, Probe):
        return given
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".safetensors")):
        return Probe.load(given)
    if isinstance(given, str):
        return _from_texts(model, [given])
    if isinstance(given, Mapping):
        return Probe({str(name): _array(name, value) for name, value in given.items()})
    if isinstance(given, Sequence) and all(isinstance(item, str) for item in given):
        return _from_texts(model, list(given))
    return Probe({_main_input(model.module): _array("probe", given)}, origin="ids or array")


def _array(name: object, value: object) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ProbeError(
            f"Probe input {name!r} cannot be read as an array: {error}. Rows of unequal length "
            "must be padded, with an attention_mask."
        ) from None
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def _main_input(module: nn.Module) -> str:
    """The first thing forward takes."""
    import inspect

    name = getattr(module, "main_input_name", None)
    return name or next(iter(inspect.signature(module.forward).parameters), "input")


def _from_texts(model: LoadedModel, texts: list[str]) -> Probe:
    if not texts:
        raise ProbeError("The list of prompts is empty; give at least one text.")
    if empty := [i for i, text in enumerate(texts) if not text.strip()]:
        raise ProbeError(f"Prompt {empty[0] + 1} of {len(texts)} is empty.")
    tokenizer = model.tokenizer
    if isinstance(tokenizer, ByteTokenizer):
        rows, pad, side = tokenizer(texts), tokenizer.pad_token_id, "right"
        words = [tokenizer.words(row) for row in rows]
    else:
        rows = [list(row) for row in tokenizer(texts, padding=False)["input_ids"]]
        pad, side = _pad_id(tokenizer), getattr(tokenizer, "padding_side", "right")
        words = [tokenizer.convert_ids_to_tokens(row) for row in rows]
    if not all(rows):
        raise ProbeError("The tokenizer made no tokens of a prompt.")
    ids, mask = _padded(rows, pad, side)
    inputs: dict[str, Array] = {"input_ids": ids, "attention_mask": mask}
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = _shifted(model.config, ids, pad)
    width = ids.shape[1]
    tokens = [_filled(row, "<pad>", width, side) for row in words]
    return Probe(inputs, origin="text", texts=tuple(texts), tokens=tuple(map(tuple, tokens)))


def _pad_id(tokenizer: Any) -> int:
    for name in ("pad_token_id", "eos_token_id", "unk_token_id"):
        found = getattr(tokenizer, name, None)
        if isinstance(found, int):
            return found
    return 0


def _padded(rows: list[list[int]], pad: int, side: str) -> tuple[Array, Array]:
    width = max(map(len, rows))
    ids = np.array([_filled(row, pad, width, side) for row in rows], dtype=np.int64)
    mask = np.array([_filled([1] * len(row), 0, width, side) for row in rows], dtype=np.int64)
    return ids, mask


def _filled(row: list[Any], value: Any, width: int, side: str) -> list[Any]:
    fill = [value] * (width - len(row))
    return [*fill, *row] if side == "left" else [*row, *fill]


def _shifted(config: Any, ids: Array, pad: int) -> Array:
    """Decoder inputs for an encoder-decoder: the text behind the decoder's start token."""
    start = getattr(config, "decoder_start_token_id", None)
    first = np.full((len(ids), 1), pad if start is None else start, dtype=np.int64)
    return np.concatenate([first, ids[:, :-1]], axis=1)


def check_values(model: LoadedModel, probe: Probe) -> None:
    """Ids inside the vocabulary, no more positions than the model has, a mask for each of them."""
    vocabulary = _vocabulary(model.module)
    for name in ("input_ids", "decoder_input_ids"):
        ids = probe.inputs.get(name)
        if ids is None:
            continue
        if ids.dtype.kind not in "iu" or (model.config is not None and ids.ndim < 2):
            raise ProbeError(
                f"{name} is {ids.dtype} of shape {list(ids.shape)}; token ids are whole numbers "
                "of shape [rows, positions]."
            )
        mask = probe.inputs.get(name.replace("input_ids", "attention_mask"))
        if mask is not None and mask.ndim == ids.ndim and mask.shape != ids.shape:
            raise ProbeError(
                f"{name} has shape {list(ids.shape)}, its attention mask {list(mask.shape)}; "
                "they must be the same."
            )
        if vocabulary and (ids.min() < 0 or ids.max() >= vocabulary):
            bad = ids[(ids < 0) | (ids >= vocabulary)]
            raise ProbeError(
                f"{name} holds {int(bad[0])}, outside the vocabulary: ids run from 0 to "
                f"{vocabulary - 1} in {model.label}."
            )
        most = max_positions(model, name)
        if most and ids.ndim >= 2 and ids.shape[1] > most:
            raise ProbeError(
                f"{name} has {ids.shape[1]} positions; {model.label} allows at most {most}. "
                "Shorten the prompt."
            )


def _vocabulary(module: nn.Module) -> int | None:
    getter = getattr(module, "get_input_embeddings", None)
    try:
        table = getter() if getter else None
    except (NotImplementedError, AttributeError):
        table = None
    if table is None:
        table = next((m for m in module.modules() if isinstance(m, nn.Embedding)), None)
    return getattr(table, "num_embeddings", None)


def max_positions(model: LoadedModel, name: str = "input_ids") -> int | None:
    """How many positions the model has; None where it has no limit of its own."""
    config = model.config
    if name == "decoder_input_ids" and (most := getattr(config, "max_target_positions", None)):
        return int(most)
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most <= 0:
        return None
    # RoBERTa counts positions from padding_idx + 1 on; only its table knows.
    for part in model.module.modules():
        for child_name, child in part.named_children():
            if child_name == "position_embeddings" and isinstance(child, nn.Embedding):
                offset = child.padding_idx
                return most - offset - 1 if offset is not None else most
    return most
