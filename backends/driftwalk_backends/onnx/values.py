"""What a graph takes and gives: names, types and shapes, in ONNX Runtime's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from driftwalk.dtypes import Array

FLOAT_KINDS = ("tensor(float)", "tensor(float16)", "tensor(double)")
"""Tensors of floats, as far as numpy has them."""

WHOLE_KINDS = ("tensor(bool)", *(f"tensor({u}int{n})" for u in ("", "u") for n in (8, 16, 32, 64)))
"""Tensors of whole numbers and flags: outputs alone can be states of a model."""

STEP_KINDS = ("tensor(int8)", "tensor(uint8)", "tensor(int16)", "tensor(uint16)", "tensor(int32)")
"""Tensors of whole numbers that may stand for floats in steps."""

_NUMPY = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool"}
_NUMPY |= {name: name for name in ("int8", "int16", "int32", "int64")}
_NUMPY |= {name: name for name in ("uint8", "uint16", "uint32", "uint64")}


@dataclass(frozen=True)
class Value:
    """An input or output of a graph; a dimension is a number, or a name for any number."""

    name: str
    kind: str
    """`tensor(int64)`, `seq(tensor(float))`, ..."""
    shape: tuple[int | str, ...]
    """Empty for a scalar, and where the graph does not say; a dimension may have no name."""

    def __str__(self) -> str:
        return f"{self.name!r} {self.kind} [{', '.join(str(d) or '?' for d in self.shape)}]"

    @property
    def element(self) -> str:
        return self.kind.rpartition("(")[2].rstrip(")")

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Numpy's word for its elements; None for text, and for formats that numpy lacks."""
        return np.dtype(_NUMPY[self.element]) if self.element in _NUMPY else None

    @property
    def is_sequence(self) -> bool:
        return "seq(" in self.kind

    def cast(self, array: Array) -> Array | None:
        """The array in this type; None where its type, its rank or its numbers cannot be meant."""
        if self.dtype is None:  # as it is, or not at all
            return array if self.element in (array.dtype.name, "string") else None
        if not self.is_sequence and len(self.shape) not in (array.ndim, 0):
            return None
        whole = array.dtype.kind in "iub"
        if self.dtype.kind == "f":  # a mask may be wanted as floats; a float is never a token
            fits = array.dtype.kind == "f" or (whole and "mask" in self.name)
            return array.astype(self.dtype) if fits else None
        made: Array = array.astype(self.dtype) if whole else array
        return made if whole and np.array_equal(made, array) else None


def value_of(info: Any) -> Value:
    """From the graph's own description of an input or output."""
    kind, frame = info.type, "{}"
    if kind.HasField("optional_type"):
        kind, frame = kind.optional_type.elem_type, "optional({})"
    if kind.HasField("sequence_type"):
        kind, frame = kind.sequence_type.elem_type, frame.format("seq({})")
    tensor = kind.tensor_type
    dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim)
    return Value(info.name, frame.format(f"tensor({_word(tensor.elem_type)})"), dims)


def _word(number: int) -> str:
    from onnx import TensorProto

    known: dict[int, str] = {n: word for word, n in TensorProto.DataType.items()}
    return known.get(number, "undefined").lower()
