"""Probes for a model: texts through its tokenizer, ids, arrays, a file, or a seeded default.

Defaults are made in `default_probe/`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.errors import ProbeError
from driftwalk.input_files import PROBE_FILES, InputFiles
from driftwalk.other_inputs import as_array, in_words, is_array, is_list_of_numbers
from driftwalk.states import Probe

from .calls import call, check_names, first_line, forward_of, lacks, quietly
from .default_probe.search import default_inputs
from .default_probe.subject import input_table
from .demo import ByteTokenizer
from .loaded import LoadedModel
from .media_files import processed
from .nested_inputs import nested
from .onnx.pairs.model import OnnxModel
from .onnx.pairs.probe import graph_probe
from .padding import with_padding
from .sources import open_model

BATCH, LENGTH = 2, 16
IMAGES = ("pixel_values", "pixel_values_videos")
MEDIA = {
    **{"pixel_values": "an image", "pixel_values_videos": "a video"},
    **{"input_features": "sound", "input_values": "sound"},
}
"""Inputs that no text and no ids can stand for, and what a user has in their place."""


def make_probe(
    model: LoadedModel | OnnxModel,
    given: object = None,
    *,
    batch: int = BATCH,
    length: int = LENGTH,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Probe:
    """A checked probe from whatever a user may give; `shapes` are of inputs of a graph."""
    if isinstance(model, OnnxModel):
        sizes = {"batch": batch, "length": length, "seed": seed}
        return graph_probe(model, given, **sizes, shapes=shapes)
    if shapes:
        raise ProbeError(
            f"--shape {next(iter(shapes))}=... is for a graph (MODEL.onnx). The default probe of a "
            "torch model has --batch and --length; other shapes are given as arrays (--input)."
        )
    probe = _read(model, given, batch, length, seed)
    if given is not None:  # a default was seen to run
        probe = nested(model, probe)
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
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(PROBE_FILES)):
        return Probe.load(given)
    if isinstance(given, InputFiles):
        return _from_files(model, given)
    if isinstance(given, str):
        return from_texts(model, [given])
    if isinstance(given, Mapping):
        return _from_mapping(model, {str(name): value for name, value in given.items()})
    if isinstance(given, Sequence) and all(isinstance(item, str) for item in given):
        return from_texts(model, list(given))
    made = _from_mapping(model, {_main_input(model.module): given})
    return replace(made, origin="ids or array")


def _from_files(model: LoadedModel, given: InputFiles) -> Probe:
    """Arrays as they are, images and sound through the model's processor, texts beside them."""
    made, with_texts = processed(model, given)
    inputs = {**made, **given.arrays}
    names = ", ".join(dict.fromkeys(path.name for _, path in given.files))
    origin = f"text and files {names}" if given.texts else f"files {names}"
    if with_texts or not given.texts:
        return Probe(inputs, origin, given.texts)
    text = from_texts(model, list(given.texts))
    if twice := [name for name in inputs if name in text.inputs]:
        raise ProbeError(f"{twice[0]!r} is given as a text and as a file.")
    return replace(text, inputs={**text.inputs, **inputs}, origin=origin)


def _from_mapping(model: LoadedModel, given: Mapping[str, Any]) -> Probe:
    """Arrays, tensors and lists of numbers as arrays; all else as it was given.

    Whether a flat list is an array or a list, such as the sizes of parts, the model may have to
    tell: it is one where the model runs with it.
    """
    flat = {n for n, v in given.items() if is_list_of_numbers(v) and not isinstance(v[0], list)}
    lists = {name for name in flat if _wants_list(model.module, name)}
    probe = _sorted(given, lists)
    if flat - lists and not _runs(model, probe) and _runs(model, kept := _sorted(given, flat)):
        return kept
    return probe


def _runs(model: LoadedModel, probe: Probe) -> bool:
    try:
        check_names(model.module, probe)
        try_run(model, probe)
    except Exception:  # whatever the model raises
        return False
    return True


def _sorted(given: Mapping[str, Any], lists: Collection[str]) -> Probe:
    arrays: dict[str, Array] = {}
    others: dict[str, Any] = {}
    for name, value in given.items():
        listed = is_list_of_numbers(value) and name not in lists
        array = _array(value) if is_array(value) or listed else None
        if array is None:
            others[name] = value
        else:
            arrays[name] = array.astype(np.int64) if array.dtype.kind in "iu" else array
    return Probe(arrays, others=others)


def _array(value: Any) -> Array | None:
    """As one array; None for a list of rows of unequal length."""
    try:
        return as_array(value)
    except ValueError:
        return None


def _wants_list(module: nn.Module, name: str) -> bool:
    """Whether forward says that it takes a list or tuple there, and no tensor."""
    try:
        said = str(inspect.signature(module.forward).parameters[name].annotation)
    except (ValueError, TypeError, KeyError):
        return False
    words = set(re.findall(r"\w+", said.lower()))
    return bool(words & {"list", "tuple", "sequence"}) and not words & {
        "tensor",
        "floattensor",
        "longtensor",
    }


def _main_input(module: nn.Module) -> str:
    """The first thing forward takes."""
    name = getattr(module, "main_input_name", None)
    return name or next(iter(forward_of(module).names), "input")


