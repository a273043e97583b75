"""What of a model a probe exercises, from one watched run: tables, experts, what was never read.

Numbers come from the weights that were read (touching.py); names only choose the words for them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.exercised import (
    EXPERTS,
    POSITIONS,
    ROWS,
    TOKEN_TYPES,
    UNUSED,
    WEIGHT_ROWS,
    Exercised,
    Touched,
)

from .tensors import to_numpy
from .touching import Touching, Weight
from .untried import most_positions, untried

_COUNTS = ("num_experts", "num_local_experts", "moe_num_experts", "n_routed_experts", "n_experts")
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
LONG = 4096
"""Texts longer than this are nothing to ask for in passing."""


class Watch:
    """Watches runs of one model, each probe once, and keeps what they used."""

    def __init__(self) -> None:
        self._seen: dict[str, Exercised] = {}

    def known(self, inputs: Mapping[str, torch.Tensor]) -> Exercised | None:
        return self._seen.get(_key(inputs))

    def first_run(
        self, module: nn.Module, inputs: Mapping[str, torch.Tensor], run: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The same function, watched the first time that it is called."""
        waiting = [True]

        def watched(**extra: Any) -> Any:
            if waiting and waiting.pop():
                return self.run(module, inputs, lambda: run(**extra))
            return run(**extra)

        return watched

    def run(
        self, module: nn.Module, inputs: Mapping[str, torch.Tensor], run: Callable[..., Any]
    ) -> Any:
        """`run()`, watched; whatever goes wrong with that, the run is as it would have been."""
        why = _unwatchable(module)
        if not why:
            try:
                touching = Touching(module, inputs)
                with touching:
                    output = run()
                self._seen[_key(inputs)] = _told(module, inputs, touching)
            except Exception as error:  # of the model itself? Then it fails again, and says so.
                why = f"{type(error).__name__}: {error}"
            else:
                return output
        output = run()
        self._seen[_key(inputs)] = _unknown(module, inputs, why)
        return output


def _told(module: nn.Module, inputs: Mapping[str, torch.Tensor], touching: Touching) -> Exercised:
    if touching.blind:
        return _unknown(module, inputs, touching.blind)
    try:
        tables = tuple(used_weights(module, touching.weights))
        has_positions = any(item.what == POSITIONS for item in tables)
        items = (*tables, *untried(module, inputs, has_positions))
    except Exception as error:  # a config may hold anything
        return _unknown(module, inputs, f"{type(error).__name__}: {error}")
    total = sum(weight.elements for weight in touching.weights)
    used = sum(weight.elements_used for weight in touching.weights)
    return Exercised(items, used / total if total else None)


def _unknown(module: nn.Module, inputs: Mapping[str, torch.Tensor], why: str) -> Exercised:
    try:
        items = tuple(untried(module, inputs))
    except Exception:  # the reason that is at hand is the one to give
        items = ()
    return Exercised(items, None, " ".join(why.split())[:300])


def _unwatchable(module: nn.Module) -> str:
    """Compiled parts cannot be watched: the compiler would compile the watching as well."""
    for path, part in module.named_modules():
        if "_orig_mod" in part._modules or getattr(part, "_compiled_call_impl", None) is not None:
            return f"{path or 'the model'} is compiled"
    return ""


def _key(inputs: Mapping[str, torch.Tensor]) -> str:
    """The same for a probe at every dtype that a model may have."""
    digest = hashlib.sha256()
    for name, tensor in sorted(inputs.items()):
        value = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        array = np.ascontiguousarray(to_numpy(value))
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def used_weights(module: nn.Module, weights: Iterable[Weight]) -> Iterator[Touched]:
    """Tables and banks by rows, lists of experts by their members, and what was never read."""
    weights = [weight for weight in weights if weight.elements]
    parts = dict(module.named_modules())
    banks = _banks(parts, weights)
    lists = _expert_lists(parts, weights)
    in_bank = {id(weight) for members in banks.values() for weight in members}
    for weight in weights:
        if id(weight) not in in_bank and weight.used.any():
            yield from _table(module, parts, weight)
    for path, members in banks.items():
        used = _bank_rows(parts[path], members)
        yield _experts(path, int(used.sum()), len(used))
    for path, (used_count, of) in lists.items():
        yield _experts(path, used_count, of)
    inside = tuple(f"{path}." for path, (used_count, _) in lists.items() if used_count)
    yield from _unused(weights, inside)


