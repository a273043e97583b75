"""Shapes that a forward's own documentation states: "of shape `(batch_size, height, ...)`"."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from typing import Any

import torch

from .subject import Subject
from .wanted import Wanted

_LENGTHS = re.compile(r"seq|length|tokens|time|num_boxes|position|patches")
COUNTS = re.compile(r"(sizes|lengths|lens|counts|_per_\w+|indices|index|idx)$")
"""How inputs are called that hold whole numbers, whatever their declaration says."""
_FLOATS = ("FloatTensor", "torch.Tensor", "Tensor")


def documented(subject: Subject, name: str) -> Wanted | None:
    """What the documentation wants of an input; None where it does not say."""
    for text in _texts(subject):
        stated = re.search(
            rf"^\s*{re.escape(name)}\s*\(([^\n]*?)of shape\s*[`(\s]*\(?([^`)\n]*)\)?`?", text, re.M
        )
        if stated is None:
            continue
        kind, names = stated.groups()
        sizes = [size_of(subject, dim.strip()) for dim in names.split(",") if dim.strip()]
        if sizes and None not in sizes:
            shape = tuple(size for size in sizes if size is not None)
            return of_kind(subject, name, kind, shape)
    return None


def of_kind(subject: Subject, name: str, kind: str, shape: tuple[int, ...]) -> Wanted:
    """An input of a tensor's declared kind."""
    if name.endswith("mask") or "Bool" in kind or re.search(r"\bbool\b", kind):
        return Wanted("ones", shape)
    if COUNTS.search(name):
        return Wanted("ones", shape)
    if (
        "Long" in kind
        or re.search(r"(?<!type)_ids$|codes$", name)
        or "Int" in kind
        or re.search(r"\bint\b", kind)
    ):
        high = subject.vocabulary or 2
        return Wanted("ids", shape, high if name.endswith("ids") and "type" not in name else 2)
    return Wanted("normal", shape)


def annotated(subject: Subject, name: str) -> str:
    """How forward's signature declares an input."""
    said = getattr(subject.module.forward, "__annotations__", {})
    return str(said.get(name, ""))


def _texts(subject: Subject) -> Iterator[str]:
    """The documentation of forward, and of methods that take a part of what it takes."""
    if isinstance(subject.module, torch.jit.ScriptModule):
        return
    yield inspect.getdoc(type(subject.module).forward) or ""
    for part in subject.module.modules():
        if part is not subject.module and hasattr(part, "config"):
            yield inspect.getdoc(type(part).forward) or ""


def size_of(subject: Subject, dim: str) -> int | None:
    """What a name of a dimension stands for in this model."""
    dim = dim.strip("`* ").removeprefix("config.").removeprefix("self.")
    if dim.isdigit():
        return int(dim)
    if "*" in dim:
        factors = [size_of(subject, part) for part in dim.split("*")]
        return None if None in factors else math.prod(n for n in factors if n is not None)
    plain: dict[str, Any] = {
        "num_channels": subject.channels,
        "channels": subject.channels,
        "height": subject.sides[0],
        "width": subject.sides[1],
        "image_size": subject.sides[0],
        "frame_size": subject.sides[0],
        "num_frames": subject.frames,
        "frames": subject.frames,
        "feature_dim": subject.bins,
        "feature_size": subject.bins,
        "num_choices": 2,
        "hidden_size": subject.width,
        "embed_dim": subject.width,
    }
    if dim in plain:
        return int(plain[dim])
    if dim.startswith("batch") or re.match(r"(num_(images|videos|audios)|bsz)", dim):
        return subject.batch
    if (known := subject.number(dim)) is not None:
        return known
    if _LENGTHS.search(dim):
        return subject.length
    return 1 if re.fullmatch(r"(num|max_num|point|n)_\w+", dim) else None
