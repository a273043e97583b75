"""Ways in which ports have written our own decoder: the same numbers, other blocks."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .own import COUNT, WIDTH, Attention, Block, Gpt, mixed

Tensor = torch.Tensor
Form = Callable[[Any], nn.Module]


class Port(Gpt):
    """The same embeddings, final norm and head, another body."""

    def __init__(self, model: Gpt) -> None:
        nn.Module.__init__(self)
        model = copy.deepcopy(model)
        self.tokens, self.places = model.tokens, model.places
        self.norm, self.head = model.norm, model.head
        self.build(list(model.layers))  # type: ignore[arg-type]
        self.eval()

    def build(self, blocks: list[Block]) -> None:
        raise NotImplementedError

    @property
    def forms(self) -> dict[str, Form]:
        return {}


class Inner(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class Nested(Port):
    """Blocks in a module of their own, in a list that lies deeper."""

    class Stack(nn.Module):
        def __init__(self, blocks: list[Block]) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Inner(block) for block in blocks])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    def build(self, blocks: list[Block]) -> None:
        self.inner = self.Stack(blocks)

    def body(self, x: Tensor) -> Tensor:
        return self.inner(x)


class ByName(Port):
    """Blocks as attributes, called by name."""

    def build(self, blocks: list[Block]) -> None:
        self.count = len(blocks)
        for number, block in enumerate(blocks):
            self.add_module(f"stage_{chr(97 + number)}", block)

    def body(self, x: Tensor) -> Tensor:
        for number in range(self.count):
            x = getattr(self, f"stage_{chr(97 + number)}")(x)
        return x


class InSequence(Port):
    """Blocks in one `nn.Sequential`, with the final norm at its end."""

    def build(self, blocks: list[Block]) -> None:
        self.net = nn.Sequential(*blocks, self.norm, self.head)
        del self.norm, self.head

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.net(self.embedded(input_ids))


class Delta(nn.Module):
    """What a block adds, without what it adds it to."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = (
            block.norm1,
            block.attn,
            block.norm2,
            block.mlp,
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.attn(self.norm1(x))
        return first + self.mlp(self.norm2(x + first))


class ResidualOutside(Port):
    """Blocks that give their difference alone; the model adds it."""

    def build(self, blocks: list[Block]) -> None:
        self.layers = nn.ModuleList([Delta(block) for block in blocks])

    def body(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class HandingOn(nn.Module):
    """A block as inference engines have it: what is to be added, and what it is added to."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.input_norm, self.post_norm = block.norm1, block.norm2
        self.attn, self.mlp = block.attn, block.mlp

    def forward(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        residual = x if residual is None else x + residual
        x = self.attn(self.input_norm(residual))
        residual = x + residual
        return self.mlp(self.post_norm(residual)), residual


class ResidualHandedOn(Port):
    """Blocks that hand on the last sum and what is not yet added to it."""

    def build(self, blocks: list[Block]) -> None:
        self.layers = nn.ModuleList([HandingOn(block) for block in blocks])

    def body(self, x: Tensor) -> Tensor:
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual)
        return x if residual is None else x + residual


class Part(nn.Module):
    """Half a block: a norm and what follows it."""

    def __init__(self, norm: nn.Module, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = norm, inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


class InHalves(Port):
    """Twice as many blocks: attention and MLP each one of its own."""

    def build(self, blocks: list[Block]) -> None:
        parts = [((b.norm1, b.attn), (b.norm2, b.mlp)) for b in blocks]
        self.layers = nn.ModuleList([Part(*half) for pair in parts for half in pair])


class InPairs(Port):
    """Half as many blocks: two in one."""

    class Pair(nn.Module):
        def __init__(self, first: Block, second: Block) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    def build(self, blocks: list[Block]) -> None:
        pairs = zip(blocks[::2], blocks[1::2], strict=True)
        self.layers = nn.ModuleList([self.Pair(*pair) for pair in pairs])


class CutElsewhere(Port):
    """Blocks that begin at the MLP and end behind the next attention."""

    class Between(nn.Module):
        def __init__(self, block: Block, after: Block) -> None:
            super().__init__()
            self.mlp = Part(block.norm2, block.mlp)
            self.attn = Part(after.norm1, after.attn)

        def forward(self, x: Tensor) -> Tensor:
            return self.attn(self.mlp(x))

    def build(self, blocks: list[Block]) -> None:
        self.first = Part(blocks[0].norm1, blocks[0].attn)
        pairs = itertools.pairwise(blocks)
        self.layers = nn.ModuleList([self.Between(*pair) for pair in pairs])
        self.last = Part(blocks[-1].norm2, blocks[-1].mlp)

    def body(self, x: Tensor) -> Tensor:
        return self.last(super().body(self.first(x)))


class Fused(nn.Module):
    """Queries, keys and values by one product."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.num_heads = COUNT
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), attention.o_proj
        trio = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.c_attn.weight.data = torch.cat([one.weight.data for one in trio])
        self.c_attn.bias.data = torch.cat([one.bias.data for one in trio])

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(mixed(*self.c_attn(x).chunk(3, -1)))


