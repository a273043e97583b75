"""What messages say about shapes and lengths, and the inputs with the shapes they ask for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import torch

from .documented import size_of
from .failures import Failure
from .subject import Subject
from .wanted import Wanted

Guess = dict[str, Wanted]
_MOST_VALUES = 1 << 24
"""Values of an input that is made larger: a guess must stay cheap."""


def unpacked(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """A line that takes a shape apart into more or fewer sizes than there are."""
    more = re.search(r"not enough values to unpack \(expected (\d+), got (\d+)\)", failure.message)
    fewer = re.search(
        r"too many values to unpack \(expected (\d+)(?:, got (\d+))?\)", failure.message
    )
    if more is None and fewer is None:
        return None
    expected, got = (more or fewer).groups()  # type: ignore[union-attr]
    name = _taken_apart(failure, wanted)
    if name is None:
        return None
    dims = int(expected)
    if len(wanted[name].shape) == dims and got is not None:
        dims += dims - int(got)  # an axis was folded into another before
    if len(wanted[name].shape) == dims:
        return None
    return {**wanted, name: _as_named(subject, failure, wanted[name], dims)}


_ONE_LETTER = {"b": "batch", "t": "frames", "c": "channels", "h": "height", "w": "width"}


def _as_named(subject: Subject, failure: Failure, one: Wanted, dims: int) -> Wanted:
    """The sizes that the failed line gives names to, where it names those of an image."""
    stated = re.match(r"\s*\(?([\w, ]+?),?\)?\s*=[^=]", failure.frames[0].line)
    names = [n.strip().lower() for n in stated.group(1).split(",")] if stated else []
    names = [_ONE_LETTER.get(name, name) for name in names]
    if len(names) == dims and {"height", "width"} <= {*names} and len(one.shape) < dims:
        sizes = [size_of(subject, name) or 1 for name in names]
        return one.resized((one.shape[0], *sizes[1:]))
    if len(names) == dims == 3 and len(one.shape) == 2 and re.search(r"len|seq", names[1]):
        return one.resized((*one.shape, subject.width))
    return _with_dims(subject, one, dims)


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


def dimensions(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """A message that says how many dimensions a tensor must have."""
    stated = re.search(
        r"(?i)expected?\D{0,40}?(\d)D \(unbatched\) or (\d)D|(\d)D tensor|"
        r"(\d)[- ]dim|number of dimensions.*?(\d)|dims?\b.*?expected (\d)",
        failure.message,
    )
    beyond = re.search(
        r"Dimension out of range .* but got (\d)|too many indices for tensor of dimension (\d)",
        failure.message,
    )
    if stated is None and beyond is None:
        return None
    numbers = [int(n) for n in stated.groups() if n] if stated else []
    numbers += [int(n) + 1 for n in beyond.groups() if n] if beyond else []
    name = _taken_apart(failure, wanted) or next(iter(wanted), None)
    if name is None or not numbers or len(wanted[name].shape) == numbers[-1]:
        return None
    return {**wanted, name: _with_dims(subject, wanted[name], numbers[-1])}


EXPECTED = (
    r"expected[^\d\[]{0,60}?(?P<want>\d+)[^\d]{1,60}?(?:got|but|found|given)[^\d]{0,60}?(?P<have>\d+)",
    r"got[^\d]{0,40}?(?P<have>\d+)[^\d]{1,60}?expected[^\d]{0,40}?(?P<want>\d+)",
    r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<have>\d+) and (?P<want>\d+)x\d+\)",
    r"normalized_shape=\[(?P<want>\d+)\].*\D(?P<have>\d+)\]$",
    r"to have (?P<want>\d+) channels, but got (?P<have>\d+) channels",
    r"size of tensor a \((?P<have>\d+)\) must match the size of tensor b \((?P<want>\d+)\)",
    r"size of tensor a \((?P<want>\d+)\) must match the size of tensor b \((?P<have>\d+)\)",
    r"\((?P<have>\d+)\) (?:doesn't|does not) match[^\d]*\((?P<want>\d+)\)",
    r"Sizes of tensors must match.* size (?P<have>\d+) but got size (?P<want>\d+)",
    r"size (?P<have>\d+) .*? should be (?P<want>\d+)",
    r"length .*?(?P<want>\d+)[^\d]+but[^\d]+(?P<have>\d+)",
)


def sized(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Messages that say which size was there and which one was expected."""
    for pattern in EXPECTED:
        stated = re.search(pattern, failure.message, re.I | re.S)
        if stated is None:
            continue
        have, want = int(stated["have"]), int(stated["want"])
        for name, one in wanted.items():
            axes = [i for i, size in enumerate(one.shape) if size == have and i > 0]
            if axes and want > 0 and one.kind not in ("given",):
                shape = list(one.shape)
                shape[axes[-1]] = want
                if math.prod(shape) > _MOST_VALUES:
                    return None
                return {**wanted, name: one.resized(tuple(shape))}
    return None


