"""The next guess, made of a failure: one rule for each kind of thing that messages say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from .by_name import NEVER, wanted_for
from .config_sizes import TEXT
from .documented import documented
from .failures import Failure
from .layers import mended_by_layer
from .media import MEDIA, medium
from .subject import Subject
from .wanted import Placeholder, Wanted

Guess = dict[str, Wanted]
_NOT_INPUTS = ("self", "labels", "kwargs")


def repairs(subject: Subject, failure: Failure, wanted: Guess) -> Iterator[Guess]:
    """Guesses that a failure suggests, the likeliest first."""
    for rule in _RULES:
        if (better := rule(subject, failure, wanted)) is not None and better != wanted:
            yield better


def _missing(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """An input that the message names, or that is None in a line that failed."""
    spoken = re.sub(r"(?<=[a-z]) (?=mask\b|values\b|ids\b|features\b)", "_", failure.message)
    names = re.findall(r"[a-z]\w*", spoken)
    if re.search(r"None(Type)?\b", failure.message):
        for frame in failure.frames:
            names += [n for n in frame.mentioned if frame.names.get(n, 0) is None]
    for name in dict.fromkeys(names):
        if name in wanted or name in _NOT_INPUTS or name not in subject.parameters:
            continue
        if name.endswith("inputs_embeds") and name.replace("inputs_embeds", "input_ids") in wanted:
            continue
        if (one := wanted_for(subject, name, wanted)) is not None:
            return {**wanted, name: one}
    return None


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
    at = next((i for i, m in enumerate(marks) if kind and m.type == _type(kind)), 0)
    total = _features(failure)
    if total is None:
        return None
    each = max(1, total // max(1, ids.shape[0]))
    marks[at] = replace(marks[at], each_row=each)
    return {**wanted, "input_ids": replace(ids, placeholders=tuple(marks))}


def _type(kind: str) -> int:
    return {"image": 1, "video": 2, "audio": 3}[kind]


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


def _unpacked(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """A line that takes a shape apart into more or fewer sizes than there are."""
    more = re.search(r"not enough values to unpack \(expected (\d+), got (\d+)\)", failure.message)
    fewer = re.search(
        r"too many values to unpack \(expected (\d+)(?:, got (\d+))?\)", failure.message
    )
    if more is None and fewer is None:
        return None
    dims = int((more or fewer).group(1))  # type: ignore[union-attr]
    name = _taken_apart(failure, wanted)
    if name is None or len(wanted[name].shape) == dims:
        return None
    return {**wanted, name: _with_dims(subject, wanted[name], dims)}


def _taken_apart(failure: Failure, wanted: Guess) -> str | None:
    for frame in failure.frames:
        for name in frame.mentioned:
            value = frame.names.get(name)
            if isinstance(value, torch.Tensor):
                for own, given in failure.tensors.items():
                    if given.untyped_storage().data_ptr() == value.untyped_storage().data_ptr():
                        return own
            if name in wanted:
                return name
    return None


def _with_dims(subject: Subject, one: Wanted, dims: int) -> Wanted:
    shape = one.shape
    size = subject.channels * subject.patch**2
    if len(shape) == 2 and dims > 3 and shape[1] == size:  # patches that are not to be flat
        shape = (shape[0], subject.channels, subject.patch, subject.patch)
        return one.resized((1,) * (dims - 4) + shape)
    while len(shape) < dims:
        shape = (shape[0], subject.frames if len(shape) == 4 else 1, *shape[1:])
    while len(shape) > dims and len(shape) > 1:
        shape = (shape[0], *shape[2:])
    return one.resized(shape)


def _dimensions(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """A message that says how many dimensions a tensor must have."""
    stated = re.search(
        r"(?i)expected?\D{0,40}?(\d)D \(unbatched\) or (\d)D|(\d)D tensor|"
        r"(\d)[- ]dim|number of dimensions.*?(\d)|dims?\b.*?expected (\d)",
        failure.message,
    )
    beyond = re.search(r"Dimension out of range .* but got (\d)", failure.message)
    if stated is None and beyond is None:
        return None
    numbers = [int(n) for n in stated.groups() if n] if stated else []
    numbers += [int(beyond.group(1)) + 1] if beyond else []
    name = _taken_apart(failure, wanted) or next(iter(wanted), None)
    if name is None or not numbers or len(wanted[name].shape) == numbers[-1]:
        return None
    return {**wanted, name: _with_dims(subject, wanted[name], numbers[-1])}


def _image_size(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    stated = re.search(
        r"size \((\d+)\*(\d+)\) doesn't match model(?: \((\d+)\*(\d+)\))?", failure.message
    )
    if stated is None or stated.group(3) is None:
        return None
    had = tuple(int(n) for n in stated.groups()[:2])
    sides = tuple(int(n) for n in stated.groups()[2:])
    changed = {
        n: one.resized((*one.shape[:-2], *sides))
        for n, one in wanted.items()
        if len(one.shape) >= 3 and one.shape[-2:] == had
    }
    return {**wanted, **changed} if changed else None


_EXPECTED = (
    r"expected[^\d\[]{0,60}?(?P<want>\d+)[^\d]{1,60}?(?:got|but|found|given)[^\d]{0,60}?(?P<have>\d+)",
    r"got[^\d]{0,40}?(?P<have>\d+)[^\d]{1,60}?expected[^\d]{0,40}?(?P<want>\d+)",
    r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<have>\d+) and (?P<want>\d+)x\d+\)",
    r"normalized_shape=\[(?P<want>\d+)\].*\D(?P<have>\d+)\]$",
    r"to have (?P<want>\d+) channels, but got (?P<have>\d+) channels",
    r"size of tensor a \((?P<have>\d+)\) must match the size of tensor b \((?P<want>\d+)\)",
    r"size of tensor a \((?P<want>\d+)\) must match the size of tensor b \((?P<have>\d+)\)",
    r"\((?P<have>\d+)\) (?:doesn't|does not) match[^\d]*\((?P<want>\d+)\)",
    r"size (?P<have>\d+) .*? should be (?P<want>\d+)",
    r"length .*?(?P<want>\d+)[^\d]+but[^\d]+(?P<have>\d+)",
)


def _sized(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Messages that say which size was there and which one was expected."""
    for pattern in _EXPECTED:
        stated = re.search(pattern, failure.message, re.I | re.S)
        if stated is None:
            continue
        have, want = int(stated["have"]), int(stated["want"])
        for name, one in wanted.items():
            axes = [i for i, size in enumerate(one.shape) if size == have and i > 0]
            if axes and want > 0 and one.kind not in ("given",):
                shape = list(one.shape)
                shape[axes[-1]] = want
                return {**wanted, name: one.resized(tuple(shape))}
    return None


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
            return _with_length(wanted, max(1, rows - 2))
        boxes = {n: o for n, o in wanted.items() if o.kind == "boxes" and o.high >= rows}
        if boxes:
            return {**wanted, **{n: replace(o, high=rows - 1) for n, o in boxes.items()}}
    return None


