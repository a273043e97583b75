"""The outcome of a generation, frozen: numbers and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NoReturn

from ...adapter import BackendInfo
from ...document import Document
from ...effects import Patching
from ...jsonable import Later, Size, Sparse, Table
from ...layer_drift import AtFault, Culprit, LayerDrift, Side
from ...result import ExpectedDrift, PolicyInfo, ProbeInfo, RunVerdict, all_known
from ...states import Point

Cause = Literal["cache", "backend", "shared"]
"""What went wrong: what is kept from one step to the next; the model's own arithmetic, with or
without a cache; or what all layers are handed: positions, rotary angles, masks."""

Agreement = Literal["bit-exact", "within noise", "broken"]
Outcome = Literal["bit-exact", "within noise", "broken", "not run"]


@dataclass(frozen=True)
class At:
    """A point in a step; of what a cache holds, also the slot."""

    step: int
    """0 is the run on the prompt; step n feeds the n-th token that was generated."""
    point: Point
    slot: int | None = None
    """Of the cache: the place of a token in the sequence."""
    token: Later[int | None] = None
    """The place in the sequence of the first token that is off, where that is known."""


@dataclass(frozen=True)
class Step:
    """One step: what was chosen in it, and how far the sides are apart at every point."""

    step: int
    tokens: tuple[int, ...]
    """What the reference chose, row by row, or what a beam went on with; it is fed to both sides in
    the next step."""
    texts: tuple[str, ...]
    margins: tuple[float, ...]
    """By how much the reference's logit of its choice was above the next one, row by row; a beam
    search may choose one that is below."""
    flips: int
    """Rows in which the candidate would have chosen another token."""
    layers: Table[tuple[LayerDrift, ...]]
    theirs: Later[tuple[int, ...]] = ()
    """What the candidate would have chosen, row by row."""
    their_texts: Later[tuple[str, ...]] = ()

    @property
    def token(self) -> int:
        """Of the first row."""
        return self.tokens[0]

    @property
    def text(self) -> str:
        """Of the first row."""
        return self.texts[0]

    @property
    def margin(self) -> float:
        """The smallest."""
        return min(self.margins)


@dataclass(frozen=True)
class Parted:
    """Where the two sides, each left to itself, would begin to say different things."""

    step: int
    row: int
    tokens: tuple[int, int]
    """The reference's choice, and the candidate's."""
    texts: tuple[str, str]
    margin: float
    """By how much the truth's logit of the first is above that of the second; the reference's own
    where there is no truth."""
    tie: bool
    """Whether honest noise alone could have chosen either."""
    patching: Sparse[Patching | None] = None
    """Which layer's drift it was, where that was asked for: the rows that still choose otherwise in
    this step, with the reference's states at each point in turn."""


@dataclass(frozen=True)
class CachePath:
    """One side's decoding, held against its own run on the whole sequence."""

    agreement: Agreement
    used: Size
    """Times what is allowed, at the point where most."""
    point: str


@dataclass(frozen=True)
class Invariance:
    """Two ways to run the same sequence on one side, which should not matter."""

    change: str
    side: Side
    agreement: Outcome
    used: Size = 0.0
    """Times what is allowed, at the point: the first that is broken, or where most was used."""
    point: str = ""
    by_model: bool = False
    """Whether float64 breaks as well: then the model itself depends on it."""
    note: str = ""
    """Why it was not run."""


@dataclass(frozen=True, kw_only=True)
class Generation(Document):
    """What `generate` returns."""

    kind: ClassVar[str] = "generation"
    FIRST: ClassVar[tuple[str, ...]] = (
        *("tool", "created", "command", "model", "probe", "reference", "candidate", "policy"),
        *("verdict", "reason", "cause", "first_divergence", "root_cause"),
    )
    probe: ProbeInfo
    """The whole sequence."""
    prompt: int
    """How many of its tokens were the prompt's."""
    ids: Later[tuple[tuple[int, ...], ...]] = ()
    """The whole sequence, row by row: the prompt, and what was generated and fed; the choice of the
    last step is in `steps` alone."""
    cache: str
    beams: Later[int] = 1
    """Rows of a beam search for each row of the prompt."""
    chunk: Later[int] = 0
    """Tokens of the prompt that were fed at once; 0: all."""
    draft: Later[int] = 0
    """Tokens that were drafted for each run, some of them wrong; 0: one token a run."""
    reference: BackendInfo
    candidate: BackendInfo
    policy: PolicyInfo
    verdict: RunVerdict
    reason: str = ""
    """Why a run is unverified; empty otherwise."""
    cause: Cause | None = None
    at_fault: AtFault | None = None
    first_divergence: At | None = None
    root_cause: At | None = None
    culprit: Culprit | None = None
    """Where inside the root cause."""
    explanation: str = ""
    """The cause in one sentence."""
    parted: Parted | None = None
    """None where both sides chose the same tokens all along."""
    steps: tuple[Step, ...]
    layers: tuple[LayerDrift, ...]
    """Every point over all steps: what decided."""
    whole: Table[tuple[LayerDrift, ...]] = ()
    """The same for runs on the whole sequence at once."""
    cache_paths: Mapping[str, CachePath] = field(default_factory=dict)
    """By side."""
    invariance: Later[tuple[Invariance, ...]] = ()
    """By side, where it was asked for."""
    timings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    expected: Sparse[tuple[ExpectedDrift, ...]] = ()
    """Known deviations that were found; the verdict does not hide them."""

    @property
    def ok(self) -> bool:
        return self.verdict == "pass"

    @property
    def as_expected(self) -> bool:
        """Whether it drifts, and all of the drift was known."""
        return self.verdict == "drift" and all_known(self.layers, self.expected)

    def layer(self, name: str) -> LayerDrift:
        for layer in self.layers:
            if layer.point.name == name:
                return layer
        raise KeyError(name)

    def __bool__(self) -> NoReturn:
        raise TypeError("A report is neither true nor false: ask report.ok.")

    def __repr__(self) -> str:
        first = self.first_divergence
        where = f", first divergence in step {first.step} at {first.point.name}" if first else ""
        return f"<Generation {self.verdict}{where}; {len(self.steps)} steps>"
