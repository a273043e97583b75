"""What a model's outputs are for: choices, by the names that the model gives them, or embeddings.

The main output is the point `logits`, whatever the model calls it. Only what the model itself calls
logits, or gives no name at all, is read as a choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..dtypes import Array
from ..names import LOGITS
from ..states import State, Trace
from .constants import OUTPUT_STATES

_UNNAMED = "output"
_POOLED = ("last_hidden_state", "pooler_output")
_EMBEDDINGS = ("_embeds", "embedding", "embeddings", "embed")


@dataclass(frozen=True)
class OutputNames:
    """What the outputs of one trace are called, by the points that they are."""

    names: Mapping[str, str] = field(default_factory=dict)
    """The model's own name of an output, where the point's name does not tell it."""
    decides: bool = True
    """Whether the point `logits` is a choice."""
    embeddings: Mapping[str, str] = field(default_factory=dict)
    """The outputs that are embeddings, by their points."""

    @classmethod
    def of(cls, trace: Trace) -> OutputNames:
        """Found by value: which states the outputs of a trace are."""
        outputs, main = trace.outputs, trace.state(LOGITS)
        if not outputs:
            return cls()
        called = LOGITS if LOGITS in outputs else _UNNAMED if _UNNAMED in outputs else ""
        if main is not None and not called:
            called = next((n for n, array in outputs.items() if _same(main, array)), "")
        decides = called == _UNNAMED or "logits" in called
        wanted = (*(() if decides else _POOLED), *_EMBEDDINGS)
        points: dict[str, str] = {}
        for name, array in outputs.items():
            if "." not in name and name.endswith(wanted) and array.ndim >= 2:
                point = LOGITS if name == called else _point(trace, name, array)
                points |= {point: name} if point else {}
        names = {LOGITS: called} if called not in ("", LOGITS, _UNNAMED) else {}
        return cls(names, decides, points)


def _point(trace: Trace, name: str, array: Array) -> str:
    """The point that an output is: its own, or the last state that it repeats."""
    if trace.state(f"output.{name}") is not None:
        return f"output.{name}"
    alike = [s for s in reversed(trace.states) if s.shape == array.shape][:OUTPUT_STATES]
    return next((state.point.name for state in alike if _same(state, array)), "")


def _same(state: State, array: Array) -> bool:
    return state.shape == array.shape and np.array_equal(state.array, array)
