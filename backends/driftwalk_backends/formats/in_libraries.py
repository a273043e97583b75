"""Weights as other libraries keep them in a module: bitsandbytes, compressed-tensors.

    bitsandbytes         two numbers of a table of 16 in a byte; one step for so many in a row
                         LLM.int8: whole numbers, a step for a row; inputs likewise, but for some
    compressed-tensors   whole numbers or fp8, packed or not, and after the first run as floats;
                         one step for a matrix, a row, a group of a row, or a block

What cannot be read is an error that says so, and has no declared model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Array, Float64

from ..tensors import TORCH_DTYPES
from .rounded import Grid, RoundedWeight, grid_of, whole_numbers
from .rounding import FixedInputs, FloatInputs, InputRounding, OutlierColumns, Rounding

ROUNDOFFS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Relative: by how much rounding to a dtype changes a number, at most."""
_LLM_INT8 = 127
_WORD = 32
"""Bits of the words that numbers are packed into."""


class UnknownFormatError(Exception):
    """A weight is stored in a way that is not known here."""


def wide(tensor: torch.Tensor) -> Float64:
    """In float64, as an array."""
    made: Float64 = tensor.detach().cpu().to(TORCH_DTYPES["fp64"]).numpy()
    return made


def of_llm_int8(path: str, part: Any, before: float) -> RoundedWeight:
    """Eight bits, a step for each row; inputs alike, but for columns with large numbers.

    `before`: what the weights were off before they were rounded to fp16, and then to whole numbers.
    """
    state, weight = part.state, part.weight
    if state.has_fp16_weights:
        raise UnknownFormatError(f"{path} keeps its weight in float (has_fp16_weights)")
    numbers = weight.CB if state.CB is None else state.CB
    largest = weight.SCB if state.SCB is None else state.SCB
    if numbers is None or largest is None:
        raise UnknownFormatError(f"{path}.weight was not rounded yet: move it to its device first")
    steps = wide(largest).reshape(-1, 1) / _LLM_INT8
    if len(steps) != len(numbers):
        raise UnknownFormatError(f"{path}: {len(steps)} steps for {len(numbers)} rows")
    return RoundedWeight(
        path,
        Grid("int8", -_LLM_INT8, _LLM_INT8),
        wide(numbers),
        steps,
        np.zeros_like(steps),
        (1, numbers.shape[1]),
        OutlierColumns(float(state.threshold or 0.0)),
        slack=before + ROUNDOFFS[torch.float16],  # so is the largest number of a row, alike
    )


