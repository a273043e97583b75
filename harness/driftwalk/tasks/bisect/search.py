"""Which switches cause a fault: the smallest sets, by asking; knows no model.

A question is: with these switches off, is it still bad? `smallest` halves a list until one switch
is left without which the answer changes, keeps it, and goes on with those before it while that one
alone is not enough: about log2(n) questions for each switch that it gives. It needs no switch to
act on its own, and takes nothing for granted of sets that were not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

Ask = Callable[[frozenset[str]], bool]
"""Whether it is bad with these switches off."""


class StoppedError(Exception):
    """The search must end before it is done: no time, no runs left, interrupted."""


@dataclass(frozen=True)
class Cause:
    """One switch that must be off, and what must be on for it to do harm."""

    switch: str
    alone: bool | None
    """Whether it is bad with all other switches off; None where that was not asked."""
    together: tuple[str, ...] = ()
    """Other switches that it only does so with."""


@dataclass(frozen=True)
class Found:
    """What a search found out."""

    cure: tuple[str, ...] = ()
    """A smallest set of switches to turn off: with them off it is good."""
    causes: tuple[Cause, ...] = ()
    """One for each of these."""
    curable: bool | None = None
    """Whether it is good with all switches off; None where that was not asked."""
    why: str = ""
    """What ended the search early."""

    @property
    def shown(self) -> bool:
        """Whether each of the cure was seen to be bad on its own: luck can hide, not feign that."""
        return all(cause.alone for cause in self.causes)

    @property
    def named(self) -> tuple[str, ...]:
        """All switches that have to do with it."""
        own = [name for cause in self.causes for name in (cause.switch, *cause.together)]
        return tuple(dict.fromkeys((*self.cure, *own)))


def smallest(items: Sequence[str], holds: Ask) -> tuple[str, ...]:
    """A subset for which it holds, and without whose members it does not.

    It must hold for all items, and not for none.
    """
    chosen: list[str] = []
    left = list(items)
    while left:
        low, high = 0, len(left)
        while high - low > 1:
            middle = (low + high) // 2
            if holds(frozenset((*chosen, *left[:middle]))):
                high = middle
            else:
                low = middle
        chosen.append(left[high - 1])
        left = left[: high - 1]
        if not left or holds(frozenset(chosen)):
            break
    return tuple(item for item in items if item in chosen)


def search(
    switches: Sequence[str],
    ask: Ask,
    parts: Mapping[str, Sequence[str]] | None = None,
    needs: Mapping[str, Sequence[str]] | None = None,
) -> Found:
    """The switches without which it is good, where it is bad with all of them on.

    `parts` are finer switches that some consist of; `needs` are those without which one does
    nothing. Where it must stop, what was found until then is given.
    """
    return _Search(switches, ask, parts or {}, needs or {}).run()


class _Search:
    def __init__(
        self,
        switches: Sequence[str],
        ask: Ask,
        parts: Mapping[str, Sequence[str]],
        needs: Mapping[str, Sequence[str]],
    ) -> None:
        self._all, self._given = list(switches), ask
        self._parts, self._needs = parts, needs
        self._answers: dict[frozenset[str], bool] = {frozenset(): True}
        self._found = Found()

    def run(self) -> Found:
        try:
            self._work()
        except StoppedError as stopped:
            least = min((off for off, bad in self._answers.items() if not bad), key=len, default=())
            cure = self._found.cure or tuple(name for name in self._all if name in least)
            self._found = replace(self._found, cure=cure, why=str(stopped))
        return self._found

    def _bad(self, off: frozenset[str]) -> bool:
        if off not in self._answers:
            self._answers[off] = self._given(off)
        return self._answers[off]

    def _good(self, off: frozenset[str]) -> bool:
        return not self._bad(off)

    def _work(self) -> None:
        curable = self._good(frozenset(self._all))
        self._found = Found(curable=curable)
        if not curable or not self._all:
            return
        cure = smallest(self._all, self._good)
        for name in cure:
            cure = self._finer(cure, name)
        for name in cure if len(cure) > 1 else ():
            if self._good(frozenset(cure) - {name}):
                cure = tuple(other for other in cure if other != name)
        self._found = replace(self._found, cure=cure)
        for name in cure:
            cause = self._cause(cure, name)
            self._found = replace(self._found, causes=(*self._found.causes, cause))

    def _finer(self, cure: tuple[str, ...], name: str) -> tuple[str, ...]:
        """The cure with the parts of a switch in its place, as far as they are all there is."""
        parts = self._parts.get(name, ())
        others = frozenset(cure) - {name}
        if not parts or self._bad(others | frozenset(parts)):
            return cure
        own = smallest(parts, lambda some: self._good(others | some))
        place = self._all.index(name)
        self._all[place : place + 1] = parts
        return tuple(item for item in self._all if item in others | set(own))

    def _cause(self, cure: tuple[str, ...], name: str) -> Cause:
        """Whether one of the cure is bad with all others off; if not, which must be on."""
        own, everything = self._with_needs({name}), frozenset(self._all)
        if self._bad(everything - own):
            return Cause(name, alone=True)
        others = frozenset(cure) - {name}
        left = [item for item in self._all if item not in own | others]
        if not left:
            return Cause(name, alone=False)
        together = smallest(left, lambda on: self._bad(everything - self._with_needs(own | on)))
        for partner in together:
            together = self._finer_partner(own, together, partner)
        return Cause(name, alone=False, together=together)

    def _finer_partner(
        self, own: frozenset[str], together: tuple[str, ...], name: str
    ) -> tuple[str, ...]:
        """The partners with the parts of one in its place, as far as they are all there is."""
        parts = self._parts.get(name, ())
        others = tuple(partner for partner in together if partner != name)
        if not parts:
            return together
        everything = frozenset(self._all).union(parts) - {name}

        def bad(some: frozenset[str]) -> bool:
            return self._bad(everything - self._with_needs(own.union(others, some, {name})))

        if bad(frozenset()):
            return together
        return (*others, *smallest(parts, bad))

    def _with_needs(self, names: AbstractSet[str]) -> frozenset[str]:
        """Switches and all without which they do nothing; a part needs what its whole does."""
        wholes = {whole for whole, parts in self._parts.items() if names & set(parts)}
        return frozenset(names).union(*(self._needs.get(name, ()) for name in names | wholes))
