"""The weights that a program stores rounded, and how the inputs of their products are rounded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from driftwalk.dtypes import Float64
from driftwalk.formats import Misstored

from ..formats.in_libraries import UnknownFormatError, wide
from ..formats.rounded import Grid, RoundedWeight, grid_of
from ..formats.rounding import FixedInputs, InputRounding, Rounding
from .frames import CONSTANT, Frame, Op, Plan, Ref
from .nested import Part, Program
from .roundings import CHOOSES, READS, ROUNDS, bound, word_of

PAIR = "{} reads rounded numbers by another step, zero or range than they were rounded by: {} of {}"


@dataclass
class Found:
    """What a program rounds."""

    weights: dict[str, str] = field(default_factory=dict)
    """The operation that reads a stored weight -> the path of the module that it is of."""
    vectors: dict[str, str] = field(default_factory=dict)
    """The same for biases."""
    between: list[str] = field(default_factory=list)
    """Modules where other things are rounded than the input of a product with such a weight."""


def stored(program: Program) -> Found:
    """Marks the parts of a program with what they store, and with what is wrong in itself."""
    found = Found()
    for frame in program.plan.root.frames():
        part = program.get_submodule(frame.path)
        assert isinstance(part, Part)
        for op in frame.ops():
            _Product(program.plan, part, frame, op).note(found)
    return found


class _Product:
    """An operation, and what of its inputs is rounded."""

    def __init__(self, plan: Plan, part: Part, frame: Frame, op: Op) -> None:
        self._plan, self._part, self._frame, self._op = plan, part, frame, op

    def note(self, found: Found) -> None:
        path = self._frame.path
        weights, inputs = [], []
        others = sum(1 for name in self._op.needs if self._is_rounded(name))
        for read in self._reads():
            source = self._source(read)
            if source is not None and self._is_constant(source):
                weights.append((read, source))
            elif source is not None and source.kind == ROUNDS:
                inputs.append((read, source))
                self._check(read, source)
            else:
                others += 1
        matrices = [pair for pair in weights if self._value(pair[1]).ndim >= 2]
        found.vectors |= {
            read.name: path for read, source in weights if (read, source) not in matrices
        }
        if len(matrices) > 1 or (matrices and hasattr(self._part, "stored_weight")):
            raise UnknownFormatError(f"{path} has several rounded weights")
        way = self._way(*inputs[0]) if len(inputs) == 1 else None
        for read, source in matrices:
            found.weights[read.name] = path
            self._part.stored_weight = self._weight(read, source, way)  # type: ignore[assignment]
        if others or (inputs and (way is None or not matrices)):
            found.between.append(path)

    def _reads(self) -> Iterator[Op]:
        for name in self._op.needs:
            op = self._plan.late.get(name)
            if op is not None and op.kind == READS:
                yield op

    def _is_rounded(self, name: str) -> bool:
        """Whether it is taken in whole numbers, as it was rounded."""
        op = self._plan.late.get(name)
        return op is not None and op.kind == ROUNDS and not self._is_constant(op)

    def _source(self, read: Op) -> Op | None:
        given = _given(read)["input"]
        return self._plan.late.get(given.name) if isinstance(given, Ref) else None

    def _is_constant(self, op: Op) -> bool:
        if op.kind == CONSTANT:
            return True
        return all(
            name in self._plan.late and self._is_constant(self._plan.late[name])
            for name in op.needs
        )

    def _value(self, op: Op) -> torch.Tensor:
        """Of a constant, or of what is computed of constants alone."""
        return self._part.constant(op)

    def _argument(self, value: Any) -> Any:
        """A number; None where it is computed while the program runs."""
        if not isinstance(value, Ref):
            return value
        op = self._plan.late.get(value.name)
        return self._value(op) if op is not None and self._is_constant(op) else None

    def _check(self, read: Op, rounds: Op) -> None:
        """Numbers must be read by the step that they were rounded by."""
        mine, theirs = _given(read), _given(rounds)
        names = (
            "scale",
            "scales",
            "zero_point",
            "zero_points",
            "quant_min",
            "quant_max",
            "dtype",
            "axis",
        )
        off = [name for name in names if not self._same(mine.get(name), theirs.get(name))]
        chosen = self._chooses(theirs.get("scale", theirs.get("scales")))
        if chosen is not None and _given(chosen)["input"] != theirs["input"]:
            off.append("the tensor that its step was chosen for")
        if off:
            sentence = PAIR.format(self._frame.path or "the model", ", ".join(off), rounds.name)
            self._part.undeclared = Misstored(sentence, math.inf)  # type: ignore[assignment]

    def _same(self, a: Any, b: Any) -> bool:
        if a == b:
            return True
        a, b = self._argument(a), self._argument(b)
        both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        return both and a.shape == b.shape and bool((a == b).all())

    def _chooses(self, value: Any) -> Op | None:
        """The operation that chose a step, through what takes it from a pair."""
        op = self._plan.late.get(value.name) if isinstance(value, Ref) else None
        if op is None or op.kind == CHOOSES:
            return op
        return self._chooses(op.args[0]) if not op.kind and op.args else None

    def _way(self, read: Op, rounds: Op) -> Rounding | None:
        """How an input is rounded; None where a model's hooks could not do the same."""
        given = _given(rounds)
        lowest, highest = given["quant_min"], given["quant_max"]
        if not all(isinstance(one, int) for one in (lowest, highest)):
            return None
        step = self._argument(given.get("scale", given.get("scales")))
        zero = self._argument(given.get("zero_point", given.get("zero_points")))
        if step is not None and zero is not None:
            sizes = [one.numel() for one in (step, zero) if isinstance(one, torch.Tensor)]
            if any(size != 1 for size in sizes):
                return None
            return FixedInputs(float(step), float(zero), lowest=lowest, highest=highest)
        chosen = self._chooses(given.get("scale", given.get("scales")))
        if chosen is None or word_of(chosen.target) not in (
            "choose_qparams",
            "choose_qparams_symmetric",
        ):
            return None
        symmetric = word_of(chosen.target) == "choose_qparams_symmetric"
        least = float(_given(chosen)["eps"])
        return InputRounding(symmetric=symmetric, steps=highest - lowest, least=least)

    def _weight(self, read: Op, source: Op, way: Rounding | None) -> RoundedWeight:
        given = _given(read)
        numbers = self._value(source)
        word, path = word_of(read.target), self._frame.path
        step = self._argument(given.get("scale", given.get("scales")))
        zero = self._argument(given.get("zero_point", given.get("zero_points")))
        if step is None or word == "dequantize_per_token":
            raise UnknownFormatError(f"the weight of {path} is read by a step of the input's")
        axis = given["axis"] % numbers.ndim if "axis" in given else None
        block = tuple(1 if i == axis else n for i, n in enumerate(numbers.shape))
        counts = tuple(n // b for n, b in zip(numbers.shape, block, strict=True))
        steps, zeros = _spread(step, counts), _spread(0.0 if zero is None else zero, counts)
        grid = _grid(path, given, numbers)
        return RoundedWeight(path, grid, wide(numbers), steps, zeros, block, way)


def _given(op: Op) -> dict[str, Any]:
    """Its arguments by name."""
    return bound(op.target, op.args, op.kwargs)


def _spread(value: Any, counts: tuple[int, ...]) -> Float64:
    """One for each block."""
    held = wide(value) if isinstance(value, torch.Tensor) else np.array(float(value))
    if held.size not in (1, math.prod(counts)):
        raise UnknownFormatError(
            f"{held.size} steps do not fit a weight of {math.prod(counts)} blocks"
        )
    made: Float64 = np.broadcast_to(held.reshape(-1), (math.prod(counts),)).reshape(counts).copy()
    return made


def _grid(path: str, given: dict[str, Any], numbers: torch.Tensor) -> Grid:
    word = str(numbers.dtype).removeprefix("torch.")
    known = grid_of(word)
    lowest, highest = given["quant_min"], given["quant_max"]
    if known is None or not isinstance(lowest, int) or not isinstance(highest, int):
        raise UnknownFormatError(f"{path}.weight holds {word}")
    bits = (highest - lowest).bit_length()
    name = known.name if bits == known.bits else f"{known.name.rstrip('0123456789')}{bits}"
    return Grid(name, lowest, highest)
