"""What a model gives: every tensor of it under a name, and which of them are points.

Names are paths through tuples, lists, mappings, NamedTuples and dataclasses: `end_logits`,
`aux.1.boxes`. The point of an output is `output.NAME`; that of the main one is `logits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import torch

from driftwalk.names import LOGITS
from driftwalk.names import OUTPUT as PREFIX
from driftwalk.states import Point

_BARE = "output"
"""The name of a tensor that is all a model gives, and of the first in a tuple."""
LOSS = "loss"
"""An output that is no point: made of the others and of labels, if those are given."""
_CACHES = frozenset(("past_key_values", "cache_params", "mems", "state", "past_buckets_states"))
"""Fields of transformers' outputs that hold what the next decoding step needs."""
_ASKED_FOR = ("hidden_states", "attentions")
"""How those fields end that are there only where somebody asked for them: tuples, by layer."""
_DEEPEST = 16


@dataclass
class Given:
    """The tensors of one output by name, and the paths of what cannot be, or is no, point."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def given_by(output: Any) -> Given:
    """Everything in a model's output, in order."""
    found = Given()
    if isinstance(output, torch.Tensor):
        _add(found, _BARE, output)
    elif isinstance(output, tuple | list) and not _named(output):
        first = next((i for i, item in enumerate(output) if _is_float(item)), None)
        for number, item in enumerate(output):
            _walk(found, _BARE if number == first else f"{PREFIX}{number}", item, 1)
    else:
        _walk(found, "", output, 0)
    return found


def named_outputs(output: Any) -> dict[str, torch.Tensor]:
    """The model's outputs by name: `logits`, `last_hidden_state`, `output`, `output.1.boxes` ..."""
    return given_by(output).tensors


def _walk(found: Given, path: str, value: Any, depth: int) -> None:
    if isinstance(value, torch.Tensor):
        _add(found, path or _BARE, value)
        return
    inside = _inside(value)
    if inside is None or depth > _DEEPEST:
        if _holds_numbers(value):
            found.skipped.append(path or _BARE)
        return
    ours = _is_model_output(value)
    for name, item in inside:
        below = f"{path}.{name}" if path else name
        if ours and _no_output(name, item):
            if _holds_numbers(item):
                found.skipped.append(below)
        else:
            _walk(found, below, item, depth + 1)


def _add(found: Given, name: str, tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        found.skipped.append(name)
        return
    if tensor.is_complex():  # real and imaginary parts on an axis of their own
        tensor = torch.view_as_real(tensor.resolve_conj())
    taken = {other.removeprefix(PREFIX) for other in found.tensors}
    own, again = name, 2
    while own.removeprefix(PREFIX) in taken:  # {"a.b": x, "a": {"b": y}}
        own, again = f"{name}#{again}", again + 1
    found.tensors[own] = tensor


def _inside(value: Any) -> Iterable[tuple[str, Any]] | None:
    """The parts of a container under their names; None for what is none."""
    if isinstance(value, Mapping):
        return [(str(name), item) for name, item in value.items()]
    if isinstance(value, tuple | list):
        names = _named(value) or map(str, range(len(value)))
        return list(zip(names, value, strict=False))
    if is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in fields(value)]
    return None


def _named(value: Any) -> tuple[str, ...]:
    return tuple(getattr(value, "_fields", ())) if isinstance(value, tuple) else ()


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_model_output(value: Any) -> bool:
    return any(kind.__name__ == "ModelOutput" for kind in type(value).__mro__)


def _no_output(name: str, item: Any) -> bool:
    """Of transformers: caches, and the states of layers, which are points already."""
    return name in _CACHES or (name.endswith(_ASKED_FOR) and isinstance(item, tuple | list))


def _holds_numbers(value: Any, depth: int = 0) -> bool:
    """Whether there are tensors or arrays in it, as far as can be seen from outside."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return True
    if depth > 4 or isinstance(value, str | bytes | int | float | type | None):
        return False
    inside = _inside(value)
    parts = [item for _, item in inside] if inside is not None else _attributes(value)
    return any(_holds_numbers(item, depth + 1) for item in parts)


def _attributes(value: Any) -> list[Any]:
    return list(getattr(value, "__dict__", {}).values())


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

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(self.point(name) for name, _ in self.makers)

    @property
    def names(self) -> dict[str, str]:
        """The output that is a point's state, by the point's name."""
        return {self.point(name).name: name for name, _ in self.makers}

    def point(self, name: str) -> Point:
        module = dict(self.makers).get(name) or f"output {name}"
        return Point(point_name(name, self.main), module)

    def of(
        self, output: Any, states: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[Point, torch.Tensor]]:
        """The outputs of a run that are points; `states` are those that some outputs repeat.

        A list may be longer than in the run in which points were found, and what was equal to a
        state then need not be so again.
        """
        tensors, same = named_outputs(output), dict(self.same)
        known = [name for name, _ in self.makers]
        for name in (*known, *(name for name in tensors if name not in known)):
            if name not in tensors or name == LOSS:
                continue
            state = states.get(same[name]) if name in same else None
            if name in same and (state is None or equal(tensors[name], state)):
                continue
            yield self.point(name), tensors[name]


NO_OUTPUTS = OutputPoints()


def point_name(output: str, main: str | None) -> str:
    if output == main:
        return LOGITS
    return output if output.startswith(PREFIX) else f"{PREFIX}{output}"


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, except that NaN equals NaN: a model may overflow and still be understood."""
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def find_outputs(
    plain: Iterable[str],
    output: Any,
    states: Mapping[str, torch.Tensor],
    maker: Any,
) -> OutputPoints:
    """Which outputs are points: those of the run that a plain one has, too (`plain`)."""
    given = given_by(output)
    plain = set(plain)
    tensors = {n: t for n, t in given.tensors.items() if n in plain and n != LOSS}
    same = {}
    for name, tensor in tensors.items():
        state = next((p for p, state in states.items() if equal(tensor, state)), None)
        if state is not None:
            same[name] = state
    fresh = {name: tensor for name, tensor in tensors.items() if name not in same}
    main = _main(fresh, tensors)
    names = [*([main] if main is not None else []), *(n for n in fresh if n != main)]
    return OutputPoints(
        main,
        tuple((name, maker(fresh[name])) for name in names),
        tuple(same.items()),
    )


def _main(fresh: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The main output: the logits, else the first of floats; whole numbers where all are."""
    floats = [name for name, tensor in fresh.items() if tensor.is_floating_point()]
    if not floats and not any(t.is_floating_point() for t in tensors.values()):
        floats = list(fresh)
    wanted = (LOGITS, "pooler_output", *floats)
    return next((name for name in wanted if name in floats), None)
