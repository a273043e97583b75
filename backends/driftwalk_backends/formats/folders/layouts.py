"""The stored tensors of one linear layer as a rounded weight.

    GPTQ  qweight  bits along the inputs     qzeros  bits along the outputs, a row a group
    AWQ   qweight  bits along the outputs    qzeros  likewise
    both  scales   a row a group             g_idx   the group of each input, where it is stored
    fp8   weight   plain                     weight_scale_inv  a step a block

A weight has a row for each output, as PyTorch's linear layers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

import numpy as np
import torch

from driftwalk.dtypes import Array
from driftwalk.errors import ModelError

from ..in_libraries import ROUNDOFFS, wide
from ..rounded import RoundedWeight, grid_of, whole_numbers
from ..rounding import FloatInputs
from . import words
from .declaring import Declaration

Tensors = Mapping[str, torch.Tensor]
PACKED = ("qweight", "qzeros", "scales", "g_idx")
FP8 = ("weight", "weight_scale_inv", "activation_scale")


def rounded(path: str, held: Tensors, says: Declaration) -> RoundedWeight:
    """A layer's weight; an error that names the tensor which does not fit."""
    return _fp8(path, held, says) if says.method == "fp8" else _packed(path, held, says)


def _packed(path: str, held: Tensors, says: Declaration) -> RoundedWeight:
    qweight, qzeros = (_words(path, held, name) for name in ("qweight", "qzeros"))
    scales = _tensor(path, held, "scales")
    if not scales.is_floating_point() or scales.ndim != 2:
        raise ModelError(f"{_at(path, 'scales')} is {_kind(scales)}; expected a matrix of floats.")
    if says.method == "awq":
        numbers, zeros, bits = words.awq(qweight), words.awq(qzeros), says.bits
    else:
        bits = _bits(path, qweight, held, says)
        numbers, zeros = words.stream(qweight, bits), words.stream(qzeros.T.copy(), bits).T
    groups, outputs = scales.shape
    wanted = {"qweight": (len(numbers), outputs), "qzeros": (groups, outputs)}
    for name, got in (("qweight", numbers), ("qzeros", zeros)):
        if got.shape != wanted[name]:
            raise ModelError(
                f"{_at(path, name)} holds {_size(got.shape)} numbers of {bits} bits; by scales "
                f"({_size(scales.shape)}) expected {_size(wanted[name])}."
            )
    offset = 1.0 if says.layout == "gptq" else 0.0
    order, sizes = _grouped(path, len(numbers), groups, held)
    # Groups of different sizes (a last one that is shorter) are made of smaller ones that are not.
    each = gcd(*sizes.tolist())
    repeats = sizes // each
    grid = whole_numbers(bits, signed=False)
    return RoundedWeight(
        path,
        replace(grid, name=f"{grid.name} ({says.words})"),
        np.ascontiguousarray(numbers.T if order is None else numbers[order].T),
        np.repeat(wide(scales), repeats, 0).T,
        np.repeat(zeros.astype(np.float64) + offset, repeats, 0).T,
        (1, each),
        slack=ROUNDOFFS.get(scales.dtype, 0.0),
        order=order,
    )


def _bits(path: str, qweight: Array, held: Tensors, says: Declaration) -> int:
    """As declared; where modules differ, as its shapes show."""
    index = held.get("g_idx")
    if index is None or not index.numel():
        return says.bits
    found, rest = divmod(len(qweight) * words.WORD, index.numel())
    if not rest and (found == says.bits or (says.differ and found in (2, 3, 4, 8))):
        return found
    there = len(qweight) * words.WORD // says.bits
    raise ModelError(
        f"{_at(path, 'g_idx')} has {index.numel()} inputs, and qweight "
        f"({_size(qweight.shape)}) has {there} of {says.bits} bits."
    )


