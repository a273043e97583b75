"""What a model gives: every tensor of it under a name, and which of them are points.

Names are paths through tuples, lists, mappings, NamedTuples and dataclasses: `end_logits`,
`aux.1.boxes`. The point of an output is `output.NAME`; that of the main one is `logits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from driftwalk.names import LOGITS
from driftwalk.names import OUTPUT as PREFIX
from driftwalk.states import Point

from .tensors import is_float, same_values

_BARE = "output"
"""The name of a tensor that is all a model gives, and of the first in a tuple."""
LOSS = "loss"
"""An output that is no point: made of the others and of labels, if those are given."""
_CACHES = frozenset(("past_key_values", "cache_params", "mems", "state", "past_buckets_states"))
"""Fields of transformers' outputs that hold what the next decoding step needs."""
_ASKED_FOR = {
    *("hidden_states", "encoder_hidden_states", "decoder_hidden_states"),
    *("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"),
}
"""Fields that are there only where somebody asked for them: tuples, by layer."""
_DEEPEST = 16

States = Mapping[str, torch.Tensor]


@dataclass
class Given:
    """The tensors of one output by name, and the paths of what cannot be, or is no, point."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def walk(self, path: str, value: Any, depth: int) -> None:
        """Add everything in a value, in order."""
        if isinstance(value, torch.Tensor):
            self._add(path or _BARE, value)
            return
        inside = _inside(value)
        if inside is None or depth > _DEEPEST:
            if _holds_numbers(value):
                self.skipped.append(path or _BARE)
            return
        of_transformers = is_of_transformers(value)
        for name, item in inside:
            below = f"{path}.{name}" if path else name
            # Caches, and the states of layers, which are points already.
            if not of_transformers or not (name in _CACHES or _is_by_layer(name, item)):
                self.walk(below, item, depth + 1)
            elif _holds_numbers(item):
                self.skipped.append(below)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            self.skipped.append(name)
            return
        if tensor.is_complex():  # real and imaginary parts on an axis of their own
            tensor = torch.view_as_real(tensor.resolve_conj())
        taken = {other.removeprefix(PREFIX) for other in self.tensors}
        own, again = name, 2
        while own.removeprefix(PREFIX) in taken:  # {"a.b": x, "a": {"b": y}}
            own, again = f"{name}#{again}", again + 1
        self.tensors[own] = tensor


def is_of_transformers(output: Any) -> bool:
    return any(kind.__name__ == "ModelOutput" for kind in type(output).__mro__)


def unasked(output: Any, plain: Any = None) -> Any:
    """An output of transformers without the states of layers that it was asked for.

    `plain` is the output of a run that was asked for nothing, where that `may_have_been_asked`.
    """
    if not is_of_transformers(output):
        return output
    there = output.keys() if plain is None else plain.keys()
    kept = {
        name: unasked(item, None if plain is None else plain[name])
        for name, item in output.items()
        if name in there and not _is_by_layer(name, item)
    }
    return type(output)(**kept)


def may_have_been_asked(output: Any) -> bool:
    """Whether a name does not tell if a field is there in any case: `fpn_hidden_states`."""
    return is_of_transformers(output) and any(
        may_have_been_asked(item)
        or (name not in _ASKED_FOR and name.endswith(("hidden_states", "attentions")))
        for name, item in output.items()
    )


def _is_by_layer(name: str, item: Any) -> bool:
    return name in _ASKED_FOR and isinstance(item, tuple | list)


def given_by(output: Any) -> Given:
    """Everything in a model's output, in order."""
    given = Given()
    if isinstance(output, tuple | list) and not hasattr(output, "_fields"):
        first = next((i for i, item in enumerate(output) if is_float(item)), None)
        for number, item in enumerate(output):
            given.walk(_BARE if number == first else f"{PREFIX}{number}", item, 1)
    else:
        given.walk("", output, 0)
    return given


def named_outputs(output: Any) -> dict[str, torch.Tensor]:
    """The model's outputs by name: `logits`, `last_hidden_state`, `output`, `output.1.boxes` ..."""
    return given_by(output).tensors