def of_bitsandbytes(path: str, weight: Any) -> RoundedWeight:
    """A weight of four bits."""
    state = weight.quant_state
    if state is None:
        raise UnknownFormatError(f"{path}.weight was not rounded yet: move it to its device first")
    rows, columns = state.shape
    if columns % state.blocksize:
        raise UnknownFormatError(f"{path}.weight: {state.blocksize} numbers are of several rows")
    if getattr(state, "packing_format_for_cpu", False):
        raise UnknownFormatError(
            f"{path}.weight was packed anew by its first run on this CPU, and its steps rounded to "
            "bf16: give the model as it was before it was run"
        )
    table = wide(state.code)
    packed = weight.data.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    places = np.stack([packed >> 4, packed & 15], axis=-1).reshape(rows, columns)
    steps, rounded = (one.reshape(rows, columns // state.blocksize) for one in _steps(state))
    known = tuple(sorted(set(table.tolist())))
    return RoundedWeight(
        path,
        Grid(str(state.quant_type), known[0], known[-1], table=known),
        table[places],
        steps,
        np.zeros_like(steps),
        (1, state.blocksize),
        slack=ROUNDOFFS.get(state.dtype, 0.0) + rounded,
    )


def _steps(state: Any) -> tuple[Float64, Float64]:
    """One for each block, and by how much, relatively, each may be off: rounded themselves."""
    if not state.nested:
        found = wide(state.absmax)
        return found, np.zeros_like(found)
    inner, table = state.state2, wide(state.state2.code)
    places = state.absmax.cpu().numpy().astype(np.int64).reshape(-1)
    largest = np.repeat(wide(inner.absmax), inner.blocksize)[: places.size]
    made: Float64 = table[places] * largest + float(state.offset)
    known = Grid("steps", float(table.min()), float(table.max()), table=tuple(sorted(table)))
    off = known.spacing(table[places]) / 2 * largest
    return made, off / np.maximum(np.abs(made), np.finfo(np.float64).tiny)


def of_compressed_tensors(path: str, part: nn.Module) -> RoundedWeight:
    """As its scheme says, whether it was run before or not."""
    scheme: Any = part.quantization_scheme
    held = {**part._parameters, **part._buffers}
    grid, step = _grid(path, scheme.weights), _tensor(path, held, "weight_scale")
    shape = _shape(held)
    counts = _counts(path, shape, tuple(step.shape))
    zero = held.get("weight_zero_point")
    zeros = np.zeros(counts) if zero is None else _zeros(zero, counts, grid)
    steps = wide(step).reshape(counts)
    block = tuple(n // c for n, c in zip(shape, counts, strict=True))
    order = _order(path, held, block)
    numbers = _numbers(path, held, shape, grid)
    if numbers is not None and order is not None:
        numbers = numbers[:, order]
    if numbers is None:  # floats again: what they are multiples of is what was stored
        values = wide(_tensor(path, held, "weight"))
        values = values if order is None else values[:, order]
        spread = [np.repeat(np.repeat(one, block[0], 0), block[1], 1) for one in (steps, zeros)]
        numbers = grid.nearest(values / np.where(spread[0] == 0, 1.0, spread[0]) + spread[1])
    weight = held.get("weight")
    dtypes = [step.dtype, weight.dtype if weight is not None else step.dtype]
    slack = sum(ROUNDOFFS.get(one, 0.0) for one in dtypes)
    inputs = _inputs(path, scheme.input_activations, held)
    return RoundedWeight(path, grid, numbers, steps, zeros, block, inputs, slack, order=order)


def _order(path: str, held: dict[str, Any], block: tuple[int, ...]) -> Array | None:
    """The columns as they are grouped, where that is an order of their own."""
    index = held.get("weight_g_idx")
    if index is None or int(index.min()) < 0:  # -1: not set
        return None
    of = index.detach().cpu().numpy()
    if not np.array_equal(np.bincount(of), np.full(len(of) // block[1], block[1])):
        raise UnknownFormatError(f"{path} has groups of different sizes")
    made: Array = np.argsort(of, kind="stable")
    return made


def _tensor(path: str, held: dict[str, Any], name: str) -> torch.Tensor:
    found = held.get(name)
    if found is None:
        raise UnknownFormatError(f"{path} has no {name}")
    return found  # type: ignore[no-any-return]


def _grid(path: str, rounding: Any) -> Grid:
    kind = str(getattr(rounding.type, "value", rounding.type))
    if kind == "int":
        return whole_numbers(int(rounding.num_bits))
    found = grid_of("float8_e4m3fn") if rounding.num_bits == 8 else None
    if found is None:
        raise UnknownFormatError(f"{path}.weight is rounded to {kind}{rounding.num_bits}")
    return found


def _shape(held: dict[str, Any]) -> tuple[int, ...]:
    if (whole := held.get("weight_shape")) is not None:
        return tuple(map(int, whole))
    return tuple(held["weight"].shape) if held.get("weight") is not None else ()


def _counts(path: str, shape: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...]:
    """How many blocks there are along each axis."""
    counts = (1, 1) if steps in ((), (1,)) else (steps[0], 1) if len(steps) == 1 else steps
    fits = len(shape) == len(counts) == 2
    if not fits or any(n % c for n, c in zip(shape, counts, strict=True)):
        raise UnknownFormatError(f"{path}: steps {list(steps)} do not fit a weight {list(shape)}")
    return counts


def _zeros(zero: torch.Tensor, counts: tuple[int, ...], grid: Grid) -> Float64:
    """As many as there are steps; packed along the rows where they are fewer."""
    if zero.numel() == counts[0] * counts[1]:
        return wide(zero).reshape(counts)
    turned = unpacked(zero.T.contiguous(), grid.bits, counts[0])
    return turned.T.astype(np.float64) + grid.lowest


def _numbers(path: str, held: dict[str, Any], shape: tuple[int, ...], grid: Grid) -> Float64 | None:
    """The stored ones; None where the weight holds floats again."""
    packed, weight = held.get("weight_packed"), held.get("weight")
    if packed is not None:
        if _WORD % grid.bits:
            raise UnknownFormatError(f"{path}.weight: {grid.bits} bits are packed across words")
        return unpacked(packed, grid.bits, shape[1]).astype(np.float64) + grid.lowest
    if weight is None:
        raise UnknownFormatError(f"{path} has no weight")
    return None if weight.dtype in TORCH_DTYPES.values() else wide(weight)


def unpacked(words: torch.Tensor, bits: int, columns: int) -> Array:
    """Numbers without a sign from words of 32 bits, the lowest bits first."""
    given = words.detach().cpu().numpy().view(np.uint32)
    shifts = np.arange(0, _WORD, bits, dtype=np.uint32)
    numbers = (given[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    made: Array = numbers.reshape(len(given), -1)[:, :columns]
    return made


def _inputs(path: str, rounding: Any, held: dict[str, Any]) -> Rounding | None:
    if rounding is None:
        return None
    kind = str(getattr(rounding.type, "value", rounding.type))
    way = str(getattr(rounding.strategy, "value", rounding.strategy))
    size = int(rounding.group_size or 0) if way == "group" else 0
    if rounding.num_bits != 8 or kind not in ("int", "float"):
        raise UnknownFormatError(f"the inputs of {path} are rounded to {kind}{rounding.num_bits}")
    if not rounding.dynamic:
        return _fixed(path, kind, held)
    if way not in ("token", "tensor", *(("group",) if kind == "float" else ())):
        raise UnknownFormatError(f"the inputs of {path} have one step for each {way}")
    if kind == "float":
        return FloatInputs(rows=way != "tensor", block=size)
    return InputRounding(rows=way == "token", symmetric=bool(rounding.symmetric))


def _fixed(path: str, kind: str, held: dict[str, Any]) -> Rounding:
    """By a step that was found when the model was calibrated."""
    step, zero = _tensor(path, held, "input_scale"), held.get("input_zero_point")
    if step.numel() != 1:
        raise UnknownFormatError(f"the inputs of {path} have {step.numel()} fixed steps")
    if kind == "float":
        return FloatInputs(fixed=float(step.detach()))
    return FixedInputs(float(step.detach()), 0.0 if zero is None else float(zero.detach()))
