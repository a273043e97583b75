"""What a graph is given: arrays from a user, completed by made-up ones that it runs with.

Another graph is fed from the same probe by name, else by place. A torch model's probe is the
business of `feeds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, ProbeError
from driftwalk.input_files import PROBE_FILES, InputFiles
from driftwalk.states import Probe, read_only

from ...constants import BRANCH_WAYS
from ..feeds import nothing_fits, open_sizes
from ..graph import Arrays, Value
from .defaults import Defaults, Sizes, axis_key
from .feeding import Fed, Search, Trial, UnfedError
from .model import OnnxModel
from .selecting import selections


@dataclass(frozen=True, eq=False)
class GraphProbe(Probe):
    """Inputs of a graph: an input may be empty or text there, and there may be none at all."""

    def __post_init__(self) -> None:
        arrays = {name: read_only(np.array(a, order="C")) for name, a in self.inputs.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "fiubUV" or array.dtype.type is np.void:
                raise ProbeError(f"Probe input {name!r} is not an array of numbers or of text.")
        object.__setattr__(self, "inputs", MappingProxyType(arrays))


def graph_probe(
    model: OnnxModel,
    given: object,
    *,
    batch: int,
    length: int,
    seed: int,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Probe:
    """A probe from arrays by name, a file of them, or nothing; what is left out is made up.

    `shapes` are those of inputs that are made up.
    """
    taken = model.graph.inputs
    arrays, origin = _read(model, taken, given)
    _check_arrays(model, arrays)
    covered = set(map(_input_of, arrays))
    wanted = _checked_shapes(model, shapes or {}, covered)
    items = [item for item in taken if item.name not in covered]
    defaults = Defaults(model.label, model.graph, items, batch, length, seed, wanted)
    known = open_sizes(taken, arrays) | _sizes_of_shapes(taken, wanted)
    made, remarks = _made_up(model, defaults, known, arrays)
    if given is None:
        origin = f"seeded default (seed {seed})"
    elif made:
        origin += f"; made up: {', '.join(made)}"
    # In the graph's own order: another graph may have other names for its inputs.
    every, order = arrays | made, [item.name for item in taken]
    ordered = sorted(every, key=lambda name: order.index(_input_of(name)))
    return GraphProbe({n: every[n] for n in ordered}, origin=origin, remarks=tuple(remarks))


def _check_arrays(model: OnnxModel, arrays: dict[str, Array]) -> None:
    """Arrays in the types of the graph, or an error."""
    known = {item.name: item for item in model.graph.inputs}
    for name, array in arrays.items():
        item = known.get(_input_of(name))
        if item is None:
            raise ProbeError(f"{model.label} has no input {name!r}; it takes {_all(model)}.")
        cast = item.cast(array)
        if cast is None:
            raise ProbeError(
                f"Probe input {name!r} is {array.dtype.name} {list(array.shape)}; {model.label} "
                f"takes {item}."
            )
        arrays[name] = cast


def _all(model: OnnxModel) -> str:
    return ", ".join(map(str, model.graph.inputs)) or "nothing"


def _checked_shapes(
    model: OnnxModel, shapes: Mapping[str, Sequence[int]], covered: set[str]
) -> dict[str, tuple[int, ...]]:
    """Shapes that a user wants inputs to have; what the graph cannot take is refused."""
    known = {item.name: item for item in model.graph.inputs}
    ranked = {v.name for v in model.graph.proto.graph.input if v.type.tensor_type.HasField("shape")}
    for name, shape in shapes.items():
        item = known.get(name)
        text = f"--shape {name}={','.join(map(str, shape))}"
        if item is None:
            raise ProbeError(f"{text}: {model.label} has no such input; it takes {_all(model)}.")
        if name in covered:
            raise ProbeError(f"{text}: that input is given as an array, which has a shape.")
        if any(size < 0 for size in shape):
            raise ProbeError(f"{text}: a size is a whole number, zero or more.")
        if name in ranked and len(shape) != len(item.shape):
            sides = f"{len(item.shape)} axes, and {len(shape)} sizes were given"
            raise ProbeError(f"{text}: input {item} of {model.label} has {sides}.")
        for axis, size in enumerate(shape if name in ranked else ()):
            if not axis_key(item, axis) and item.shape[axis] != size:
                raise ProbeError(
                    f"{text}: axis {axis} of input {item} of {model.label} is "
                    f"{item.shape[axis]}, and no other size."
                )
    return {name: tuple(shape) for name, shape in shapes.items()}


def _sizes_of_shapes(
    taken: Sequence[Value], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """What the open axes with a name are in these shapes."""
    return {
        dim: size
        for item in taken
        for dim, size in zip(item.shape, shapes.get(item.name, ()), strict=False)
        if isinstance(dim, str) and dim
    }


def _made_up(
    model: OnnxModel, defaults: Defaults, known: Mapping[str, int], arrays: dict[str, Array]
) -> tuple[dict[str, Array], list[str]]:
    """The inputs that nobody gave, such that the graph runs; and what is to be said of them."""
    names = {item.name for item in defaults.items}
    selecting = [one for one in selections(model.graph) if one.input in names]
    start = defaults.start(known)
    choices = {one.input: one.proposals for one in selecting if one.proposals}
    start = Sizes(start.axes, {name: numbers[0] for name, numbers in choices.items()})
    make = partial(defaults.arrays, known=known)
    made = make(start)
    if not start.axes and not choices:
        return made, []
    found = _searched(model, arrays, make, start, choices)
    made = make(found.sizes)
    remarks = [one.sentence(int(made[one.input].reshape(-1)[0])) for one in selecting]
    if found.refused is not None:
        forms = ", ".join(f"{name} {list(array.shape)}" for name, array in made.items())
        remarks.append(
            f"The default probe has {forms}, found in {found.tries} tries: with the usual sizes "
            f"the graph does not run ({_brief(found.refused.text)})."
        )
    return made, remarks


def _searched(
    model: OnnxModel,
    arrays: dict[str, Array],
    make: Callable[[Sizes], dict[str, Array]],
    start: Sizes,
    choices: Mapping[str, Sequence[int]],
) -> Fed:
    try:
        trial = Trial(model.graph)
    except Exception:  # a graph that cannot be loaded is told of where it is to be run
        return Fed(start, None, 0)
    taken = model.graph.inputs

    def inputs(sizes: Sizes) -> dict[str, Any]:
        return fed(model.label, taken, arrays | make(sizes))

    rows = frozenset(key for item in taken if item.shape and (key := axis_key(item, 0)))
    refused: list[UnfedError] = []
    for fills in _every(choices):
        try:
            return Search(trial, inputs, rows).found(Sizes(start.axes, fills))
        except UnfedError as error:
            refused.append(error)
    first, tries = refused[0], sum(error.tries for error in refused)
    raise ProbeError(
        f"No inputs could be made up that {model.label} runs with ({tries} tries with other sizes "
        f"of its open axes): {_brief(first.failure.text)}. It takes {_all(model)}. Give shapes "
        "(--shape NAME=1,512), --batch and --length, or the inputs themselves (--input "
        "NAME=FILE.npy, --probe FILE.safetensors)."
    )


def _every(choices: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Every way to fill inputs that select branches, a few at most."""
    ways = islice(product(*choices.values()), BRANCH_WAYS)
    yield from (dict(zip(choices, numbers, strict=True)) for numbers in ways)


