"""The next guess, made of a failure: one rule for each kind of thing that messages say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from .by_name import NEVER, wanted_for
from .documented import documented
from .failures import Failure
from .image_rules import image_size, rounded, scaled, windowed
from .layers import mended_by_layer
from .media import MEDIA, TYPES
from .missing import instead, missing, named_token
from .shape_rules import (
    Guess,
    boxed,
    choices,
    columns,
    dimensions,
    larger,
    mono,
    multiple,
    room_for_features,
    sized,
    unpacked,
    viewed,
    viewed_last,
    whole_numbers,
    with_length,
)
from .subject import Subject


def repairs(subject: Subject, failure: Failure, wanted: Guess) -> Iterator[Guess]:
    """Guesses that a failure suggests, the likeliest first."""
    for rule in _RULES:
        if (better := rule(subject, failure, wanted)) is not None and better != wanted:
            yield better


def _counted(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """As many placeholders as there are features of an image, a video or audio."""
    ids = wanted.get("input_ids")
    if ids is None or not ids.placeholders:
        return None
    if not re.search(
        r"tokens?|placeholder|features|masked_scatter|shape mismatch", failure.message
    ):
        return None
    kind = next((k for k in ("image", "video", "audio") if k in failure.message.lower()), None)
    marks = list(ids.placeholders)
    shown = [i for i, mark in enumerate(marks) if mark.each_row]
    at = next((i for i in shown if kind and marks[i].type == TYPES[kind]), next(iter(shown), None))
    total = _features(failure)
    if total is None or at is None:
        return None
    each = max(1, total // max(1, ids.shape[0]))
    marks[at] = replace(marks[at], each_row=each)
    return {**wanted, "input_ids": replace(ids, placeholders=tuple(marks))}


def _features(failure: Failure) -> int | None:
    """How many features there are: by the tensors at hand, else by the message."""
    for frame in failure.frames:
        embeds = frame.names.get("inputs_embeds")
        if not isinstance(embeds, torch.Tensor) or embeds.ndim < 2:
            continue
        width = embeds.shape[-1]
        for name, value in frame.names.items():
            if not re.search(r"(features|embeds|outputs|hidden_states)$", name) or value is embeds:
                continue
            parts = value if isinstance(value, list | tuple) else [value]
            tensors = [p for p in parts if isinstance(p, torch.Tensor) and p.is_floating_point()]
            if (
                tensors
                and len(tensors) == len(parts)
                and all(p.shape[-1] == width for p in tensors)
            ):
                return sum(p.numel() for p in tensors) // width
    stated = re.search(r"features?:?\s*\(?(\d+)", failure.message)
    return int(stated.group(1)) if stated else None


def _by_layer(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    return mended_by_layer(failure, wanted)


def _smaller_ids(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Ids outside a table: the table in the frames says how many there are."""
    if not re.search(r"index out of range|out of bounds|should be within", failure.message):
        return None
    for frame in failure.frames:
        table, ids = frame.names.get("weight"), frame.names.get("input")
        if not isinstance(table, torch.Tensor) or not isinstance(ids, torch.Tensor):
            continue
        rows = table.shape[0]
        low = {n: o for n, o in wanted.items() if o.kind == "ids" and o.high > rows}
        exact = [n for n in low if failure.tensors[n].shape == ids.shape]
        chosen = exact or list(low)
        if chosen:
            return {**wanted, chosen[0]: replace(low[chosen[0]], high=rows)}
        longest = max((o.shape[-1] for o in wanted.values() if o.kind == "ids"), default=0)
        if rows < longest:
            return with_length(wanted, max(1, rows - 2))
        boxes = {n: o for n, o in wanted.items() if o.kind == "boxes" and o.high >= rows}
        if boxes:
            return {**wanted, **{n: replace(o, high=rows - 1) for n, o in boxes.items()}}
    return None


def _one_row(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """A model that takes one row at a time."""
    if not re.search(r"(?i)batch[ _]sizes?\b.*(> ?1|\bone\b|\b1\b)", failure.message):
        return None
    return {
        n: replace(o.resized((1, *o.shape[1:])), values=o.values[:1])
        if o.shape and o.shape[0] == subject.batch
        else o
        for n, o in wanted.items()
    }


def _all_documented(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Where something was None and no name tells what: all inputs that the documentation knows."""
    if "None" not in failure.message:
        return None
    more: Guess = {}
    for name in subject.parameters:
        if name not in wanted and not NEVER.search(name) and "embeds" not in name:
            one = documented(subject, name)
            if one is not None:
                more[name] = wanted_for(subject, name, wanted) or one
    return {**wanted, **more} if more else None


def _as_documented(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Shapes as forward's documentation has them, where they differ from the guess."""
    changed: Guess = {}
    if any("grid" in name for name in wanted):
        return None  # documented for images that are not cut into patches
    for name, one in wanted.items():
        stated = documented(subject, name)
        if stated is not None and len(stated.shape) != len(one.shape) and one.kind != "given":
            changed[name] = replace(one, shape=stated.shape, like_ids=False)
    if "input_ids" in changed:
        # What has a value for each id keeps to its own shape now.
        changed |= {n: replace(o, like_ids=False) for n, o in wanted.items() if n not in changed}
    return {**wanted, **changed} if changed else None


def _fewer(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Without an input that the model can do without."""
    kept = {*subject.mains, *subject.required, *MEDIA, "input_ids", "decoder_input_ids"}
    spare = [name for name in wanted if name not in kept]
    return {n: o for n, o in wanted.items() if n != spare[-1]} if spare else None


_RULES: tuple[Callable[[Subject, Failure, Guess], Guess | None], ...] = (
    missing,
    instead,
    _one_row,
    _counted,
    room_for_features,
    image_size,
    unpacked,
    _by_layer,
    choices,
    viewed,
    viewed_last,
    _smaller_ids,
    multiple,
    larger,
    mono,
    dimensions,
    named_token,
    whole_numbers,
    boxed,
    scaled,
    windowed,
    _as_documented,
    rounded,
    sized,
    columns,
    _all_documented,
    _fewer,
)
