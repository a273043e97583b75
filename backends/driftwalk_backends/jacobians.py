"""Derivatives of states by states: all that knows autograd.

Backward (vector times Jacobian), for the map of who sees whom: the one row of the probe is repeated
along the batch, so that one backward pass carries as many cotangents as there are rows. No batching
rule is needed for that, whatever attention a model has.

Forward (Jacobian times vector), for a drift that is carried along: one run in which every state
brings its tangent with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from driftwalk.adapter import Sink
from driftwalk.dtypes import Array
from driftwalk.errors import ModelError, ProbeError, UsageError, nearest
from driftwalk.progress import Progress
from driftwalk.states import OUTPUT, Point, Probe, State

from .calls import call
from .depth import BLOCKS
from .hooks import capture
from .layout import Layout, Stack
from .tensors import from_numpy, to_numpy
from .torch_eager import TorchEager

MEMORY = 1 << 30
"""Bytes that the states of one run, kept for many backward passes, may take, roughly."""
MOST_ROWS = 32
_KEPT = 30
"""Tensors of the size of a state that autograd keeps for each block, seen in GPT-2 and Llama."""


class _Enough(Exception):  # noqa: N818 - a way out, not a failure
    """All states that are wanted are there."""


@dataclass(frozen=True, eq=False)
class Jacobians:
    """Squares of Frobenius norms: of the derivative of (point, position) by (point, position)."""

    points: tuple[str, ...]
    width: int
    directions: int
    squares: Array
    """[target point, target position, source point, source position]."""
    spread: Array
    """The variance of `squares` over the directions they were estimated from; 0 where all were."""
    norms: Array
    """The L2 norm of each state, [point, position]."""
    stack: str
    stacks: tuple[str, ...]
    """The stack they are of, and all that there are."""
    causal: bool | None
    """What the attention of this stack says of itself; None where it says nothing."""


def jacobians(
    backend: TorchEager,
    probe: Probe,
    directions: Callable[[tuple[str, ...], int, int], Array],
    stack: str | None = None,
    most: int = 1 << 20,
    progress: Progress | None = None,
) -> Jacobians:
    """Every state of a stack, by every state before it.

    `directions(points, positions, width)` are orthonormal columns. For any one of them, width times
    the square of its product with a Jacobian is an estimate of the squared norm; the mean over a
    whole basis is it.
    """
    show = progress or Progress()
    with backend.at_work(probe) as (module, inputs, layout), _differentiable(module):
        chosen = _chosen(layout, stack)
        shape, count = _shape(module, inputs, layout, chosen), len(chosen.points)
        if count * shape[1] > most:
            raise UsageError(
                f"{count} points of {shape[1]} positions are {count * shape[1]} states; a map has "
                f"at most {most}. Shorten the text to {most // count} tokens."
            )
        names = tuple(point.name for point in chosen.points)
        drawn = torch.from_numpy(directions(names, *shape[1:]))
        rows = _rows(module, shape, count)
        many = {name: tensor.repeat_interleave(rows, 0) for name, tensor in inputs.items()}
        show.expect(count)
        with show.stage(f"{backend.spec}: {rows} rows forward"), torch.enable_grad():
            states = _live(module, many, layout, chosen)
        columns = drawn.to(states[0])
        total = np.zeros((2, count, shape[1], count, shape[1]))
        for target in range(1, count):
            with show.stage(f"{chosen.points[target].name}: derivatives by the states before it"):
                _backward(states, target, columns, total)
    mean, squared = total / columns.shape[1]
    each = [torch.linalg.vector_norm(s[0].detach(), dim=-1, dtype=torch.float64) for s in states]
    return Jacobians(
        points=names,
        width=shape[2],
        directions=columns.shape[1],
        squares=mean,
        spread=np.maximum(0.0, squared - mean**2),
        norms=torch.stack(each).cpu().numpy(),
        stack=_name(chosen),
        stacks=tuple(map(_name, layout.stacks)),
        causal=_declared(module, chosen),
    )


def carried(
    backend: TorchEager, probe: Probe, tangents: Mapping[str, Array], sink: Sink, *, add: bool
) -> None:
    """Hand on J_n d at each point n, where d is the tangent of the state before.

    With `add` the tangent that goes on is J_n d plus the one given for n: small errors made on the
    way are carried along. Without, it is the given one alone, where one is given.
    """

    def exchange(point: Point, tensor: torch.Tensor) -> torch.Tensor:
        if point.name.startswith(OUTPUT):  # whole numbers have no derivative
            return tensor
        primal, tangent = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
        moved = torch.zeros_like(primal) if tangent is None else tangent
        sink(State(point, to_numpy(moved)))
        if point.name in tangents:
            own = from_numpy(tangents[point.name], primal.device, primal.dtype)
            moved = moved + own if add else own
        dual: torch.Tensor = forward_ad.make_dual(primal, moved)  # type: ignore[no-untyped-call]
        return dual

    with (
        backend.at_work(probe) as (module, inputs, layout),
        _differentiable(module),
        _dual_numbers(),
        capture(module, replace(layout, look=BLOCKS), exchange) as finish,
    ):
        finish(call(module, inputs))


def _name(stack: Stack) -> str:
    return stack.prefix or stack.path


def _declared(module: nn.Module, stack: Stack) -> bool | None:
    """Whether a stack calls itself causal; what it says of attention to another stack is False."""
    parts = [part for path in stack.blocks for part in module.get_submodule(path).modules()]
    names = ("is_causal", "is_decoder")
    said = [bool(getattr(part, name)) for part in parts for name in names if hasattr(part, name)]
    if said:
        return any(said)
    return True if getattr(getattr(module, "config", None), "is_decoder", None) is True else None


def _chosen(layout: Layout, name: str | None) -> Stack:
    """The stack of that name; the last one, a decoder where there are two, if none was named."""
    if not layout.stacks:
        raise UsageError("The model has no stack of blocks, so that no state sees another.")
    if name is None:
        return next((s for s in reversed(layout.stacks) if not s.walked), layout.stacks[-1])
    names = [_name(stack) for stack in layout.stacks]
    if name not in names:
        raise UsageError(f"There is no stack {name!r} in this model. {nearest(name, names)}")
    return layout.stacks[names.index(name)]


def _shape(
    module: nn.Module, inputs: Mapping[str, torch.Tensor], layout: Layout, stack: Stack
) -> tuple[int, int, int]:
    """The shape that all states of the stack have; what cannot be mapped is refused."""
    seen: dict[str, tuple[int, ...]] = {}

    def note(point: Point, tensor: torch.Tensor) -> None:
        seen[point.name] = tuple(tensor.shape)

    with capture(module, layout, note) as finish:
        finish(call(module, inputs))
    first = seen[stack.points[0].name]
    odd = [point.name for point in stack.points if seen.get(point.name) != first]
    if odd or len(first) != 3:
        where = odd[0] if odd else stack.points[0].name
        raise ModelError(
            f"A map needs states of one shape [1, positions, channels]; {where} has "
            f"{list(seen.get(where, ()))}."
        )
    if first[0] != 1:
        raise ProbeError(f"A map is made of one text; the probe has {first[0]} rows.")
    return first[0], first[1], first[2]


def _rows(module: nn.Module, shape: tuple[int, int, int], points: int) -> int:
    """How many copies of the text fit into MEMORY."""
    heads = getattr(getattr(module, "config", None), "num_attention_heads", None) or 1
    _, positions, width = shape
    item = next((p.element_size() for p in module.parameters() if p.is_floating_point()), 4)
    each = points * positions * (_KEPT * width + 4 * heads * positions) * item
    return max(1, min(MOST_ROWS, MEMORY // each))


def _live(
    module: nn.Module, inputs: Mapping[str, torch.Tensor], layout: Layout, stack: Stack
) -> list[torch.Tensor]:
    """The states of one run, in order, with the graph between them.

    It ends with the last of them: the logits of so many rows can take more than all states.
    """
    wanted = {point.name for point in stack.points}
    kept: list[torch.Tensor] = []

    def keep(point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
        if point.name not in wanted:
            return None
        # What the inputs have to do with the first state is not asked for.
        state = tensor if kept else tensor.detach().requires_grad_()
        kept.append(state)
        if len(kept) == len(wanted):
            raise _Enough
        return state.clone()  # a block that writes to its input must not write to ours

    with capture(module, layout, keep), suppress(_Enough):
        call(module, inputs)
    return kept


def _backward(
    states: Sequence[torch.Tensor], target: int, columns: torch.Tensor, total: Array
) -> None:
    """Add width times |J' q|^2, and its square, for all directions q at all positions."""
    state = states[target]
    rows, positions, width = state.shape
    pairs = [(at, number) for number in range(columns.shape[1]) for at in range(positions)]
    for start in range(0, len(pairs), rows):
        group = pairs[start : start + rows]
        seeds = torch.zeros_like(state)
        for row, (at, number) in enumerate(group):
            seeds[row, at] = columns[:, number]
        given = torch.autograd.grad(
            state, states[:target], seeds, retain_graph=True, materialize_grads=True
        )
        reached = [at for at, _ in group]
        for source, gradient in enumerate(given):
            size = torch.linalg.vector_norm(gradient[: len(group)], dim=-1, dtype=torch.float64)
            squares = width * size.square().cpu().numpy()
            np.add.at(total[0, target, :, source], reached, squares)
            np.add.at(total[1, target, :, source], reached, squares**2)


@contextmanager
def _dual_numbers() -> Iterator[None]:
    """Forward derivatives, which fused attention does not have."""
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        # What torch says of itself when it makes its first dual number.
        warnings.filterwarnings("ignore", r"`torch\.jit\.script", DeprecationWarning)
        with forward_ad.dual_level():
            yield


@contextmanager
def _differentiable(module: nn.Module) -> Iterator[None]:
    """States only, not weights; and no fused layer that has no derivative."""
    trained = [p for p in module.parameters() if p.requires_grad]
    fast = torch.backends.mha.get_fastpath_enabled()
    for parameter in trained:
        parameter.requires_grad_(False)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for parameter in trained:
            parameter.requires_grad_(True)
