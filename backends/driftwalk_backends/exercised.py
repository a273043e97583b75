"""What of a model a probe exercises, from one watched run: tables, experts, what was never read.

Numbers come from the weights that were read (touching.py); names only choose the words for them.
What a probe does not try (padding, windows, the cache) is told by its inputs and the model's
config; a plain module without a config says little.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate, count
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.exercised import (
    BATCH,
    CACHE,
    EXPERTS,
    PADDING,
    POSITIONS,
    ROWS,
    TOKEN_TYPES,
    UNUSED,
    WEIGHT_ROWS,
    WINDOW,
    Exercised,
    Touched,
)

from .added_up import AddedUp
from .calls import forward_of, kept_in, tensors_only
from .lookups import adding_rows
from .saturation import Saturation
from .tensors import parts_of, to_numpy
from .touching import Touching, Weight

_COUNTS = ("num_experts", "num_local_experts", "moe_num_experts", "n_routed_experts", "n_experts")
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
LONG = 4096
"""Texts longer than this are nothing to ask for in passing."""
_IDS = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")
_ONE_SIDED = ("sliding_window", "attention_chunk_size")
"""Windows of so many positions, up to the one that looks."""
_TWO_SIDED = ("local_attention", "attention_window")
"""Windows of so many positions, half of them on either side."""

MOST_KEPT = 256
"""Probes of which it is kept what each used."""

Inputs = Mapping[str, Any]
Weights = Sequence[Weight]


class Watch:
    """Watches runs of one model, each probe once, and keeps what they used."""

    def __init__(self) -> None:
        self._seen: dict[str, Exercised] = {}
        self._sum: AddedUp | None = None
        self._module: nn.Module | None = None

    def add_up(self) -> None:
        """From now on, keep what all runs use together; what was seen before does not count."""
        self._seen.clear()
        self._sum, self._module = AddedUp(), None

    def added_up(self) -> Exercised | None:
        """What all runs since then used; None where there was none."""
        if self._sum is None or self._module is None:
            return None
        sums = self._sum
        found = _exercised(self._module, sums.weights, sums.tried, sums.why)
        return replace(found, driven=sums.saturation.said)

    def looking_up(self, runs: Iterable[Inputs]) -> AbstractContextManager[None]:
        """Add up what runs inside use, as far as hooks on tables and their inputs can tell.

        The inputs are asked for at the end.
        """
        module, total = self._module, self._sum
        if module is None or total is None:
            return nullcontext()
        tried = (touched for inputs in runs for touched in _untried(module, inputs))
        return adding_rows(module, total, tried)

    def known(self, inputs: Inputs) -> Exercised | None:
        return self._seen.get(_key(inputs))

    def first_run(
        self, module: nn.Module, inputs: Inputs, run: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The same function, watched the first time that it is called."""
        runs = count()

        def watched(**extra: Any) -> Any:
            alone = partial(run, **extra)
            return alone() if next(runs) else self.run(module, inputs, alone)

        return watched

    def run(self, module: nn.Module, inputs: Inputs, run: Callable[..., Any]) -> Any:
        """`run()`, watched; whatever goes wrong with that, the run is as it would have been."""
        why = _unwatchable(module)
        if not why:
            try:
                touching = Touching(module, tensors_only(inputs))
                with touching:
                    output = run()
            except Exception as error:  # of the model itself? Then it fails again, and says so.
                why = _reason(error)
            else:
                self._keep(module, inputs, touching.weights, touching.blind, touching.saturation)
                return output
        output = run()
        self._keep(module, inputs, (), why, Saturation())
        return output

    def _keep(
        self, module: nn.Module, inputs: Inputs, weights: Weights, why: str, driven: Saturation
    ) -> None:
        """Take note of what one run used."""
        tried: tuple[Touched, ...] = ()
        try:
            tried = tuple(_untried(module, inputs))
        except Exception as error:  # a config may hold anything
            why = why or _reason(error)
        if len(self._seen) >= MOST_KEPT:
            self._seen.clear()
        found = _exercised(module, weights, tried, why)
        self._seen[_key(inputs)] = replace(found, driven=driven.said)
        if self._sum is not None:
            self._module = module
            self._sum.add(weights, tried, why)
            self._sum.saturation.add(driven)


