"""The model that a GGUF file declares, computed as llama.cpp declares: inputs of products rounded.

A file whose weights are not those of the model it is compared with, rounded, is found out here: the
model's own weight is left in its place, and what is wrong is told.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.formats import Declared, Misstored, StoredAs
from driftwalk.weight_source import Stored, WeightSource

from ..formats.constants import GGUF_BLOCK_SLACK, GGUF_PLAIN_SLACK, GGUF_STEPS_OFF
from ..loaded import LoadedModel
from .attention import KeptInHalf
from .header import Header, Tensor
from .naming import Naming, halves, module_of
from .products import ProductInput, RoundedProduct
from .source import numbers_of
from .steps import steps_of

_ROUNDOFFS = {"F32": (2.0**-24, 0.0), "F16": (2.0**-11, 2.0**-25), "BF16": (2.0**-8, 0.0)}
"""Of plain numbers: how far, relatively, one may be off; and of the smallest ones, absolutely."""


Rounds = Callable[[str], ProductInput | None]


@dataclass(frozen=True)
class Product:
    """A matrix of the file, and the module that multiplies with it."""

    path: str
    tensor: Tensor
    given: ProductInput | None


def declared_by_file(
    model: LoadedModel,
    header: Header,
    naming: Naming,
    rounds: Rounds | None,
    attention: KeptInHalf | None = None,
) -> LoadedModel | None:
    """What should be computed by whoever runs a file; None where that is the model, in float32.

    `rounds` says how inputs are rounded for a type of weights; None: by nobody. `attention`: over
    keys and values that are kept in half precision.
    """
    module = copy.deepcopy(model.at("fp32", "cpu")).eval()
    parts = dict(module.named_modules())
    tensors = dict(_placed(parts, header))
    products = list(_products(parts, tensors, rounds))
    if attention is None and all(one.tensor.type.name == "F32" for one in products):
        return None
    wrong: dict[str, Misstored] = {}
    if model.gguf is None or not model.gguf.samefile(header.path):
        wrong = _put(parts, tensors, header, naming)
    for one in products:
        if one.given is not None:
            part = parts[one.path]
            assert isinstance(part, nn.Linear)
            lowest = _minimums(one, header, naming)
            module.set_submodule(one.path, RoundedProduct(part, one.given, lowest))
    if attention is not None and not attention.put(module):
        return None
    often = any(one.given is not None and one.given.tips_often for one in products)
    often = often or attention is not None
    tips = attention is not None or any(one.given is not None for one in products)
    declared = Declared(tuple(_kinds(products)), tips=tips, many_tip=often, wrong=wrong)
    label = f"{model.label}, as {header.path.name} declares"
    return LoadedModel(module, label, blocks=model.blocks, declared=declared)


def weights_in(model: LoadedModel, header: Header, naming: Naming) -> WeightSource | None:
    """A file's own weights by the model's names; None where some are no plain numbers."""
    placed = dict(_placed(dict(model.module.named_modules()), header))
    if not all(one.type.name in _ROUNDOFFS for one in placed.values()):
        return None

    def read(tensor: Tensor) -> Array:
        return np.ascontiguousarray(_in_order(numbers_of(tensor, header.path), tensor.name, naming))

    stored = {name: Stored(one.shape, "fp32", partial(read, one)) for name, one in placed.items()}
    return WeightSource(header.path.name, "files", stored)


def _placed(parts: Mapping[str, nn.Module], header: Header) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of the file with the parameter it is: `model.layers.0.mlp.up_proj.weight`."""
    for name, tensor in header.tensors.items():
        path, what = module_of(name)
        found = [one for one in parts if path and (one == path or one.endswith(f".{path}"))]
        if len(found) == 1:
            yield f"{found[0]}.{what}", tensor


def _products(
    parts: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], rounds: Rounds | None
) -> Iterator[Product]:
    tables = [path for path, part in parts.items() if isinstance(part, nn.Embedding)]
    for path, part in parts.items():
        if not isinstance(part, nn.Linear):
            continue
        tensor = tensors.get(f"{path}.weight")
        if tensor is None and len(tables) == 1:  # a head that is the embedding
            tensor = tensors.get(f"{tables[0]}.weight")
        if tensor is not None:
            yield Product(path, tensor, None if rounds is None else rounds(tensor.type.name))


