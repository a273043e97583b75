"""What `reduce` found, frozen: numbers and names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ...document import Document
from ...jsonable import Later, Size
from ...states import BackendInfo

Fault = Literal["runtime", "graph", "module"]


@dataclass(frozen=True)
class Extent:
    """How large something is that shows the drift, and how much of it."""

    nodes: int
    """Of a graph; modules of a torch model."""
    longest: int
    """Values along its longest axis."""
    values: int
    """Numbers that it takes in all."""
    ratio: Size
    """Its error, in units of what an honest run is off by."""


@dataclass(frozen=True)
class Reducing:
    """One step: what was done, and what was left."""

    text: str
    left: Extent


@dataclass(frozen=True)
class Example:
    """One number that is wrong."""

    index: tuple[int, ...]
    expected: float
    found: float


@dataclass(frozen=True, kw_only=True)
class Reduction(Document):
    """What `reduce` returns."""

    kind: ClassVar[str] = "reduction"
    candidate: BackendInfo
    point: str = ""
    """Where the drift is; empty where nothing drifts."""
    fault: Fault | None = None
    """Whose it is: the runtime's, which is wrong about its graph; the graph's, which is another
    function than the model; or that of a torch module as the candidate runs it."""
    before: Extent | None = None
    """What makes the point: its block."""
    after: Extent | None = None
    error: Size = 0.0
    """L2, of what is left."""
    honest: Size = 0.0
    """The same for an honest run."""
    as_written: Size = 0.0
    """The ratio with nothing optimised."""
    share: Size = 1.0
    """Of the drift at the point, what this is the cause of."""
    operations: tuple[str, ...] = ()
    """What is left, in order."""
    steps: tuple[Reducing, ...] = ()
    examples: tuple[Example, ...] = ()
    own: tuple[str, ...] = ()
    """Tensors of the reproduction that hold the model's own numbers."""
    files: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    """`repro.py`, line by line."""
    printed: tuple[str, ...] = ()
    """What it printed, run by itself."""
    probe: Later[str] = ""
    """The hash of what the model was given."""
    answers: Later[str] = ""
    """Of all that was tried, in order: 1 where it showed the drift, 0 where it did not."""
    runs: int = 0
    finished: bool = True
    """Whether the search came to its end."""

    @property
    def found(self) -> bool:
        """Whether there is something that shows the drift."""
        return self.after is not None
