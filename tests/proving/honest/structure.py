"""Honest families that cut a model elsewhere: other modules around the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..case import HALVES, MANY, WHOLE, Done, NoPlace, Site, family
from ..judging import SAME
from ..places import blocks, copied, replaced, wrap
from ..spots import difference
from .wiring import MISFITS, drawn, wrap_all

Tensor = torch.Tensor
PARTED = (*WHOLE, *HALVES, "int8", "onnx", *(one for one in MANY if one != "module"))
"""All but `module`: modules inside have other names."""
ALIKE = (*WHOLE, *HALVES, "int8", *(one for one in MANY if one != "pair"))
"""What an exporter cannot follow is not exported."""


def lists(module: nn.Module) -> list[str]:
    """Paths of the lists of blocks."""
    homes = dict.fromkeys(path.rpartition(".")[0] for path in blocks(module))
    return [path for path in homes if path]


class Nested(nn.Module):
    """A block inside another module, which answers for it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Held(nn.Module):
    """Blocks in a module that is no list, and is read like one."""

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.kept())

    def __len__(self) -> int:
        return len(self.kept())

    def __getitem__(self, at: int | slice) -> Any:
        return self.kept()[at]

    def kept(self) -> list[nn.Module]:
        return list(self.children())

    def forward(self, x: Any) -> Any:
        for block in self.kept():
            x = block(x)
        return x


class Deeper(Held):
    """A list of blocks inside another module."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.inner = nn.ModuleList(parts)

    def kept(self) -> list[nn.Module]:
        return list(self.inner)


class Named(Held):
    """Blocks with names instead of numbers."""

    NAMES = ("first", "second", "third", "fourth", "fifth", "sixth")

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        for number, part in enumerate(parts):
            turn, place = divmod(number, len(self.NAMES))
            self.add_module(self.NAMES[place] + "_again" * turn, part)


class Pair(nn.Module):
    """Two blocks in one."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("first"), name)

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        made = self.first(x, *args, **kwargs)
        x, rest = (made[0], made[1:]) if isinstance(made, tuple) else (made, ())
        if rest and any(isinstance(one, Tensor) for one in rest):
            raise NoPlace  # what else the first hands on would not reach the second
        return self.second(x, *args, **kwargs)


def _listed(site: Site, make: Callable[[list[nn.Module]], nn.Module], what: str) -> Done:
    def change(module: nn.Module, path: str) -> str:
        replaced(module, path, make(list(module.get_submodule(path).children())).eval())
        return f"blocks of {path} {what}"

    return drawn(site, lists(site.module), change)


def _like(module: nn.Module, parts: list[nn.Module]) -> nn.Module:
    """A list of the kind that it replaces."""
    return nn.Sequential(*parts) if isinstance(module, nn.Sequential) else nn.ModuleList(parts)


@family("structure", "honest", PARTED)
def blocks_nested(site: Site) -> Done:
    """Each block inside another module."""

    def change(module: nn.Module, path: str) -> str:
        home = module.get_submodule(path)
        replaced(module, path, _like(home, [Nested(one) for one in home.children()]).eval())
        return f"each block of {path} inside another module"

    return drawn(site, lists(site.module), change)


@family("structure", "honest", PARTED)
def one_block_nested(site: Site) -> Done:
    """One block inside another module, the others as they were."""

    def change(module: nn.Module, path: str) -> str:
        replaced(module, path, Nested(module.get_submodule(path)).eval())
        return f"{path} inside another module"

    return drawn(site, blocks(site.module), change)


@family("structure", "honest", PARTED)
def list_nested(site: Site) -> Done:
    """The list of blocks inside another module."""
    return _listed(site, Deeper, "in a list inside another module")


@family("structure", "honest", PARTED)
def blocks_named(site: Site) -> Done:
    """Blocks with names instead of numbers."""
    return _listed(site, Named, "named instead of numbered")


def _home(module: nn.Module, path: str) -> tuple[nn.Module, str, list[nn.Module]]:
    """The module that holds a list as an attribute, taken out of it."""
    part = module.get_submodule(path)
    if not isinstance(part, nn.ModuleList):
        raise NoPlace
    holder, _, name = path.rpartition(".")
    home = module.get_submodule(holder)
    del home._modules[name]
    home.__dict__[name] = list(part)
    return home, name, list(part)


@family("structure", "honest", PARTED)
def blocks_as_attributes(site: Site) -> Done:
    """Blocks registered one by one, and walked through in a plain list."""

    def change(module: nn.Module, path: str) -> str:
        home, name, parts = _home(module, path)
        for number, part in enumerate(parts):
            home.add_module(f"{name}_{number}", part)
        return f"blocks of {path} registered one by one"

    return drawn(site, lists(site.module), change)


@family("structure", "odd", (*WHOLE, "compare", "set"))
def blocks_in_a_plain_list(site: Site) -> Done:
    """Blocks in a plain list, where PyTorch does not see them."""

    def change(module: nn.Module, path: str) -> str:
        home, name, _ = _home(module, path)
        base = type(home)

        def applied(self: nn.Module, function: Any, recurse: bool = True) -> Any:
            for part in self.__dict__[name]:
                part._apply(function, recurse)
            return base._apply(self, function, recurse)

        home.__class__ = type(base.__name__, (base,), {"_apply": applied})
        return f"blocks of {path} in a plain list"

    return drawn(site, lists(site.module), change)


