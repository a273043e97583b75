"""The floating-point formats driftwalk speaks of, by the short names used in backend specs.

TF32 is a way to multiply, not to store: its tensors are float32, its roundoff is that of 10 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """One floating-point format: its short name, numpy dtype and unit roundoff."""

    name: str
    numpy: str
    roundoff: float

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype; bfloat16 and fp8 come from ml_dtypes, which numpy lacks."""
        if self.name in ("bf16", "fp8"):
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.numpy))
            return found
        return np.dtype(self.numpy)

    @property
    def smallest(self) -> float:
        """The smallest normal number: what is smaller loses digits, or is flushed to zero."""
        import ml_dtypes

        return float(ml_dtypes.finfo(self.dtype).smallest_normal)

    @property
    def lowest(self) -> float:
        """The lowest finite number."""
        import ml_dtypes

        return float(ml_dtypes.finfo(self.dtype).min)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("fp64", "float64", 2.0**-53),
        Format("fp32", "float32", 2.0**-24),
        Format("tf32", "float32", 2.0**-11),
        Format("fp16", "float16", 2.0**-11),
        Format("bf16", "bfloat16", 2.0**-8),
        Format("fp8", "float8_e4m3fn", 2.0**-4),
    )
}


@cache  # numpy makes up a dtype's name each time it is asked for
def _known(dtype: np.dtype[Any]) -> tuple[str, Format | None]:
    """The name of a dtype, ours where we have one, and its format."""
    own = {f.numpy: f for f in FORMATS.values() if f.name != "tf32"}.get(dtype.name)
    return (own.name if own else dtype.name), own


def format_of(array: Array) -> Format | None:
    """The format of an array, or None where it holds no floating-point numbers."""
    return _known(array.dtype)[1]


def dtype_name(array: Array) -> str:
    """The short name (`fp16`) of a float array's dtype, numpy's own name of any other."""
    return _known(array.dtype)[0]


def loosest(formats: Iterable[Format]) -> Format:
    """The coarsest of several formats; of equals the first."""
    return max(formats, key=lambda f: f.roundoff, default=FORMATS["fp64"])