def _table(module: nn.Module, parts: Mapping[str, nn.Module], weight: Weight) -> Iterator[Touched]:
    """A weight that was looked up, or of which only some rows were read."""
    rows = len(weight.used)
    if not weight.looked_up.any() and (weight.used.all() or rows == 1):
        return
    owner = weight.name.rpartition(".")[0]
    part = parts[owner]
    where = owner if isinstance(part, nn.Embedding) else weight.name
    shared = bool(weight.looked_up.any() and weight.whole)
    used = int((weight.looked_up if shared else weight.used).sum())
    what = _kind(where.lower(), weight, part)
    advice = "" if used == rows or shared else _table_advice(module, what, weight)
    yield Touched(what, where, used, rows, shared, advice)


def _kind(path: str, weight: Weight, part: nn.Module) -> str:
    own = path.rpartition(".")[2]
    if "token_type" in path or "segment" in own or weight.given.startswith("token_type"):
        return TOKEN_TYPES
    if "relative" in own or "bucket" in own:
        return ROWS
    asked = weight.given == "position_ids" or (weight.counted and not weight.given)
    if asked or own.startswith("pos") or "_pos" in own or own == "wpe":
        return POSITIONS
    is_table = isinstance(part, nn.Embedding | nn.EmbeddingBag) or weight.parameter.ndim == 2
    return ROWS if is_table and weight.looked_up.any() else WEIGHT_ROWS


def _table_advice(module: nn.Module, what: str, weight: Weight) -> str:
    rows = len(weight.used)
    if what == TOKEN_TYPES:
        return f"token_type_ids of 0 to {rows - 1}"
    if what == POSITIONS:
        return f"a text of {rows} tokens" if rows <= LONG else "a longer text"
    if what == ROWS and weight.given:
        most = min(most_positions(module) or LONG, LONG)
        lines = math.ceil(rows / most)
        shape = f"{lines} rows of {most}" if lines > 1 else "one row"
        return f"{weight.given} of the whole vocabulary ({shape})"
    return "a longer text" if what == ROWS else ""


def _banks(parts: Mapping[str, nn.Module], weights: list[Weight]) -> dict[str, list[Weight]]:
    """Modules that hold the weights of all their experts in one tensor each."""
    owned: dict[str, list[Weight]] = {}
    for weight in weights:
        owned.setdefault(weight.name.rpartition(".")[0], []).append(weight)
    found = {}
    for path, members in owned.items():
        part = parts[path]
        named = "expert" in f"{path.rpartition('.')[2]} {type(part).__name__}".lower()
        count = _expert_count(part, members) if named else 0
        if not count or not any(weight.used.any() for weight in members):
            continue
        found[path] = [w for w in members if len(w.used) % count == 0 and w.parameter.ndim > 1]
    return found


def _expert_count(part: nn.Module, members: list[Weight]) -> int:
    """How many experts a bank has; 0 where it is none."""
    deep = [len(weight.used) for weight in members if weight.parameter.ndim > 2]
    if deep:
        return deep[0]
    told = next((n for name in _COUNTS if isinstance(n := getattr(part, name, 0), int) and n), 0)
    fits = told > 1 and all(len(w.used) % told == 0 for w in members)
    return told if fits else 0


def _bank_rows(part: nn.Module, members: list[Weight]) -> Array:
    count = _expert_count(part, members)
    found: Array = np.zeros(count, dtype=bool)
    for weight in members:
        found |= weight.used.reshape(count, -1).any(axis=1)
    return found


def _expert_lists(
    parts: Mapping[str, nn.Module], weights: list[Weight]
) -> dict[str, tuple[int, int]]:
    """Lists of modules, one for each expert: how many of them were used, and how many there are."""
    found = {}
    for path, part in parts.items():
        if not isinstance(part, _CONTAINERS) or len(part) < 2:
            continue
        if "expert" not in f"{path.rpartition('.')[2]} {type(part).__name__}".lower():
            continue
        members = [f"{path}.{name}." for name, _ in part.named_children()]
        used = [
            any(w.used.any() for w in weights if w.name.startswith(member)) for member in members
        ]
        found[path] = sum(used), len(used)
    return found


def _experts(path: str, used: int, of: int) -> Touched:
    return Touched(EXPERTS, path, used, of, advice="" if used == of else "more varied text")


def _unused(weights: list[Weight], inside: tuple[str, ...]) -> Iterator[Touched]:
    """The outermost modules none of whose weights was read; experts were counted already."""
    alive: set[str] = set()
    for weight in weights:
        if weight.used.any():
            parts = weight.name.split(".")
            alive.update(".".join(parts[:n]) for n in range(len(parts) + 1))
    lost: dict[str, int] = {}
    for weight in weights:
        if weight.used.any() or weight.name.startswith(inside):
            continue
        parts = weight.name.split(".")
        paths = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
        outermost = next(path for path in paths if path not in alive)
        lost[outermost] = lost.get(outermost, 0) + weight.elements
    for path, elements in lost.items():
        yield Touched(UNUSED, path, 0, elements)
