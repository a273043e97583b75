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
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .tensors import tensors_in, to_numpy

_SEED = 0
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""What a module may hold to draw from."""


def begin_alike() -> None:
    """Put every generator of the process into the one state that all runs begin with."""
    torch.default_generator.manual_seed(_SEED)
    if _has_gpu():
        torch.cuda.manual_seed_all(_SEED)
    np.random.seed(_SEED)
    random.seed(_SEED)


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
        restore.callback(np.random.set_state, np.random.get_state())
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
    kind, keys, *rest = np.random.get_state(legacy=True)
    return (*states, kind, np.asarray(keys).tobytes(), *rest, random.getstate())


def drawing_modules(module: nn.Module, run: Callable[[], Any]) -> tuple[str, ...]:
    """The innermost modules in which a run draws random numbers, by their paths."""
    drawn: dict[str, None] = {}
    calls: list[tuple[tuple[object, ...], int]] = []
    """Calls that have not ended: the generators before each, and how many had drawn by then."""

    def enter(path: str, args: Any) -> None:
        calls.append((_states(), len(drawn)))

    def leave(path: str, output: Any) -> None:
        before, count = calls.pop()
        if before != _states() and len(drawn) == count:  # none of the modules inside did
            drawn[path] = None

    with _watched(module, enter, leave):
        run()
    return tuple(drawn)


def unrepeatable_module(module: nn.Module, run: Callable[[], Any]) -> str | None:
    """The innermost module that gives something else when run again; None where none does."""
    runs: list[list[tuple[str, str]]] = []
    for _ in range(2):
        given: list[tuple[str, str]] = []

        def leave(path: str, output: Any, given: list[tuple[str, str]] = given) -> None:
            given.append((path, _hash_of(output)))

        with _watched(module, lambda path, args: None, leave):
            run()
        runs.append(given)
    # Modules end from the inside out: the first that differs has none inside that does.
    pairs = zip_longest(*runs)
    return next((one[0] for one, two in pairs if one is not None and one != two), None)


def _hash_of(output: Any) -> str:
    digest = hashlib.sha256()
    for slot, tensor in tensors_in(output):
        digest.update(f"{slot}{tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(to_numpy(tensor)).tobytes())
    return digest.hexdigest()


@contextmanager
def _watched(
    module: nn.Module, enter: Callable[[str, Any], None], leave: Callable[[str, Any], None]
) -> Iterator[None]:
    """Hooks on every module that can have some; what is scripted is one with its parent."""
    with ExitStack() as hooks:
        for path, part in module.named_modules():
            if isinstance(part, torch.jit.ScriptModule):
                continue

            def before(_: Any, args: Any, path: str = path) -> None:
                enter(path, args)

            def after(_: Any, args: Any, output: Any, path: str = path) -> None:
                leave(path, output)

            hooks.callback(part.register_forward_pre_hook(before).remove)
            hooks.callback(part.register_forward_hook(after).remove)
        yield


class DrawnOnHost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Random numbers of a GPU are those of the CPU: its own generator has others for a seed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        own = torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None
        if not own:
            return func(*args, **kwargs)
        place = next((t.device for t in _tensors(args, kwargs)), kwargs.get("device"))
        if place is None or torch.device(place).type == "cpu":
            return func(*args, **kwargs)
        on_host, named = tree_map(_to_host, args), tree_map(_to_host, kwargs)
        drawn = func(*on_host, **named)
        if func._schema.is_mutable:
            args[0].copy_(on_host[0])
            return args[0]
        return tree_map(lambda v: v.to(place) if isinstance(v, torch.Tensor) else v, drawn)


def _tensors(*values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if torch.is_tensor(leaf)]


def _to_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    return torch.device("cpu") if isinstance(value, torch.device) else value


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
