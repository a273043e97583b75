"""The encoder before a decoder: it runs in the first step alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .layout import Stack


def encoder_of(module: nn.Module) -> nn.Module | None:
    """The encoder before a decoder."""
    get = getattr(module, "get_encoder", None)
    behind = getattr(getattr(module, "config", None), "is_encoder_decoder", False)
    found = get() if get is not None and behind else None
    return found if isinstance(found, nn.Module) else None


def given_into(given: list[Any]) -> Callable[[nn.Module, Any, Any], None]:
    """A hook that notes what a module gives."""
    return lambda _, args, output: given.append(output)


def behind_encoder(module: nn.Module, stacks: tuple[Stack, ...]) -> tuple[Stack, ...]:
    """The stacks that run in every step: an encoder's run in the first alone."""
    encoder = encoder_of(module)
    if encoder is None:
        return stacks
    inside = {id(part) for part in encoder.modules()}
    return tuple(s for s in stacks if id(module.get_submodule(s.blocks[0])) not in inside)