def _put(
    parts: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], header: Header, naming: Naming
) -> dict[str, Misstored]:
    """Give the model the file's weights, where they are its own, rounded; what is not."""
    wrong: dict[str, Misstored] = {}
    for name, tensor in tensors.items():
        path, _, what = name.rpartition(".")
        own = getattr(parts[path], what, None)
        if not isinstance(own, nn.Parameter) or tuple(own.shape) != tensor.shape:
            wrong[path] = Misstored(f"{path}.{what} has another shape in {header.path.name}", 2.0)
            continue
        stored = _in_order(numbers_of(tensor, header.path), tensor.name, naming)
        beyond = _beyond(own.detach().numpy(), stored, tensor, header, naming)
        if beyond.max() > 1:
            share = f"{np.count_nonzero(beyond > 1)} of {beyond.size} blocks"
            wrong[path] = Misstored(
                f"{path} does not hold the model's weights, rounded: {share} are others "
                f"({tensor.name}, {tensor.type.name})",
                float(beyond.max()),
            )
            continue
        own.data.copy_(torch.from_numpy(np.ascontiguousarray(stored)))
    return wrong


def _beyond(own: Array, stored: Array, tensor: Tensor, header: Header, naming: Naming) -> Array:
    """By block, how many times what a rounding may be off its worst number is off.

    What lies beyond the largest or the smallest number of its block may have been cut off there.
    """
    off = own.astype(np.float64) - stored
    if tensor.type.name in _ROUNDOFFS:
        relative, least = _ROUNDOFFS[tensor.type.name]
        most = GGUF_PLAIN_SLACK * np.maximum(relative * np.abs(own), least) + 1e-45
        plain: Array = np.atleast_2d(np.abs(off) / most).max(-1)
        return plain
    step, width = steps_of(tensor, header.path, stored)
    blocks, values = (x.reshape(*x.shape[:-1], -1, width) for x in (off, stored))
    cut = (values == values.max(-1, keepdims=True)) & (blocks > 0)
    cut |= (values == values.min(-1, keepdims=True)) & (blocks < 0)
    scale = _in_order(step, tensor.name, naming).reshape(*blocks.shape[:-1], 1)
    most = GGUF_STEPS_OFF * scale + GGUF_BLOCK_SLACK * np.abs(values).max(-1, keepdims=True) + 1e-30
    made: Array = np.where(cut, 0.0, np.abs(blocks) / most).max(-1)
    return made


def _minimums(one: Product, header: Header, naming: Naming) -> torch.Tensor | None:
    """What is added to all numbers of a block, where the type has that."""
    if one.tensor.type.name not in ("Q4_1", "Q5_1"):
        return None
    rows, width = one.tensor.shape
    with header.path.open("rb") as file:
        raw = np.fromfile(file, np.uint8, one.tensor.bytes, offset=one.tensor.start)
    blocks = raw.reshape(rows, width // 32, one.tensor.type.bytes)
    lowest = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0].astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(_in_order(lowest, one.tensor.name, naming)))


def _in_order(rows: Array, name: str, naming: Naming) -> Array:
    """Rows of Q and K in the model's own order."""
    heads = {"attn_q": naming.heads, "attn_k": naming.key_heads}
    count = heads.get(name.split(".")[-2]) if naming.turned else None
    if count is None:
        return rows
    return halves(rows.T, count).T if rows.ndim == 2 else halves(rows, count)


def _kinds(products: list[Product]) -> Iterator[StoredAs]:
    """Matrices that are stored alike, together."""
    groups: dict[tuple[str, str], list[Product]] = {}
    for one in products:
        inputs = "" if one.given is None else str(one.given)
        groups.setdefault((one.tensor.type.name, inputs), []).append(one)
    for (kind, inputs), alike in groups.items():
        width = alike[0].tensor.type.numbers
        yield StoredAs(
            kind=kind,
            block=f"{width} numbers of a row" if width > 1 else "each number",
            inputs=inputs,
            weights=len(alike),
            elements=sum(one.tensor.numbers for one in alike),
            bytes=sum(one.tensor.bytes for one in alike),
        )
