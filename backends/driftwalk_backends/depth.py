"""How closely a backend looks: at its blocks only, or at the parts inside them too.

block      nothing inside
sublayer   the direct parts of each block: `layer.3.attn`, `layer.3.mlp`, `layer.3.ln_1` ...
module     every named module of each block: `layer.3.mlp.c_proj` ...
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from driftwalk.errors import UsageError

DEPTHS = ("block", "sublayer", "module")
INPUT = ":in"
"""Ends the name of a state that a part was given, and that no part before it had made."""

_CROSS = ("cross", "encoder_att", "encdec")
_FEED_FORWARD = ("mlp", "ffn", "layerff", "feed_forward", "feedforward")


@dataclass(frozen=True)
class Look:
    """A depth, for every block or for one layer alone."""

    depth: str = "block"
    layer: str = ""
    """Look inside this layer alone, and at what its modules are given as well."""
    shared: bool = False
    """Look at what all blocks are handed beside the stream, too (shared.py)."""

    def into(self, layer: str) -> bool:
        return self.depth != "block" and self.layer in ("", layer)


BLOCKS = Look()


class Looks:
    """What a backend has that can look inside blocks (the harness's `LooksInside`)."""

    _look = BLOCKS

    @property
    def looks_at(self) -> tuple[str, str]:
        return self._look.depth, self._look.layer

    def look(self, depth: str, layer: str = "") -> None:
        """Give states at this depth from now on; with a layer, inside that one alone."""
        if depth not in DEPTHS:
            raise UsageError(f"There is no depth {depth!r}; there is {', '.join(DEPTHS)}.")
        self._look = Look(depth, layer, self._look.shared)

    def share(self, on: bool) -> None:
        """Give what all blocks are handed beside the stream as states, too, from now on."""
        self._look = replace(self._look, shared=on)


@dataclass(frozen=True, eq=False)
class Part:
    """A module inside a block: its name below the layer, and its path below the block."""

    name: str
    path: str
    module: nn.Module


def parts_of(block: nn.Module, depth: str) -> list[Part]:
    """The parts of a block at a depth; what passes its input through is no part.

    Nor is what is inside a bank of experts: how often and on which tokens it runs is the kernel's
    choice.
    """
    parts: list[Part] = []
    if depth == "module":
        parts = [Part(path, path, part) for path, part in block.named_modules() if path]
    elif depth == "sublayer":
        parts = _named(_children(block, ""))
    return [
        part
        for part in parts
        if not isinstance(part.module, nn.Identity | _DropoutNd)
        and "experts" not in part.path.split(".")[:-1]
    ]


def _children(block: nn.Module, prefix: str) -> list[Part]:
    """Direct children; lists are opened, and a block that only wraps another is unwrapped."""
    parts: list[Part] = []
    for name, child in block.named_children():
        path = f"{prefix}{name}"
        opened = isinstance(child, nn.ModuleList | nn.ModuleDict)
        parts += _children(child, f"{path}.") if opened else [Part(path, path, child)]
    compound = len(parts) == 1 and bool(list(parts[0].module.children()))
    return _children(parts[0].module, f"{parts[0].path}.") if compound else parts


def _named(parts: list[Part]) -> list[Part]:
    """Canonical names where exactly one part is recognisably that, and none is called so."""
    names = [_canonical(part) or part.path for part in parts]
    return [
        replace(part, name=name) if names.count(name) == 1 else part
        for name, part in zip(names, parts, strict=True)
    ]


def _canonical(part: Part) -> str:
    """`attn`, `cross_attn`, `mlp`, or nothing; a norm or a single matrix is none of them."""
    if not list(part.module.children()):
        return ""
    words = f"{part.path} {type(part.module).__name__}".lower()
    if "att" in words:
        return "cross_attn" if any(word in words for word in _CROSS) else "attn"
    return "mlp" if any(word in words for word in _FEED_FORWARD) else ""
