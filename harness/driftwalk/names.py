"""The names of points: made, and taken apart, in this one place.

embed                  what enters the first block
layer.3                what a block gives; `layer.3.out1` is a second stream of it
layer.3.mlp.fc         inside a block: a sublayer or a module
layer.3.key            what a cache holds of a block: `key` and `value`, `conv` and `recurrent`
norm                   after the final norm
encoder.layer.3        in a model of several stacks, the stack comes first
layer.3@2              where a model runs the same blocks again: what the second run gives
shared.rotary.0        what layers are handed beside the stream
logits, output.boxes   the model's outputs, the main one first
"""

from __future__ import annotations

import re
from dataclasses import dataclass

EMBED, NORM, LOGITS = "embed", "norm", "logits"
OUTPUT = "output."
"""Before the name of an output of the model, in the name of its point; the main one is `logits`."""
SHARED = "shared"
"""Begins the names of what all layers are handed beside the stream: `shared.rotary.0` ..."""

_OF_CACHE = ("key", "value", "conv", "recurrent")

# The stack is as short as can be: a module inside a layer may be called `layer.0` again.
_PLACE = re.compile(
    r"(?:(?P<stack>.+?)\.)??"
    r"(?:(?P<end>embed|norm)(?P<again>@[0-9]{1,9})?"
    r"|layer\.(?P<number>[0-9]{1,9})(?P<run>@[0-9]{1,9})?(?:\.(?P<inside>.+))?)\Z",
    re.DOTALL,
)
_SECOND_STREAM = re.compile(r"out\d+\Z")


@dataclass(frozen=True)
class Place:
    """Where in a stack of blocks a state is taken."""

    stack: str
    """Empty where the model has only one; `encoder@2` where this is its second run."""
    number: int | None
    """Of the layer; None for `embed` and `norm`."""
    inside: str = ""
    """What follows the layer's number: a module, or a second stream."""
    end: str = ""
    """`embed` or `norm`."""

    @property
    def layer(self) -> str:
        """The name of its layer; empty for `embed` and `norm`."""
        return "" if self.number is None else in_stack(self.stack, layer(self.number))

    @property
    def is_state(self) -> bool:
        """Whether it is `embed`, `norm`, or what a block gives: what every backend has."""
        return not self.inside

    @property
    def is_canonical(self) -> bool:
        """The same, or a second stream of a block."""
        return not self.inside or _SECOND_STREAM.match(self.inside) is not None


def place_of(name: str) -> Place | None:
    """Where a point stands in its stack; None for outputs, and for names of other kinds."""
    match = None if is_output(name) else _PLACE.match(name)
    if match is None:
        return None
    number = None if match["number"] is None else int(match["number"])
    stack = f"{match['stack'] or ''}{match['again'] or match['run'] or ''}"
    return Place(stack, number, match["inside"] or "", match["end"] or "")


def layer_of(name: str) -> str | None:
    """The layer a point belongs to; None for `embed`, `norm` and the model's outputs."""
    place = place_of(name)
    return None if place is None else place.layer or None


def stack_of(name: str) -> str | None:
    """The stack a point belongs to: empty for the only one; None for the model's outputs."""
    place = place_of(name)
    return None if place is None else place.stack


def is_on_stream(name: str) -> bool:
    """Whether a point lies on the residual stream: each such state is computed from the last."""
    place = place_of(name)
    return place is not None and place.is_state


def is_of_cache(name: str) -> bool:
    """Whether a point is what a cache holds, and no state of a layer."""
    place = place_of(name)
    return place is not None and place.inside.partition(".")[0] in _OF_CACHE


def layer(number: int) -> str:
    return f"layer.{number}"


def in_stack(stack: str, rest: str) -> str:
    """A name of one stack in a model that may have several; the stack's run stands at the end."""
    path, again, run = stack.partition("@")
    return f"{path}.{rest}{again}{run}" if path else f"{rest}{again}{run}"


def is_output(name: str) -> bool:
    """Whether a point is an output of the model, and no state inside it."""
    return name == LOGITS or name.startswith(OUTPUT)


def is_shared(name: str) -> bool:
    """Whether a point is no layer's state, but what layers share; a backend need not give it."""
    before, found, after = f".{name}.".partition(f".{SHARED}.")
    # A stack, or a module inside a layer, may be called so, too.
    inside = "layer" in before.split(".") or after.partition(".")[0] in ("layer", EMBED, NORM)
    return bool(found) and not inside
