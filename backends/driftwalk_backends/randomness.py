"""Random numbers in a forward: every run begins with the same ones, and it is known who draws.

Masks of a ViT-MAE, noise of a VITS, a dropout left on: without the same generator state before
every run, two runs of one model differ, and nothing could be compared. The user's own generators
are put back as they were. A generator that a forward makes for itself, from the clock, cannot be
reset: `unrepeatable_module` finds where that is.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from .op_mode import OpMode
from .op_values import is_random, tensors_of
from .tensors import tensors_in, to_numpy
from .watching import Hook, hooked

_seed: ContextVar[int] = ContextVar("_seed", default=0)
_DEPTH = 6
"""How deep an output is looked into for tensors."""
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""What a module may hold to draw from."""


def begin_alike() -> None:
    """Put every generator of the process into the one state that all runs begin with."""
    seed = _seed.get()
    torch.default_generator.manual_seed(seed)
    if _has_gpu():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    with suppress(TypeError):  # another kind of generator, which a user put there, takes no seed
        np.random.seed(seed)


def _has_gpu() -> bool:
    """Whether this process computes on one; asking for its generators would begin to."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


@contextmanager
def generators_kept() -> Iterator[None]:
    """The generators of the process come back as they were."""
    with ExitStack() as restore:
        restore.callback(torch.set_rng_state, torch.get_rng_state())
        if _has_gpu():
            restore.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
        restore.callback(np.random.set_state, np.random.get_state(legacy=False))
        restore.callback(random.setstate, random.getstate())
        yield


def state_of(generator: Any) -> Any:
    """The state of a generator that a module holds."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def put_back(generator: Any, state: Any) -> None:
    """The state that `state_of` saw."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def has_drawn() -> bool:
    """Whether random numbers were drawn since `begin_alike`."""
    now = _states()
    with generators_kept():
        begin_alike()
        return _states() != now


def _states() -> tuple[object, ...]:
    """Of every generator of the process."""
    states: list[object] = [torch.get_rng_state().numpy().tobytes()]
    if _has_gpu():
        states += [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
    return (*states, _numpy_state(), random.getstate())


def _numpy_state() -> tuple[object, ...]:
    state: Any = np.random.get_state(legacy=False)
    inner = [v.tobytes() if isinstance(v, np.ndarray) else v for v in state["state"].values()]
    return (state["bit_generator"], *inner, state.get("has_gauss"), state.get("gauss"))


def drawing_modules(module: nn.Module, run: Callable[[], Any]) -> tuple[str, ...]:
    """The innermost modules in which a run draws random numbers, by their paths.

    None where the numbers do not matter: some models draw, and use what they drew in training only.
    """
    drawn: dict[str, None] = {}
    calls: list[tuple[tuple[object, ...], int]] = []
    """Calls that have not ended: the generators before each, and how many had drawn by then."""

    def enter(path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        calls.append((_states(), len(drawn)))

    def leave(path: str, part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        before, count = calls.pop()
        if before != _states() and len(drawn) == count:  # none of the modules inside did
            drawn[path] = None

    with hooked(_hooks(module, enter, leave)):
        output = _hash_of(run())
    token = _seed.set(1)
    try:
        matters = _hash_of(run()) != output
    finally:
        _seed.reset(token)
    return (tuple(drawn) or ("",)) if matters else ()


def unrepeatable_module(module: nn.Module, run: Callable[[], Any]) -> str | None:
    """The innermost module that gives something else when run again; None where none does."""
    runs: list[list[tuple[str, str]]] = []

    def leave(path: str, part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        runs[-1].append((path, _hash_of(output)))

    for _ in range(2):
        runs.append([])
        with hooked(_hooks(module, None, leave)):
            run()
    # Modules end from the inside out: the first that differs has none inside that does.
    pairs = zip_longest(*runs)
    return next((one[0] for one, two in pairs if one is not None and one != two), None)


def _hash_of(output: Any) -> str:
    digest = hashlib.sha256()
    for slot, tensor in tensors_in(output, _DEPTH):
        digest.update(f"{slot}{tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(to_numpy(tensor)).tobytes())
    return digest.hexdigest()


def _hooks(module: nn.Module, enter: Any, leave: Any) -> Iterator[Hook]:
    """On every module that can have hooks; what is scripted is one with its parent."""
    for path, part in module.named_modules():
        if not isinstance(part, torch.jit.ScriptModule):
            yield part, enter and partial(enter, path), partial(leave, path)


class DrawnAlike(OpMode):
    """Random numbers are those that a float32 model draws on the CPU, cast to what is asked for.

    For one seed, a GPU has other numbers, and so has every dtype.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None or not is_random(func):
            return func(*args, **kwargs)
        given = tensors_of(args, kwargs)
        place = given[0].device if given else kwargs.get("device")
        floats = [tensor.dtype for tensor in given if tensor.is_floating_point()]
        wanted = kwargs.get("dtype") or next(iter(floats), None)
        plain = tree_map(_plain, (args, kwargs))
        drawn = func(*plain[0], **plain[1])
        if func._schema.is_mutable:
            return args[0].copy_(plain[0][0])
        return tree_map(lambda value: _as_asked(value, wanted, place), drawn)


def _plain(value: Any) -> Any:
    """On the CPU, and floats in float32."""
    if isinstance(value, torch.Tensor):
        host = value.cpu()
        return host.float() if host.is_floating_point() else host
    if isinstance(value, torch.device):
        return torch.device("cpu")
    is_float = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float32 if is_float else value


def _as_asked(value: Any, dtype: torch.dtype | None, place: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value if place is None else value.to(place)
    return value if dtype is None or not value.is_floating_point() else value.to(dtype)


def random_note(drawing: tuple[str, ...]) -> str:
    """What a report says of a model that draws random numbers."""
    return (
        f"The model draws random numbers in its forward ({who(drawing)}); every run began with the "
        "same state of torch's, numpy's and Python's generators."
    )


def who(drawing: tuple[str, ...]) -> str:
    """The modules that draw, in words."""
    named = [path or "the model itself" for path in drawing]
    return f"{', '.join(named[:4])}{', ...' if len(named) > 4 else ''}"