def columns(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """One number for each row, as a column beside what has more axes."""
    if not re.search(r"size of tensor a \(\d+\) must match the size of tensor b", failure.message):
        return None
    flat = {n: o for n, o in wanted.items() if len(o.shape) == 1 and o.kind != "given"}
    return {**wanted, **{n: o.resized((*o.shape, 1)) for n, o in flat.items()}} if flat else None


def with_length(wanted: Guess, length: int) -> Guess:
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


def multiple(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
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
    return with_length(wanted, length) if length <= 65536 else None


def larger(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
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
        return with_length(wanted, 4 * max(o.shape[-1] for o in wanted.values() if o.shape))
    one = wanted[name]
    # A wave is made shorter by many layers, each of which says the same.
    axes, times = (len(one.shape) - 2, 2) if len(one.shape) > 2 else (1, 8)
    sides = tuple(times * side for side in one.shape[-axes:])
    shape = (*one.shape[:-axes], *sides)
    if math.prod(shape) > _MOST_VALUES:
        return None
    return {**wanted, name: one.resized(shape)}


def mono(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """A wave with an axis for its only channel."""
    waves = [n for n, o in wanted.items() if o.kind == "normal" and len(o.shape) == 2]
    if not waves or not re.search(r"(?i)\bmono\b", failure.message):
        return None
    rows, samples = wanted[waves[0]].shape
    return {**wanted, waves[0]: wanted[waves[0]].resized((rows, 1, samples))}


def choices(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Several texts in a row, of which one is to be chosen."""
    if not re.search(r"shape '\[-1, (\d+)\]' is invalid", failure.message):
        return None
    return {
        n: o.resized((o.shape[0], 2, *o.shape[1:]))
        if o.kind in ("ids", "mask", "boxes", "zeros") and len(o.shape) >= 2
        else o
        for n, o in wanted.items()
    }


def room_for_features(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Texts with as many positions as there are features to be written into them."""
    stated = re.search(
        r"value tensor of shape \[(\d+)[^\]]*\] cannot be broadcast to indexing result of shape "
        r"\[(\d+)",
        failure.message,
    )
    ids = wanted.get("input_ids")
    if stated is None or ids is None or ids.placeholders:
        return None
    features, places = map(int, stated.groups())
    if places != math.prod(ids.shape) or features % ids.shape[0]:
        return None
    return with_length(wanted, features // ids.shape[0])


def whole_numbers(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Whole numbers in the place of floats, for the input that the failed lines have at hand."""
    if not re.search(
        r"must be tuple of ints|Expected tensor for argument #1 'indices'|tensors used as ind"
        r"|only integer tensors|not implemented for 'Float'|must be Long|expected .*Long",
        failure.message,
    ):
        return None
    floats = [n for n, o in wanted.items() if o.kind in ("normal", "uniform")]
    spare = [n for n in floats if not wanted[n].main] or floats
    named = _taken_apart(failure, {n: wanted[n] for n in spare})
    name = named if named in spare else (spare[-1] if spare else None)
    if name is None:
        return None
    kind = "ids" if name == floats[0] and wanted[name].main else "ones"
    return {**wanted, name: replace(wanted[name], kind=kind, high=subject.vocabulary or 2)}


def boxed(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Corners of boxes in the range that the message states."""
    stated = re.search(r"(?i)box.*within \D*(\d+)\D+(\d+)", failure.message)
    name = next((n for n, o in wanted.items() if "box" in n and o.shape[-1] == 4), None)
    if stated is None or name is None:
        return None
    return {**wanted, name: replace(wanted[name], kind="boxes", high=int(stated.group(2)))}


def viewed(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """Rows that are taken apart into several streams, which lie one behind the other."""
    return _in_streams(failure, wanted, lambda rows, length, streams: (rows * streams, length))


def viewed_last(subject: Subject, failure: Failure, wanted: Guess) -> Guess | None:
    """The same, with the streams along an axis of their own."""
    return _in_streams(failure, wanted, lambda rows, length, streams: (rows, length, streams))


def _in_streams(
    failure: Failure, wanted: Guess, shape: Callable[[int, int, int], tuple[int, ...]]
) -> Guess | None:
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
    own = {n: replace(o, like_ids=False) for n, o in wanted.items()}
    rows, length = wanted[name].shape
    return {**own, name: replace(own[name], shape=shape(rows, length, streams))}