def from_texts(model: LoadedModel, texts: list[str]) -> Probe:
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
        ids_to_pad_with = (
            getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "eos", "unk")
        )
        pad = next((number for number in ids_to_pad_with if isinstance(number, int)), 0)
        side = getattr(tokenizer, "padding_side", "right")
        words = [tokenizer.convert_ids_to_tokens(row) for row in rows]
    if not all(rows):
        raise ProbeError("The tokenizer made no tokens of a prompt.")
    width = max(map(len, rows))

    def padded(row: list[Any], value: Any) -> list[Any]:
        fill = [value] * (width - len(row))
        return [*fill, *row] if side == "left" else [*row, *fill]

    ids: Array = np.array([padded(row, pad) for row in rows], dtype=np.int64)
    mask: Array = np.array([padded([1] * len(row), 0) for row in rows], dtype=np.int64)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(model.config, "is_encoder_decoder", False):
        # The decoder is given the text behind its start token.
        start = getattr(model.config, "decoder_start_token_id", None)
        first = np.full((len(ids), 1), pad if start is None else start, dtype=np.int64)
        inputs["decoder_input_ids"] = np.concatenate([first, ids[:, :-1]], axis=1)
    tokens = tuple(tuple(padded(row, "<pad>")) for row in words)
    return Probe(inputs, origin="text", texts=tuple(texts), tokens=tokens)


def check_values(model: LoadedModel, probe: Probe) -> None:
    """What looks wrong for a model of texts is an error if the model cannot run with it.

    Ids beyond the vocabulary may stand for images, a mask may cover a cache as well: only the model
    knows.
    """
    doubt = _lacking(model.module, probe) or next(_doubts(model, probe), "")
    if not doubt:
        return
    try:
        try_run(model, probe)
    except ProbeError:
        raise
    except Exception as error:  # whatever the model raises
        raise ProbeError(
            f"{doubt} The model says: {type(error).__name__}: {first_line(error)}"
        ) from error


def try_run(model: LoadedModel, probe: Probe) -> None:
    """Run the model on a probe, plainly, on the CPU: whatever it raises is raised."""
    module = model.on_host()  # an index out of range stops a GPU for good
    with quietly(module):
        call(module, model.inputs(module, probe, "cpu"))


def _lacking(module: nn.Module, probe: Probe) -> str:
    """Transformers declares every input optional, and fails inside."""
    config = getattr(module, "config", None)
    if config is None:
        return ""
    of_decoder = ["decoder_input_ids"] if getattr(config, "is_encoder_decoder", False) else []
    mains = [str(getattr(module, "main_input_name", "")), *of_decoder]
    names = forward_of(module).names
    # Of two towers, each needs its own; a language model with placeholders for media runs without.
    placeholders = any(re.match(r"(image|video|audio).*_token", name) for name in vars(config))
    mains += [name for name in MEDIA if not placeholders]
    lacking = [n for n in dict.fromkeys(mains) if n in names and n not in probe.names]
    if not lacking or (lacking == ["input_ids"] and "inputs_embeds" in probe.names):
        return ""
    given = next((name for name in lacking if name in MEDIA), "")
    how = f" Give {MEDIA[given]} with --input {given}=FILE, or no probe." if given else ""
    return lacks(module, probe, lacking) + how


def _doubts(model: LoadedModel, probe: Probe) -> Iterator[str]:
    """Ids inside the vocabulary, no more positions than the model has, a mask for each of them."""
    for name, what in MEDIA.items():
        array = probe.inputs.get(name)
        if array is not None and (array.dtype.kind != "f" or array.ndim < (name in IMAGES) + 2):
            yield (
                f"{name} is {array.dtype} of shape {list(array.shape)}, and the model wants {what} "
                f"there: give --input {name}=FILE, an array of floats, or no probe."
            )
    vocabulary = table_size(model.module)
    for name in ("input_ids", "decoder_input_ids"):
        if name in probe.others:
            yield (
                f"{name} is {in_words(probe.others[name])}; token ids are whole numbers of shape "
                "[rows, positions]. Rows of unequal length must be padded, with an attention_mask."
            )
        ids = probe.inputs.get(name)
        if ids is None:
            continue
        mask = probe.inputs.get(name.replace("input_ids", "attention_mask"))
        most = max_positions(model, name)
        if ids.dtype.kind not in "iu" or (model.config is not None and ids.ndim < 2):
            yield (
                f"{name} is {ids.dtype} of shape {list(ids.shape)}; token ids are whole numbers of "
                "shape [rows, positions]."
            )
        elif mask is not None and mask.ndim == ids.ndim and mask.shape != ids.shape:
            shapes = f"{list(ids.shape)}, its attention mask {list(mask.shape)}"
            yield f"{name} has shape {shapes}; the model does not take them so."
        elif vocabulary and (ids.min() < 0 or ids.max() >= vocabulary):
            bad = int(ids[(ids < 0) | (ids >= vocabulary)][0])
            ids_run = f"ids run from 0 to {vocabulary - 1} in {model.label}"
            yield f"{name} holds {bad}, outside the vocabulary: {ids_run}."
        elif most and ids.ndim >= 2 and ids.shape[1] > most:
            allowed = f"{model.label} allows at most {most}"
            yield f"{name} has {ids.shape[1]} positions; {allowed}. Shorten the prompt."


def table_size(module: nn.Module) -> int | None:
    table = input_table(module)
    if table is None:
        table = next((m for m in module.modules() if isinstance(m, nn.Embedding)), None)
    return getattr(table, "num_embeddings", None)


def max_positions(model: LoadedModel, name: str) -> int | None:
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
