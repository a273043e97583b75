"""Rows of tables that a run looks up, from hooks on the tables alone.

That takes next to no time, where to watch all functions of a run (touching.py) takes longer than
the run itself. It sees nothing else: what tables are read otherwise, and which experts are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.exercised import Touched

from .added_up import AddedUp
from .watching import Hook, hooked


@contextmanager
def looked_up(module: nn.Module) -> Iterator[Mapping[str, list[Array]]]:
    """The rows that runs look up inside the context, by the names of the tables' weights."""
    rows: dict[str, list[Array]] = {}

    def note(name: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        ids = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)), None)
        if ids is not None and not ids.is_floating_point():
            rows.setdefault(name, []).append(np.unique(ids.detach().cpu().numpy()))

    if module not in _tables:
        _tables[module] = _tables_of(module)
    hooks: list[Hook] = [(part, partial(note, name), None) for name, part in _tables[module]]
    with hooked(hooks):
        yield rows


_tables: WeakKeyDictionary[nn.Module, list[tuple[str, nn.Module]]] = WeakKeyDictionary()


def _tables_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Tables that are modules, and the names of their weights."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    tables = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    return [(names[id(part.weight)], part) for part in tables if id(part.weight) in names]


@contextmanager
def adding_rows(module: nn.Module, total: AddedUp, tried: Iterable[Touched]) -> Iterator[None]:
    """Add what runs inside look up, and what their inputs try, to what watched runs used."""
    with looked_up(module) as rows:
        yield
    total.look_up(rows)
    with suppress(Exception):  # a config may hold anything; a watched run has said so already
        total.add((), tried, total.why)