def _exercised(
    module: nn.Module, weights: Weights, tried: Iterable[Touched], why: str
) -> Exercised:
    """What runs used; `why` it cannot be told which weights, if it cannot."""
    weights = [weight for weight in weights if weight.elements]
    tables: tuple[Touched, ...] = ()
    try:
        if not why:
            tables = tuple(_used_weights(module, weights))
    except Exception as error:
        why = _reason(error)
    if any(item.what == POSITIONS for item in tables):  # a table counted them
        tried = (item for item in tried if item.what != POSITIONS)
    items = (*tables, *tried)
    if why:
        return Exercised(items, None, " ".join(why.split())[:300])
    total = sum(weight.elements for weight in weights)
    used = sum(weight.elements_used for weight in weights)
    return Exercised(items, used / total if total else None)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _unwatchable(module: nn.Module) -> str:
    """Compiled parts cannot be watched: the compiler would compile the watching as well."""
    for path, part in module.named_modules():
        if "_orig_mod" in part._modules or getattr(part, "_compiled_call_impl", None) is not None:
            return f"{path or 'the model'} is compiled"
    return ""


def _key(inputs: Inputs) -> str:
    """The same for a probe at every dtype that a model may have."""
    digest = hashlib.sha256()
    for name, tensor in sorted(inputs.items()):
        if not isinstance(tensor, torch.Tensor):
            digest.update(f"{name}{kept_in(name, tensor)}".encode())
            continue
        value = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        array = np.ascontiguousarray(to_numpy(value))
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _used_weights(module: nn.Module, weights: list[Weight]) -> Iterator[Touched]:
    """Tables and banks by rows, lists of experts by their members, and what was never read."""
    parts = dict(module.named_modules())
    banks, in_banks = _banks(parts, weights)
    lists = _expert_lists(parts, weights)
    for weight in weights:
        if id(weight) not in in_banks and weight.is_used:
            yield from _table(module, parts, weight)
    for path, used in (*banks.items(), *lists.items()):
        yield _touched(EXPERTS, path, int(used.sum()), len(used), "more varied text")
    counted = tuple(f"{path}." for path, used in lists.items() if used.any())
    yield from _unused(weights, counted)


def _touched(what: str, where: str, used: int, of: int, advice: str) -> Touched:
    """With advice only where something was left out."""
    item = Touched(what, where, used, of)
    return item if item.tried else replace(item, advice=advice)


def _table(module: nn.Module, parts: Mapping[str, nn.Module], weight: Weight) -> Iterator[Touched]:
    """A weight that was looked up, or of which only some rows were read."""
    rows = weight.rows
    if not weight.is_looked_up and (weight.is_all_used or rows == 1):
        return
    owner = weight.name.rpartition(".")[0]
    part = parts[owner]
    where = owner if isinstance(part, nn.Embedding) else weight.name
    shared = weight.is_looked_up and weight.whole
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
    return ROWS if is_table and weight.is_looked_up else WEIGHT_ROWS


def _table_advice(module: nn.Module, what: str, weight: Weight) -> str:
    rows = weight.rows
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


def _banks(
    parts: Mapping[str, nn.Module], weights: list[Weight]
) -> tuple[dict[str, Array], set[int]]:
    """Modules that hold the weights of all their experts in one tensor each: which experts were
    used, and the ids of those weights."""
    owned: dict[str, list[Weight]] = defaultdict(list)
    for weight in weights:
        owned[weight.name.rpartition(".")[0]].append(weight)
    banks: dict[str, Array] = {}
    in_banks: set[int] = set()
    for path, members in owned.items():
        experts = _expert_count(parts[path], members) if _of_experts(path, parts[path]) else 0
        if experts and any(weight.is_used for weight in members):
            rows = [w for w in members if w.rows % experts == 0 and w.parameter.ndim > 1]
            in_banks.update(map(id, rows))
            used = [weight.used.reshape(experts, -1).any(axis=1) for weight in rows]
            banks[path] = np.logical_or.reduce([np.zeros(experts, dtype=bool), *used], axis=0)
    return banks, in_banks


def _of_experts(path: str, part: nn.Module) -> bool:
    return "expert" in f"{path.rpartition('.')[2]} {type(part).__name__}".lower()


def _expert_count(part: nn.Module, members: list[Weight]) -> int:
    """How many experts a bank has; 0 where it is none."""
    deep = [weight.rows for weight in members if weight.parameter.ndim > 2]
    if deep:
        return deep[0]
    named = (getattr(part, name, 0) for name in _COUNTS)
    experts = next((number for number in named if isinstance(number, int) and number), 0)
    return experts if experts > 1 and all(w.rows % experts == 0 for w in members) else 0


def _expert_lists(parts: Mapping[str, nn.Module], weights: list[Weight]) -> dict[str, Array]:
    """Lists of modules, one for each expert: which of them were used."""
    used = [weight.name for weight in weights if weight.is_used]
    lists: dict[str, Array] = {}
    for path, part in parts.items():
        if isinstance(part, _CONTAINERS) and len(part) > 1 and _of_experts(path, part):
            members = [f"{path}.{name}." for name, _ in part.named_children()]
            lists[path] = np.array([any(n.startswith(member) for n in used) for member in members])
    return lists


