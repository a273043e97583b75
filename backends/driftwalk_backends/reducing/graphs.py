"""A candidate that runs a graph: the nodes that make its drift, cut out and made smaller.

Two things may be wrong. *The runtime*: it gives other numbers than its own graph in float64; a cut
is right by itself. *The graph*: in float64 it gives other numbers than the model; then what is
right are the model's tensors, and only what leaves them as they are may be changed.

Another tensor in the place of the guilty one is taken only where its error is the cause: handed on
in float64, it must make the error at the guilty tensor (of the runtime), or the right numbers in
its place must take that error away (of the graph).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from .axes import Axis, begins, is_square
from .changes import Table, drawn, lengths, peak, rounded, rows_used, shorter, windows
from .constants import (
    AS_WRONG_SHARE,
    DRIFT_LIMIT,
    HINT_OF_DRIFT,
    KEPT_DIGITS,
    MOST_WRONG_NODES,
    ROWS_APART,
    STANDS_FOR_SHARE,
    SUPPOSED_SHARE,
)
from .cuts import Cut, Cutting, is_own
from .mending import Mending
from .right import Partner, Right
from .showing import Judge, Shown, cosine, error_of, norm, same_place
from .states import State, differing, has_same_wrong, is_order_alone, is_wrong_order
from .writing import write_graph

Fault = Literal["runtime", "graph", "module"]


class GraphSubject:
    """What a search asks: smaller cuts that show the same drift."""

    def __init__(
        self,
        cut: Cut,
        cutting: Cutting,
        judge: Judge,
        right: Right | None,
        exact: Mapping[str, Array] | None = None,
        tables: Mapping[str, Table] | None = None,
    ) -> None:
        """`exact` are unrounded numbers of what the cut is given, where the truth has some.

        `tables` says which rows are left of those that it has in part.
        """
        self._cutting, self._judge = cutting, judge
        self._target = cut.output
        self.fault: Fault = "runtime" if right is None else "graph"
        self._mending = Mending(cut, cutting, judge, right, exact or {}, tables or {})

    @property
    def whose(self) -> Fault:
        """Whose fault it is, as a report says it."""
        return self.fault

    def start(self, expected: Array | None = None) -> State | None:
        """The region as a whole, if it is off at all; `expected` is right at its end.

        A drift inside it may show by less there than is honest, behind sums of much else.
        """
        nodes = tuple(range(len(self._cutting.graph.nodes)))
        if expected is None:
            return self._seen(nodes, self._target, HINT_OF_DRIFT)
        state = (
            self._seen(nodes, self._target, HINT_OF_DRIFT)
            if self._mending.begin(expected)
            else None
        )
        if state is None:
            return None
        size = norm(state.shown.seen)  # what overflows in the graph's type need not in float64
        most = size if np.isfinite(size) else norm(self._mending.end.array)
        if self._mending.error < most / 2:
            return None
        return self._settled(state) if len(state.nodes) == 1 else state

    def _seen(self, nodes: Sequence[int], output: str, limit: float = DRIFT_LIMIT) -> State | None:
        """A cut of some nodes, if it drifts at all."""
        expected = None
        if self.fault == "graph":
            partner = self._partner(output)
            if partner is None:
                return None
            expected = partner.array
        try:
            cut = self._cutting.cut(nodes, output)
        except KeyError:
            return None
        kept = self._cutting.numbers(cut)
        shown = self._judge.show(cut, expected) if kept else None
        if shown is None or not shown.clearest > limit:
            return None
        return State(cut, shown, kept, expected)

    def _partner(self, name: str) -> Partner | None:
        return self._mending.end if name == self._target else self._mending.partners.get(name)

    def write(
        self, state: State, folder: Path, flags: Mapping[str, str], headline: str, about: str
    ) -> str:
        """Write the reproduction into an empty folder; gives its script."""
        shown = state.shown
        kind = shown.found.dtype
        return write_graph(
            folder, state.cut, shown.truth, kind, shown.honest, flags, headline, about
        )

    # ---- an earlier end ----

    def ends(self, state: State) -> list[str]:
        """Tensors before the output, in topological order."""
        among = set(state.nodes)
        makers = self._cutting.graph.producers
        earlier = [name for name, number in makers.items() if number in among]
        known = [
            name for name in earlier if name in self._mending.wide and name != state.cut.output
        ]
        if self.fault == "graph":
            known = [name for name in known if not self._mending.is_right(name)]
        return known

    def ending(self, state: State, end: str) -> State | None:
        """The cut as far as an earlier tensor, if its error is the cause."""
        share = self._best_partner(end) if self.fault == "graph" else 1.0
        found = self._seen(state.nodes, end) if share >= STANDS_FOR_SHARE else None
        if found is None:
            return self._wrong_numbers(end) if self.fault == "graph" else None
        if self.fault == "runtime":
            share = self._explained(state, end, found.shown)
        return self._settled(replace(found, share=share)) if share >= STANDS_FOR_SHARE else None

    def _explained(self, state: State, end: str, shown: Shown) -> float:
        """Of the error, what the float64 rest makes of this tensor's, along the same direction."""
        handed = self._handed_on(state, end, shown.found)
        if handed is None:
            return 0.0
        made, old = error_of(handed, state.shown.truth), state.shown.error
        if not (np.isfinite(old).all() and np.isfinite(made).all()):
            return max(0.0, cosine(made, old))
        return max(0.0, 1 - (norm(old - made) / norm(old)) ** 2)

    def _best_partner(self, end: str) -> float:
        """What mends most at a tensor becomes its partner."""
        known, proposed = self._mending.partners.get(end), self._mending.proposed(end)
        mended = [(self._mending.mended(end, one.array), -i) for i, one in enumerate(proposed)]
        if not mended:
            return 0.0
        share, place = max(mended)
        if known is None and share < SUPPOSED_SHARE:
            return 0.0
        self._mending.partners[end] = proposed[-place]
        return share

    def _wrong_numbers(self, end: str) -> State | None:
        """A few nodes behind right tensors that the model's own numbers would make right.

        One of several wrong places mends little by itself; this is proof without that.
        """
        begins = self._mending.right_behind(end)
        for partner in self._mending.proposed(end) if begins else ():
            if partner.off < AS_WRONG_SHARE * self._mending.end.off:
                continue
            try:
                cut = self._cutting.cut(self._cutting.between(end, begins), end)
            except KeyError:
                continue
            right = self._mending.with_right_numbers(cut, partner)
            shown = None if right is None else self._judge.show(cut, partner.array)
            if shown is not None and shown.drifts and self._mending.matters(end, partner.array):
                self._mending.partners[end] = partner
                mended = self._mending.mended(end, partner.array)
                share = max(mended, self._mending.mended_by(cut, right or cut))
                return State(cut, shown, self._cutting.numbers(cut), partner.array, share, right)
        return None

    def _settled(self, state: State) -> State:
        """With the numbers that are right, where those of the graph are all that is wrong."""
        if state.expected is None or len(state.nodes) > MOST_WRONG_NODES:
            return state
        partner = self._mending.partners.get(state.cut.output, self._mending.end)
        return replace(state, right=self._mending.with_right_numbers(state.cut, partner))

    def _handed_on(self, state: State, end: str, array: Array) -> Array | None:
        """What the rest makes of another value of a tensor, in float64."""
        cut = self._mending.given_at(state.cut, end)
        try:
            handed: Array = self._judge.wide(cut, {end: array})
        except (BackendError, KeyError):
            return None
        return handed if handed.shape == state.shown.truth.shape else None

    # ---- fewer nodes ----

    def parts(self, state: State) -> list[int]:
        return list(state.nodes)

    def guess(self, state: State) -> list[int]:
        """The nodes that are wrong, where right tensors say so: behind those that are right."""
        if self.fault != "graph":
            return []
        ends = [name for name in self._mending.wide if self._mending.is_right(name)]
        return self._cutting.between(state.cut.output, ends)

    def keeping(self, state: State, nodes: Sequence[int]) -> State | None:
        """Only some of its nodes, if the error stays what it is."""
        if self._cutting.graph.producers[state.cut.output] not in nodes:
            return None
        found = self._seen(nodes, state.cut.output)
        if found is None or len(found.nodes) >= len(state.nodes):
            return None
        if self.fault == "graph" and not self._begins_right(found.cut):
            return None
        if not same_place(found.shown.seen, state.shown.seen):
            return None
        return self._settled(replace(found, share=state.share))

    def idle(self, state: State) -> list[int]:
        return [n for n in state.nodes if self._cutting.handed_on(state.cut, n) is not None]

    def passing(self, state: State, node: int) -> State | None:
        """Without a node that gives one of its inputs as it is, if the error stays what it is."""
        source = self._cutting.handed_on(state.cut, node)
        if source is None:
            return None
        gone = self._cutting.graph.nodes[node].outputs[0]
        made = state.cut.without(gone, source)
        shown = self._judge.show(made, state.expected)
        if shown is None or not shown.drifts or not same_place(shown.seen, state.shown.seen):
            return None
        right = None if state.right is None else state.right.without(gone, source)
        nodes = tuple(number for number in state.nodes if number != node)
        return replace(state, cut=made, shown=shown, nodes=nodes, right=right)

    def _begins_right(self, cut: Cut) -> bool:
        """Whether what is given is right: a wrong tensor would hide what went wrong."""
        inner = [name for name in cut.given if name in self._cutting.graph.producers]
        floats = [name for name in inner if cut.given[name].dtype.kind == "f"]
        return all(self._mending.is_right(name) for name in floats)

    # ---- shorter axes ----

    def lengths(self, state: State) -> list[int]:
        return lengths(state.cut)

    def shortened(self, state: State, length: int, size: int) -> State | None:
        """All axes of one length cut down, if what is left shows the same drift."""
        error = state.shown.seen
        peaks = peak(error, length) + [
            place for array in differing(state).values() for place in peak(array, length)
        ]
        reordered = is_wrong_order(state.shown.found, state.expected)
        together = lengths(state.cut) if "DFT" in state.cut.operations else []
        apart = self._apart(state, length, size)
        for window in windows(length, size, peaks, together, apart):
            made = shorter(state.cut, window)
            right = None if state.right is None else shorter(state.right, window)
            slices = window.slices(error.shape, state.cut.output)
            expected = None if state.expected is None else state.expected[slices]
            if right is not None:
                expected = self._judge.wide_or_none(right)
            elif expected is not None and not self._rows_apart(state.cut, made, slices):
                continue
            if expected is None and state.expected is not None:
                continue
            shown = self._judge.show(made, expected)
            if shown is None or not shown.drifts:
                continue
            if reordered and not is_order_alone(shown.found, expected):
                continue  # one number of a wrong order is not wrong
            left, free = error[slices], expected is None or right is not None
            aligned = left.shape == shown.error.shape and same_place(shown.seen, left)
            found = replace(state, cut=made, shown=shown, expected=expected, right=right)
            same = state.is_kind_of(shown, size / length) or has_same_wrong(found, state)
            if aligned or (free and same):
                if aligned:
                    return replace(found, anchor=None, faded=1.0)
                faded = state.faded * size / length
                return replace(found, anchor=state.compared, faded=faded)
        return None

    def _apart(self, state: State, length: int, size: int) -> list[dict[Axis, int]]:
        """Where axes of a length begin that are not one, as rows and columns of a matrix are."""
        cut = state.cut
        if not is_square({**cut.stored, **cut.given}, length):
            return []
        names = tuple(name for node in cut.nodes for name in node.output if name)
        shapes = {n: a.shape for n, a in {**cut.stored, **cut.given}.items()}
        shapes |= {n: a.shape for n, a in self._judge.wide(cut, None, names).items()}
        wrong = {**differing(state), cut.output: state.shown.seen}
        made = begins(cut, shapes, wrong, length, size)
        return [made] if len(set(made.values())) > 1 else []

    def _rows_apart(self, whole: Cut, made: Cut, slices: tuple[slice, ...]) -> bool:
        """Whether what is left does not depend on what is gone."""
        old, new = self._judge.wide_or_none(whole), self._judge.wide_or_none(made)
        if old is None or new is None or old[slices].shape != new.shape:
            return False
        return norm(error_of(new, old[slices])) <= ROWS_APART * norm(new[np.isfinite(new)])

    # ---- values that say less ----

    def plainer(self, state: State) -> list[str]:
        """Changes of values, each to be tried: numbers that are nobody's, then rounder ones."""
        used = ["rows that are used"] if rows_used(state.cut) is not None else []
        if state.expected is not None and state.right is None:
            return used
        own = [n for n, a in (*state.cut.stored.items(), *state.cut.given.items()) if is_own(a)]
        draws = ["random all", *(f"random {name}" for name in own)]
        return [*used, *draws, *(f"rounded to {digits} digits" for digits in KEPT_DIGITS)]

    def made_plain(self, state: State, how: str) -> State | None:
        cut = state.cut
        arrays = {**cut.stored, **cut.given}
        kind, _, rest = how.partition(" ")
        invented: Sequence[str] = ()
        if kind == "rows":
            return self._with_rows(state)
        fixed = differing(state)  # these are what is wrong
        if kind == "rounded":
            digits = int(rest.split()[1])
            own = {n: a for n, a in arrays.items() if is_own(a) and n not in fixed}
            changed = {n: rounded(a, digits) for n, a in own.items()}
        else:
            names = [n for n, a in arrays.items() if is_own(a)] if rest == "all" else [rest]
            invented = [name for name in names if name not in {*cut.invented, *fixed}]
            changed = {n: drawn(arrays[n], seed) for seed, n in enumerate(invented)}
        if not changed:
            return None
        made = cut.with_values(changed, invented)
        right = None if state.right is None else state.right.with_values(changed, invented)
        expected = None if right is None else self._judge.wide_or_none(right)
        shown = None if right is not None and expected is None else self._judge.show(made, expected)
        if shown is None or not shown.drifts or not state.is_kind_of(shown):
            return None
        again = replace(state, cut=made, shown=shown, expected=expected, right=right)
        return replace(again, anchor=state.compared)

    def _with_rows(self, state: State) -> State | None:
        """Tables with the rows alone that are looked up: what comes out is the same."""
        made = rows_used(state.cut)
        shown = None if made is None else self._judge.show(made, state.expected)
        if made is None or shown is None or not same_place(shown.seen, state.shown.seen):
            return None
        return replace(state, cut=made, shown=shown, right=state.right and rows_used(state.right))