def _brief(text: str) -> str:
    """What ONNX Runtime says of the innermost node that fails, without what it is wrapped in."""
    words = text.rpartition("Non-zero status code returned while running ")[2]
    return words.replace(" Status Message:", ":").strip().rstrip(".")


def _input_of(name: str) -> str:
    """The input that an array belongs to: `many[0]` is the first of the sequence `many`."""
    return name.partition("[")[0]


def _read(model: OnnxModel, taken: Sequence[Value], given: object) -> tuple[dict[str, Array], str]:
    if given is None:
        return {}, ""
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(PROBE_FILES)):
        given = GraphProbe.load(given)
    if isinstance(given, InputFiles):
        if given.texts or len(given.arrays) < len(given.files):
            raise ProbeError(
                f"{model.label} is a graph: it has no tokenizer and no processor. Give its inputs "
                "as arrays: --input NAME=FILE.npy."
            )
        given = given.arrays
    if isinstance(given, Probe):
        given.refuse_others(f"The graph {model.label}")
        return dict(given.inputs), given.origin
    if isinstance(given, Mapping):
        return {str(name): _array(name, value) for name, value in given.items()}, "arrays"
    items = given if isinstance(given, list) else [given]
    if items and all(isinstance(item, str) for item in items):
        raise ProbeError(
            f"{model.label} is a graph: it has no tokenizer. Give its inputs as arrays "
            f"(--probe FILE.safetensors, or --ids): {', '.join(map(str, taken))}."
        )
    if not taken:
        raise ProbeError(f"{model.label} takes no inputs.")
    return {taken[0].name: _array(taken[0].name, given)}, "ids or array"


def _array(name: object, value: object) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ProbeError(f"Probe input {name!r} cannot be read as an array: {error}.") from None
    return array.astype(str) if array.dtype.kind == "O" else array


def fed(where: str, taken: Sequence[Value], inputs: Arrays) -> dict[str, Any]:
    """What a session is given: inputs by name, else by their place where all types fit."""
    feed: dict[str, Any] = {}
    lacking: list[Value] = []
    spare = list(inputs)
    for item in taken:
        parts = [name for name in inputs if name.startswith(f"{item.name}[")]
        if item.name in inputs:
            feed[item.name] = item.cast(inputs[item.name])
            spare.remove(item.name)
        elif item.is_sequence:
            feed[item.name] = [inputs[name] for name in parts]
            spare = [name for name in spare if name not in parts]
        else:
            lacking.append(item)
    for place, item in enumerate(lacking):
        fits = len(lacking) == len(spare)
        feed[item.name] = item.cast(inputs[spare[place]]) if fits else None
    for item in taken:
        if feed[item.name] is None:
            raise BackendError(nothing_fits(where, item, taken, inputs))
    return feed