def _unused(weights: list[Weight], counted: tuple[str, ...]) -> Iterator[Touched]:
    """The outermost modules none of whose weights was read; experts were counted already."""
    alive = {path for weight in weights if weight.is_used for path in _paths(weight)}
    lost: Counter[str] = Counter()
    for weight in weights:
        if not weight.is_used and not weight.name.startswith(counted):
            outermost = next(path for path in _paths(weight) if path not in alive)
            lost[outermost] += weight.elements
    for path, elements in lost.items():
        yield Touched(UNUSED, path, 0, elements)


def _paths(weight: Weight) -> Iterator[str]:
    """`a`, `a.b`, `a.b.weight`"""
    return accumulate(weight.name.split("."), lambda outer, name: f"{outer}.{name}")


def _untried(module: nn.Module, inputs: Inputs) -> Iterator[Touched]:
    """Positions, padding, rows, windows and the cache."""
    takes, tensors = forward_of(module).names, tensors_only(inputs)
    config = getattr(module, "config", None)
    causal, paired = _is_causal(module), bool(getattr(config, "is_encoder_decoder", False))
    texts = [tensors[name] for name in _IDS if name in tensors and tensors[name].ndim > 1]
    length = max((text.shape[1] for text in texts), default=0)
    most = most_positions(module)
    if length and most and not paired:
        where, advice = "config.max_position_embeddings", f"a text of up to {most} tokens"
        yield _touched(POSITIONS, where, min(length, most), most, advice)
    if length:
        yield from _windows(config, length)
    padding = None
    masked = any(name in inputs for name in ("input_ids", "inputs_embeds"))
    if masked and "attention_mask" in takes:  # a mask of audio or pixels is another matter
        padding = _padding(tensors.get("attention_mask"), causal and not paired)
        yield padding
    rows = min((len(tensor) for tensor in tensors.values() if tensor.ndim > 1), default=0)
    if rows:
        asked = padding is not None and padding.advice  # that is a second row already
        yield _touched(BATCH, "rows", min(rows, 2), 2, "" if asked else "a second row")
    if config is not None and (causal or paired) and "past_key_values" in takes:
        yield Touched(CACHE, "past_key_values", int("past_key_values" in inputs), 1)


def most_positions(module: nn.Module) -> int | None:
    """How many positions the config allows."""
    most = getattr(_text(getattr(module, "config", None)), "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def _text(config: Any) -> Any:
    """The part of a config that is about text."""
    getter = getattr(config, "get_text_config", None)
    return getter() if callable(getter) else config


def _is_causal(module: nn.Module) -> bool:
    """Whether attention looks back only: the parts of a transformers model say so."""
    if not hasattr(module, "config"):
        return False
    said = [vars(part)["is_causal"] for part in parts_of(module) if "is_causal" in vars(part)]
    can = getattr(module, "can_generate", None)
    return any(value is True for value in said) if said else bool(callable(can) and can())


def _padding(mask: torch.Tensor | None, causal: bool) -> Touched:
    """The sides that have padding; a causal model never looks at padding on the right."""
    sides = []
    if mask is not None and mask.ndim == 2 and not mask.all():
        keep = mask != 0
        before = keep.cumsum(1) == 0
        after = keep.flip(1).cumsum(1).flip(1) == 0
        zeros = {"left": before, "right": after, "inner": ~keep & ~before & ~after}
        sides = [name for name, where in zeros.items() if bool(where.any())]
    tried, advice = bool(sides), "a second, shorter text"
    if causal:
        tried = any(side != "right" for side in sides)
        advice = "a shorter text padded on the left (attention_mask 0 in front)"
    return _touched(PADDING, " and ".join(sides) or "none", int(tried), 1, advice)


def _windows(config: Any, length: int) -> Iterator[Touched]:
    """Windows of attention; one that is not shorter than the probe hides nothing from anyone."""
    for name, window in windows_of(config):
        advice = f"a text of more than {window} tokens"
        yield _touched(WINDOW, f"config.{name}", length, window, advice)


def windows_of(config: Any) -> Iterator[tuple[str, int]]:
    """Windows of attention by the settings that have them: how far the last position looks."""
    config = _text(config)
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list | tuple) and all("full" in str(kind) for kind in kinds):
        return  # every layer looks at everything
    names = [name for name in _TWO_SIDED if getattr(config, name, None)] or list(_ONE_SIDED)
    for name in names:
        sizes = getattr(config, name, None)
        sizes = sizes if isinstance(sizes, list | tuple) else [sizes]
        if sizes and all(type(size) is int and size > 0 for size in sizes):
            yield name, max(sizes) // 2 + 1 if name in _TWO_SIDED else max(sizes)