def _inside(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container under their names; None for what is none."""
    if isinstance(value, Mapping):
        return [(str(name), item) for name, item in value.items()]
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", None) or map(str, range(len(value)))
        return list(zip(names, value, strict=False))
    if is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in fields(value)]
    return None


def _holds_numbers(value: Any, depth: int = 0) -> bool:
    """Whether there are tensors or arrays in it, as far as can be seen from outside."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return True
    if depth > 4 or isinstance(value, str | bytes | int | float | type | None):
        return False
    inside = _inside(value)
    parts = getattr(value, "__dict__", {}).items() if inside is None else inside
    return any(_holds_numbers(item, depth + 1) for _, item in parts)


@dataclass(frozen=True)
class OutputPoints:
    """Which outputs of a model are points, and the modules that made them."""

    main: str | None = None
    """The output that is the `logits` point, if it is not a state already."""
    makers: tuple[tuple[str, str], ...] = ()
    """Each output that is a point, the main one first, and the module that made it."""
    same: tuple[tuple[str, str], ...] = ()
    """Outputs that are a state already, and that state's point."""
    skipped: tuple[str, ...] = ()
    """What of the output is not compared although there are numbers in it."""
    stand_for: tuple[tuple[str, str], ...] = ()
    """Outputs of a model that nobody can look into, and the points that they are in the model that
    it is compared with, where they are states."""

    def named_like(self, other: OutputPoints) -> OutputPoints:
        """The same outputs, each the point that it is in another model."""
        own = dict(self.makers)
        main = other.main if other.main in own or other.main is None else self.main
        names = dict.fromkeys(([main] if main is not None else []) + list(own))
        makers = tuple((name, own[name]) for name in names)
        stand_for = tuple((name, point) for name, point in other.same if name in own)
        return replace(self, main=main, makers=makers, stand_for=stand_for)

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(self.point(name) for name, _ in self.makers)

    @property
    def names(self) -> dict[str, str]:
        """The output that is a point's state, by the point's name."""
        return {self.point(name).name: name for name, _ in self.makers}

    def point(self, name: str) -> Point:
        module = dict(self.makers).get(name) or f"output {name}"
        return Point(dict(self.stand_for).get(name) or point_name(name, self.main), module)

    def of(self, output: Any, states: States) -> Iterator[tuple[Point, torch.Tensor]]:
        """The outputs of a run that are points; `states` are those that some outputs repeat.

        A list may be longer than in the run in which points were found, and what was equal to a
        state then need not be so again.
        """
        tensors, same = named_outputs(output), dict(self.same)
        for name in dict.fromkeys((*(name for name, _ in self.makers), *tensors)):
            if name not in tensors or name == LOSS:
                continue
            state = states.get(same[name]) if name in same else None
            if name in same and (state is None or _equal(tensors[name], state)):
                continue
            yield self.point(name), tensors[name]


NO_OUTPUTS = OutputPoints()


def point_name(output: str, main: str | None) -> str:
    if output == main:
        return LOGITS
    return output if output.startswith(PREFIX) else f"{PREFIX}{output}"


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, except that NaN equals NaN: a model may overflow and still be understood."""
    return a.dtype == b.dtype and same_values(a, b)


def find_outputs(
    plain: Iterable[str],
    output: Any,
    states: States,
    maker: Callable[[torch.Tensor], str],
) -> OutputPoints:
    """Which outputs are points: those of the run that a plain one has, too (`plain`)."""
    wanted = {*plain} - {LOSS}
    tensors = {name: t for name, t in named_outputs(output).items() if name in wanted}
    same = {}
    for name, tensor in tensors.items():
        equal = (point for point, state in states.items() if _equal(tensor, state))
        if point := next(equal, None):
            same[name] = point
    fresh = {name: tensor for name, tensor in tensors.items() if name not in same}
    main = _main(fresh, tensors)
    names = dict.fromkeys(([main] if main is not None else []) + list(fresh))
    makers = tuple((name, maker(fresh[name])) for name in names)
    return OutputPoints(main, makers, tuple(same.items()))


def _main(fresh: States, tensors: States) -> str | None:
    """The main output: the logits, else the first of floats; whole numbers where all are."""
    floats = [name for name, tensor in fresh.items() if is_float(tensor)]
    if not floats and not any(map(is_float, tensors.values())):
        floats = list(fresh)
    wanted = (LOGITS, "pooler_output", *floats)
    return next((name for name in wanted if name in floats), None)