def _grouped(
    path: str, inputs: int, groups: int, held: Tensors
) -> tuple[Array | None, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The inputs in the order of their groups (None: as they stand), and each group's size."""
    index = held.get("g_idx")
    if index is None or not index.numel():
        size = -(-inputs // groups)
        if (groups - 1) * size >= inputs:
            raise ModelError(
                f"{_at(path, 'scales')} has {groups} groups, which {inputs} inputs do not fill."
            )
        of = np.arange(inputs) // size
    else:
        if index.is_floating_point() or index.ndim != 1:
            raise ModelError(f"{_at(path, 'g_idx')} is {_kind(index)}; expected whole numbers.")
        of = index.to(torch.int64).numpy()
        if of.min() < 0 or of.max() >= groups:
            wrong = of.min() if of.min() < 0 else of.max()
            raise ModelError(f"{_at(path, 'g_idx')} names group {wrong}; there are {groups}.")
    sizes = np.bincount(of, minlength=groups)
    if not sizes.all():
        raise ModelError(f"{_at(path, 'g_idx')} leaves group {int(sizes.argmin())} empty.")
    order = np.argsort(of, kind="stable")
    return (None if np.array_equal(order, np.arange(inputs)) else order), sizes


def _fp8(path: str, held: Tensors, says: Declaration) -> RoundedWeight:
    weight = _tensor(path, held, "weight")
    grid = grid_of(str(weight.dtype).removeprefix("torch."))
    if grid is None or grid.digits is None or weight.ndim != 2:
        raise ModelError(f"{_at(path, 'weight')} is {_kind(weight)}; expected a matrix of fp8.")
    step = _tensor(path, held, "weight_scale_inv")
    if not step.is_floating_point():
        raise ModelError(f"{_at(path, 'weight_scale_inv')} is {_kind(step)}; expected floats.")
    shape = tuple(weight.shape)
    block = says.block or shape
    counts = tuple(-(-n // b) for n, b in zip(shape, block, strict=True))
    if step.numel() != counts[0] * counts[1]:
        raise ModelError(
            f"{_at(path, 'weight_scale_inv')} has shape {_size(step.shape)}; a weight of "
            f"{_size(shape)} in blocks of {_size(block)} has {_size(counts)}."
        )
    steps = wide(step.float()).reshape(counts)
    each = tuple(gcd(n, min(b, n)) for n, b in zip(shape, block, strict=True))
    for axis in (0, 1):
        of = np.arange(shape[axis] // each[axis]) * each[axis] // block[axis]
        steps = np.take(steps, of, axis)
    inputs = _inputs(path, held, says)
    zeros = np.zeros_like(steps)
    return RoundedWeight(path, grid, _narrow(weight), steps, zeros, each, inputs)


def _narrow(weight: torch.Tensor) -> Array:
    """All of fp8 in float32, without loss."""
    made: Array = weight.float().numpy()
    return made


def _inputs(path: str, held: Tensors, says: Declaration) -> FloatInputs:
    if not says.fixed_inputs:
        return FloatInputs(block=says.block[1] if says.block else 0)
    step = _tensor(path, held, "activation_scale")
    if step.numel() != 1 or not float(step) > 0:
        raise ModelError(f"{_at(path, 'activation_scale')} is not one step above zero.")
    return FloatInputs(fixed=float(step))


def _words(path: str, held: Tensors, name: str) -> Array:
    found = _tensor(path, held, name)
    if found.dtype != torch.int32 or found.ndim != 2:
        raise ModelError(f"{_at(path, name)} is {_kind(found)}; expected a matrix of int32.")
    made: Array = found.contiguous().numpy()
    return made


def _tensor(path: str, held: Tensors, name: str) -> torch.Tensor:
    found = held.get(name)
    if found is None or not found.numel():
        raise ModelError(f"{_at(path, name)} is missing: the folder has {', '.join(sorted(held))}.")
    return found


def _at(path: str, name: str) -> str:
    return ascii(f"{path}.{name}")[:160]


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {_size(tuple(tensor.shape))}"


def _size(shape: tuple[int, ...] | torch.Size) -> str:
    return " x ".join(map(str, shape)) or "()"