def _with_length(wanted: Guess, length: int) -> Guess:
    """The same inputs with texts of another length."""
    ids = next((o for o in wanted.values() if o.kind == "ids" and len(o.shape) > 1), None)
    if ids is None:
        ids = next((o for o in wanted.values() if len(o.shape) > 1), None)
    if ids is None:
        return wanted
    had = ids.shape[1]
    return {
        n: o.resized((o.shape[0], length, *o.shape[2:]))
        if len(o.shape) > 1 and o.shape[1] == had and o.kind != "given"
        else o
        for n, o in wanted.items()
    }


def _multiple(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """A length that must be a multiple of some number."""
    if not re.search(r"multiple|divisible|divided", failure.message):
        return None
    ids = next((o for o in wanted.values() if len(o.shape) > 1 and o.kind != "given"), None)
    if ids is None:
        return None
    had = ids.shape[-1] if len(ids.shape) > 2 else ids.shape[1]
    numbers = [int(n) for n in re.findall(r"\d+", failure.message)]
    steps = [n for n in numbers if n > 1 and n != had]
    if not steps:
        return None
    step = max(steps) if len(steps) < 3 else math.lcm(*steps[-2:])
    if len(ids.shape) > 3:
        changed = {
            n: o.resized((*o.shape[:-2], *(-(-side // step) * step for side in o.shape[-2:])))
            for n, o in wanted.items()
            if len(o.shape) > 3
        }
        return {**wanted, **changed}
    length = -(-had // step) * step
    return _with_length(wanted, length) if length <= 65536 else None


def _larger(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """An image or a wave that layers have made smaller than the next one's kernel."""
    if not re.search(
        r"(?i)kernel size can't be greater|output size is too small|too small|smaller than"
        r"|padding size should be less|greater than actual input|non-zero size|must be greater"
        r"|ZeroDivisionError",
        failure.line,
    ):
        return None
    name = next((n for n, o in wanted.items() if o.kind == "normal" and len(o.shape) > 1), None)
    if name is None:
        return _with_length(wanted, 4 * max(o.shape[-1] for o in wanted.values() if o.shape))
    one = wanted[name]
    axes = len(one.shape) - 2 if len(one.shape) > 2 else 1
    sides = tuple(2 * side for side in one.shape[-axes:])
    return {**wanted, name: one.resized((*one.shape[:-axes], *sides))}


def _one_row(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """A model that takes one row at a time."""
    if not re.search(r"(?i)batch[ _]sizes?\b.*(> ?1|one|1)", failure.message):
        return None
    return {
        n: replace(o.resized((1, *o.shape[1:])), values=o.values[:1])
        if o.shape and o.shape[0] == subject.batch
        else o
        for n, o in wanted.items()
    }


def _ended(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Texts that must end, each row at one place."""
    ends = subject.number("eos_token_id", near=TEXT)
    if "eos" not in failure.message or ends is None or "input_ids" not in wanted:
        return None
    return {**wanted, "input_ids": replace(wanted["input_ids"], once=ends)}


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


def _choices(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Several texts in a row, of which one is to be chosen."""
    if not re.search(r"shape '\[-1, (\d+)\]' is invalid", failure.message):
        return None
    return {
        n: o.resized((o.shape[0], 2, *o.shape[1:]))
        if o.kind in ("ids", "mask", "boxes", "zeros") and len(o.shape) >= 2
        else o
        for n, o in wanted.items()
    }


def _viewed(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Rows that are taken apart into several streams, which lie one behind the other."""
    stated = re.search(
        r"shape '\[-?\d+, (\d+), -?\d+\]' is invalid for input of size (\d+)", failure.message
    )
    if stated is None:
        return None
    streams, size = map(int, stated.groups())
    fitting = [n for n, o in wanted.items() if math.prod(o.shape) == size and len(o.shape) == 2]
    named = _taken_apart(failure, wanted)
    name = named if named in fitting else next(iter(fitting), None)
    if name is None:
        return None
    rows, length = wanted[name].shape
    own = {n: replace(o, like_ids=False) for n, o in wanted.items()}
    return {**own, name: replace(own[name], shape=(rows * streams, length))}


def _fewer(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Without an input that the model can do without."""
    kept = {*subject.mains, *subject.required, *MEDIA, "input_ids", "decoder_input_ids"}
    spare = [name for name in wanted if name not in kept]
    return {n: o for n, o in wanted.items() if n != spare[-1]} if spare else None


_RULES: tuple[Callable[[Subject, Failure, Guess], Guess | None], ...] = (
    _missing,
    _one_row,
    _counted,
    _image_size,
    _unpacked,
    _by_layer,
    _choices,
    _viewed,
    _smaller_ids,
    _multiple,
    _larger,
    _dimensions,
    _ended,
    _as_documented,
    _sized,
    _all_documented,
    _fewer,
)


def without_media(subject: Subject, wanted: Mapping[str, Wanted]) -> Iterator[Guess]:
    """The same guess with fewer kinds of media: without audio, without pixels, without both."""
    given = [name for name in wanted if name in MEDIA and name not in subject.required]
    if "input_ids" not in wanted or not given:
        return
    alone = [[name] for name in given] if len(given) > 1 else []
    for kept in [*alone, []]:
        yield _keeping(subject, wanted, kept)


def _keeping(subject: Subject, wanted: Mapping[str, Wanted], kept: list[str]) -> Guess:
    kinds = {_type(medium(name)) for name in kept}
    beside = re.compile(r"pixel|image|video|audio|feature|grid|mm_token")
    left = {
        n: o
        for n, o in wanted.items()
        if n in kept
        or n in subject.required
        or n == "input_ids"
        or not beside.search(n)
        or (kept and n not in MEDIA and _belongs(n, kept))
    }
    ids = left["input_ids"]
    marks: tuple[Placeholder, ...] = tuple(p for p in ids.placeholders if p.type in kinds)
    left["input_ids"] = replace(ids, placeholders=marks)
    return left


def _belongs(name: str, kept: list[str]) -> bool:
    """Whether a mask, a grid or a size is about one of the media that are kept."""
    kinds = {medium(other) for other in kept}
    if "mm_token" in name:
        return True
    about = "audio" if re.search(r"audio|feature", name) else "image"
    return about in kinds or ("video" in name and "video" in kinds)
