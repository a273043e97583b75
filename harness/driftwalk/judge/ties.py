"""Choices that tip over: tokens at which honest arithmetic may take another branch.

A router's top-k, a detector's best queries, a sort, a threshold: where two numbers are closer than
honest arithmetic can tell apart, a side may choose as the truth does or not, and be right both
times. The truth is run once more with every such choice tipped over (backends: choices.py). What it
then gives says which tokens stand at a tie, and how far the other branch leads.

A side that was not seen to tip over is judged as ever, but for the tokens that stand at a tie in
the layer itself. Only where the other branch at these explains what it does (and nothing else
does) has it tipped over, and is from there on given the noise of runs that have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from ..adapter import Sink, Tips
from ..dtypes import Array, Float64
from ..errors import DriftwalkError
from ..measure.norms import row_sizes
from ..states import State, Trace
from .constants import MOST_TIED_TOKENS, TIE_REACH, VOID_SHARE, YARDSTICKS
from .honest import gain

_LISTED = 4


Ties = Mapping[str, tuple[int, int]]
"""Point -> how many of its tokens stand at a tie, and how many it has."""


@dataclass(frozen=True, eq=False)
class OtherBranch:
    """The truth's states with close choices tipped over, at the points at which that shows."""

    onwards: Mapping[str, Array] = field(default_factory=dict)
    """In one run: each layer is given what the layers before it made of it."""
    within: Mapping[str, Array] = field(default_factory=dict)
    """Each layer given the truth's own previous state."""

    def jumps(self, exact: Trace) -> dict[str, Array]:
        """What the choices in each layer change."""
        return {name: array - exact[name] for name, array in self.within.items()}


def other_branch(
    truth: object, exact: Trace, made: Trace, noisy: Trace | None, also: Sink
) -> OtherBranch:
    """What the truth gives where choices that the yardstick's noise could tip over do.

    Each state of the one run is handed on to `also`, whatever it holds.
    """
    if noisy is None or not isinstance(truth, Tips):
        return OtherBranch()
    onwards: dict[str, Array] = {}
    within: dict[str, Array] = {}

    def keep_in(found: dict[str, Array], also: Sink | None = None) -> Sink:
        def keep(state: State) -> None:
            if also is not None:
                also(state)
            name, true = state.point.name, exact.state(state.point.name)
            fits = true is not None and true.shape == state.shape
            if fits and not np.array_equal(state.array, exact[name]):
                found[name] = state.array

        return keep

    reach = TIE_REACH * _gain(exact, made, noisy)
    try:
        if not truth.tipped(exact.probe, reach, keep_in(onwards, also)):
            return OtherBranch()
        given = {state.point.name: state.array for state in exact}
        truth.tipped(exact.probe, reach, keep_in(within), given)
    except DriftwalkError:  # on another branch a model may not run at all
        return OtherBranch()
    return OtherBranch(onwards, within)


def _gain(exact: Trace, made: Trace, noisy: Trace) -> float:
    """How many times the noise of the run with roundoffs the yardstick's is, at most points.

    Where a state underflows in its format, its noise says nothing about that of what is compared.
    """
    gains = []
    for state in exact:
        name, true = state.point.name, state.array
        ours, theirs = made.state(name), noisy.state(name)
        if ours is not None and theirs is not None:
            keep = exact.probe.keep(name, true.shape)
            sizes = (row_sizes(run.array, true, keep) for run in (ours, theirs))
            gains.append(gain(*sizes))
    return max(1.0, median(gains)) if gains else 1.0


def tied_tokens(exact: Trace, made: Trace, other: OtherBranch) -> Ties:
    """The tokens that a choice in the layer itself leads farther than any noise explains."""
    found = {}
    for name, array in other.within.items():
        shares = _shares(exact, made, name, array)
        if shares is not None:
            noise, jump = shares
            tied = int((jump > YARDSTICKS * np.median(noise)).sum())
            if tied:
                found[name] = tied, len(jump)
    return found


def _shares(exact: Trace, made: Trace, name: str, array: Array) -> tuple[Float64, Float64] | None:
    """How far the yardstick and another array are from the truth, as shares of each token."""
    own, true = made.state(name), exact[name]
    if own is None or own.shape != true.shape:
        return None
    keep = exact.probe.keep(name, true.shape)
    size = row_sizes(true, None, keep)
    size = np.where(size > 0, size, np.inf)
    noise: Float64 = row_sizes(own.array, true, keep) / size
    jump: Float64 = row_sizes(array, true, keep) / size
    return noise, jump


def sentence_on(ties: Ties, dtype: str) -> str:
    """A sentence on the layers that have ties; empty where none has."""
    if not ties:
        return ""
    listed = [f"{tied} of {tokens} in {name}" for name, (tied, tokens) in ties.items()]
    more = f" and {len(listed) - _LISTED} more points" if len(listed) > _LISTED else ""
    return (
        f"Tokens at a tie, where {dtype} arithmetic decides by chance what is chosen (an expert, a "
        f"query, a rank): {', '.join(listed[:_LISTED])}{more}. For them the other choice is as "
        "good; all other tokens are judged as ever."
    )


def left_to_chance(
    exact: Trace, made: Trace, ties: Ties, other: OtherBranch, dtype: str
) -> dict[str, str]:
    """The points at which choices decide so much that too little is left to compare, and why.

    Either most tokens stand at a tie there, or the other branch leads as far as honest arithmetic
    is off, and that leaves no digit.
    """
    found: dict[str, str] = {}
    for name, (tied, tokens) in ties.items():
        if tied > MOST_TIED_TOKENS * tokens:
            found[name] = f"{tied} of {tokens} tokens stand at a tie at {name}: {_chosen(dtype)}"
    for name, array in other.onwards.items() if ties else ():
        shares = _shares(exact, made, name, array)
        if shares is not None:
            noise, jump = (float(np.median(share)) for share in shares)
            if noise > VOID_SHARE and jump > noise / 2:
                found.setdefault(name, f"no digit is left at {name}: {_chosen(dtype)}")
    return found


def _chosen(dtype: str) -> str:
    return (
        f"{dtype} arithmetic decides by chance what is chosen in the model, and this side chose "
        "otherwise than the truth. What else it did cannot be told. Try other inputs, or a finer "
        "dtype"
    )