class QkvFused(Port):
    """Queries, keys and values by one product in all blocks."""

    def build(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.attn = Fused(block.attn)  # type: ignore[assignment]
        self.layers = nn.ModuleList(blocks)


class HeadsApart(Port):
    """Each head with products of its own, and their sum."""

    class Head(nn.Module):
        def __init__(self, attention: Attention, number: int) -> None:
            super().__init__()
            rows = slice(number * WIDTH // COUNT, (number + 1) * WIDTH // COUNT)
            self.q, self.k, self.v, self.o = (
                copy.deepcopy(getattr(attention, f"{name}_proj")) for name in "qkvo"
            )
            for one in (self.q, self.k, self.v):
                one.weight.data, one.bias.data = one.weight.data[rows], one.bias.data[rows]
            self.o.weight.data = self.o.weight.data[:, rows]
            self.o.bias = None

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (one(x)[:, None] for one in (self.q, self.k, self.v))
            return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])

    class Sum(nn.Module):
        def __init__(self, attention: Attention) -> None:
            super().__init__()
            self.heads = nn.ModuleList([HeadsApart.Head(attention, n) for n in range(COUNT)])
            self.bias = nn.Parameter(attention.o_proj.bias.data.clone())

        def forward(self, x: Tensor) -> Tensor:
            total = self.bias
            for head in self.heads:
                total = total + head(x)
            return total

    def build(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.attn = self.Sum(block.attn)  # type: ignore[assignment]
        self.layers = nn.ModuleList(blocks)


class InOneFunction(Port):
    """No modules but what holds the numbers: everything in one function."""

    def build(self, blocks: list[Block]) -> None:
        self.stored = nn.ModuleList(blocks)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens.weight[input_ids] + self.places.weight[: input_ids.shape[1]]
        for block in self.stored:
            x = x + self._attention(block.attn, _norm(block.norm1, x))  # type: ignore[arg-type]
            up = F.gelu(_product(block.mlp.fc1, _norm(block.norm2, x)))  # type: ignore[arg-type, union-attr]
            x = x + _product(block.mlp.fc2, up)  # type: ignore[arg-type, union-attr]
        return _product(self.head, _norm(self.norm, x))

    @staticmethod
    def _attention(part: Attention, x: Tensor) -> Tensor:
        trio = (part.q_proj, part.k_proj, part.v_proj)
        return _product(part.o_proj, mixed(*(_product(one, x) for one in trio)))


def _norm(part: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, part.normalized_shape, part.weight, part.bias, part.eps)


def _product(part: Any, x: Tensor) -> Tensor:
    return F.linear(x, part.weight, part.bias)


class LengthFirst(Port):
    """Tokens first and rows second, from the embeddings to the head."""

    class Turned(nn.Module):
        def __init__(self, block: Block) -> None:
            super().__init__()
            self.norm1, self.attn = block.norm1, block.attn
            self.norm2, self.mlp = block.norm2, block.mlp

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attn(self.norm1(x).transpose(0, 1)).transpose(0, 1)
            return x + self.mlp(self.norm2(x))

    def build(self, blocks: list[Block]) -> None:
        self.layers = nn.ModuleList([self.Turned(block) for block in blocks])

    def body(self, x: Tensor) -> Tensor:
        return super().body(x.transpose(0, 1)).transpose(0, 1)


class ParallelSum(Port):
    """What attention and MLP give added first, and both to the residual then."""

    class Beside(nn.Module):
        def __init__(self, block: Block) -> None:
            super().__init__()
            self.norm1, self.attn = block.norm1, block.attn
            self.norm2, self.mlp = block.norm2, block.mlp

        def forward(self, x: Tensor) -> Tensor:
            return x + (self.attn(self.norm1(x)) + self.mlp(self.norm2(x)))

    def build(self, blocks: list[Block]) -> None:
        self.layers = nn.ModuleList([self.Beside(block) for block in blocks])


EITHER: dict[str, Form] = {
    "nested": Nested,
    "by name": ByName,
    "in sequence": InSequence,
    "in pairs": InPairs,
    "qkv fused": QkvFused,
    "heads apart": HeadsApart,
}
BESIDE: dict[str, Form] = {**EITHER, "parallel sum": ParallelSum}
IN_A_ROW: dict[str, Form] = {
    **EITHER,
    "residual outside": ResidualOutside,
    "residual handed on": ResidualHandedOn,
    "in halves": InHalves,
    "cut elsewhere": CutElsewhere,
    "in one function": InOneFunction,
    "length first": LengthFirst,
}