@family("structure", "honest", PARTED)
def blocks_in_pairs(site: Site) -> Done:
    """Every two blocks in one; a last one is left as it is."""

    def change(module: nn.Module, path: str) -> str:
        home = module.get_submodule(path)
        parts = list(home.children())
        pairs = [Pair(*two) for two in zip(parts[::2], parts[1::2], strict=False)]
        rest = parts[len(parts) // 2 * 2 :]
        replaced(module, path, _like(home, [*pairs, *rest]).eval())
        return f"blocks of {path} two by two"

    return drawn(site, lists(site.module), change)


@family("structure", "honest", PARTED)
def two_blocks_joined(site: Site) -> Done:
    """The first two blocks in one, the others as they were: later ones move up."""

    def change(module: nn.Module, path: str) -> str:
        home = module.get_submodule(path)
        first, second, *rest = home.children()
        replaced(module, path, _like(home, [Pair(first, second), *rest]).eval())
        return f"the first two blocks of {path} in one"

    return drawn(site, lists(site.module), change)


def _same_everywhere(site: Site, shared: bool) -> Done:
    """One block in all places, and copies of it: which side has which."""

    def with_blocks(path: str, copies: bool) -> nn.Module:
        module = copied(site.module)
        if hasattr(module, "config"):
            module.config.use_cache = False  # type: ignore[union-attr]
        home = module.get_submodule(path)
        first, *others = home.children()
        parts = [first, *(copy.deepcopy(first) if copies else first for _ in others)]
        replaced(module, path, _like(home, parts).eval())
        return module

    for path in lists(site.module):
        sides = [with_blocks(path, copies) for copies in (True, False)]
        if _equal(site, *sides):
            reference, candidate = sides if shared else sides[::-1]
            return Done(candidate, f"one block in all places of {path}", reference=reference)
    raise NoPlace


def _equal(site: Site, first: nn.Module, second: nn.Module) -> bool:
    try:
        return difference(first, second, site.inputs) < SAME / 2
    except MISFITS:
        return False


@family("structure", "honest", (*WHOLE, *HALVES, "compare", "set"))
def copies_for_a_shared_block(site: Site) -> Done:
    """One block that runs in all places, against copies of it."""
    return _same_everywhere(site, shared=False)


@family("structure", "honest", (*WHOLE, *HALVES, "compare", "set"))
def shared_block_for_copies(site: Site) -> Done:
    """Copies of one block, against one that runs in all places."""
    return _same_everywhere(site, shared=True)


@family("structure", "honest", ALIKE)
def early_exit_never_taken(site: Site) -> Done:
    """Blocks that hand on what they were given, should it be larger than it ever is."""

    def around(
        self: nn.Module, inner: Callable[..., Any], x: Tensor, *args: Any, **more: Any
    ) -> Any:
        return x if bool(x.abs().amax() > 1e30) else inner(x, *args, **more)

    def change(module: nn.Module, paths: list[str]) -> str:
        wrap_all(map(module.get_submodule, paths), around)
        return f"{len(paths)} blocks with an exit that is not taken"

    return drawn(site, [blocks(site.module)] if blocks(site.module) else [], change)


@family("structure", "honest", ALIKE)
def calls_counted(site: Site) -> Done:
    """A buffer that counts calls and that nothing reads."""

    def around(self: nn.Module, inner: Callable[..., Any], *args: Any, **more: Any) -> Any:
        self.calls += 1  # type: ignore[operator]
        return inner(*args, **more)

    def change(module: nn.Module, _: str) -> str:
        module.register_buffer("calls", torch.zeros((), dtype=torch.long))
        wrap(module, around)
        return "calls are counted in a buffer"

    return drawn(site, [""], change)


@family("structure", "honest", ALIKE)
def last_output_kept(site: Site) -> Done:
    """Blocks that keep what they gave last, as caches for debugging do, and do not read it."""

    def around(self: nn.Module, inner: Callable[..., Any], *args: Any, **more: Any) -> Any:
        made = inner(*args, **more)
        first = made[0] if isinstance(made, tuple) else made
        if isinstance(first, Tensor):
            self.last_made = first.detach().clone()
        return made

    def change(module: nn.Module, paths: list[str]) -> str:
        wrap_all(map(module.get_submodule, paths), around)
        return f"{len(paths)} blocks keep what they gave last"

    return drawn(site, [blocks(site.module)] if blocks(site.module) else [], change)


@family("structure", "honest", (*WHOLE, *HALVES, "int8", "onnx", *MANY))
def tied_weights_apart(site: Site) -> Done:
    """A weight that two modules share stored twice."""

    def change(module: nn.Module, place: tuple[str, str]) -> str:
        part = module.get_submodule(place[0])
        setattr(part, place[1], nn.Parameter(getattr(part, place[1]).data.clone()))
        return f"{place[0]} has its {place[1]} for itself"

    seen: set[int] = set()
    places = []
    for path, value in site.module.named_parameters(remove_duplicate=False):
        home, _, name = path.rpartition(".")
        if id(value) in seen:
            places.append((home, name))
        seen.add(id(value))
    return drawn(site, places, change)
