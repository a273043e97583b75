"""The one interface every backend has: "give me all layer states for this probe".

A backend is a subclass of `Backend` in one file. It must
- say what it can do here without running anything: `offers()`;
- refuse at construction what it can never do (`BackendUnavailable`, `UsageError`), touching no
  device and loading nothing yet;
- say what it is and every flag that changes its arithmetic: `info`;
- run the model: `_forward(probe, sink)`. Without a sink nothing may be instrumented. With one,
  call `sink(State(point, array))` once per point, in the order of execution, each array a copy that
  nobody writes to later, in the dtype the backend computed (or a `HeldState`, where it was told to
  `hold`: see measure/reduction.py). Return the model's plain float outputs;
- free what it holds: `_close()`.
What else it can do are the protocols of `capabilities`, each with a method or two; what it cannot,
it leaves out. The public methods check what the hooks return: a broken adapter fails at once and by
name.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np

from .capabilities import (
    BreaksTies,
    BringsModel,
    BringsProbe,
    BringsSteps,
    BringsTruth,
    Chooses,
    CopiesWeights,
    Decodes,
    Exercises,
    GivesShared,
    HasDeviceMemory,
    HasSwitches,
    HasWeights,
    Holds,
    InRanges,
    Jitters,
    LeavesOut,
    LooksInside,
    MayBeClosed,
    Prepares,
    Replays,
    Restores,
    Rewinds,
    RunsAgain,
    RunsInARow,
    ShowsModel,
    Sink,
    SkipsOutputs,
    TimesLayers,
    Tips,
)
from .dtypes import Array
from .errors import BackendError, UsageError
from .offers import Lap, Offer
from .progress import Progress
from .spec import Spec
from .states import BackendInfo, Held, HeldState, Probe, State, Trace, read_only

__all__ = [  # all but the first stand elsewhere
    "Backend",
    "BackendInfo",
    "BreaksTies",
    "BringsModel",
    "BringsProbe",
    "BringsSteps",
    "BringsTruth",
    "Chooses",
    "CopiesWeights",
    "Decodes",
    "Exercises",
    "GivesShared",
    "HasDeviceMemory",
    "HasSwitches",
    "HasWeights",
    "Holds",
    "InRanges",
    "Jitters",
    "Lap",
    "LeavesOut",
    "LooksInside",
    "MayBeClosed",
    "Offer",
    "Prepares",
    "Replays",
    "Restores",
    "Rewinds",
    "RunsAgain",
    "RunsInARow",
    "ShowsModel",
    "Sink",
    "SkipsOutputs",
    "TimesLayers",
    "Tips",
]


class Backend(ABC):
    """One runtime, one model. Use it as a context manager, or call `close()`."""

    name: ClassVar[str]
    options: ClassVar[Mapping[str, str]] = {}
    """Spec options the backend takes, each with a line of help."""
    observable: ClassVar[bool] = True
    """Whether it can be run plain, to see if looking changed anything; a recording cannot."""

    progress: Progress = Progress()
    """Where it says what it is doing, if that takes long; set by who shows it."""

    make_probe: Callable[[object], Probe] | None = None
    """Makes a probe for its model of text, arrays, a file or nothing; set by who made it."""

    seconds: Mapping[str, float]
    """What was slow: the last `trace` and `run`; of all else (`load`, `export`, ...) the sum."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._seconds: dict[str, float] = {}
        self.seconds = MappingProxyType(self._seconds)
        spec.allow_options(self.options)

    @classmethod
    @abstractmethod
    def offers(cls) -> Sequence[Offer]:
        """What is usable here, and why the rest is not."""

    @property
    @abstractmethod
    def info(self) -> BackendInfo:
        """Device, dtype, versions and flags; complete after the first run."""

    @abstractmethod
    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        """Run once; see the module's docstring for what is promised."""

    def _close(self) -> None:  # noqa: B027 - optional hook
        """Free sessions, device memory, files."""

    def stream(self, probe: Probe, sink: Sink) -> Mapping[str, Array]:
        """Run instrumented, handing each state on as it is made, so that none need be kept."""
        seen: set[str] = set()

        def check(state: State) -> None:
            name = state.point.name
            if name in seen:
                raise BackendError(f"Backend {self.spec} gave point {name!r} twice in one run.")
            seen.add(name)
            if not isinstance(state, HeldState):
                if not isinstance(state.array, np.ndarray):
                    raise BackendError(
                        f"Backend {self.spec} gave a {type(state.array).__name__} at {name!r}; "
                        "a state is a numpy array."
                    )
                state = State(state.point, read_only(state.array))
            elif not isinstance(state.held, Held):
                raise BackendError(
                    f"Backend {self.spec} holds a {type(state.held).__name__} at {name!r}; it has "
                    "no shape and dtype, or cannot be fetched."
                )
            sink(state)

        outputs = self._timed("trace", probe, check)
        if not seen:
            raise BackendError(f"Backend {self.spec} gave no states at all.")
        return outputs

    def trace(self, probe: object = None) -> Trace:
        """Give me all layer states, for whatever `verify(probe=)` takes."""
        states, fixed = list[State](), self._fixed(probe)
        outputs = self.stream(fixed, states.append)
        return Trace(tuple(states), fixed, self.info, outputs)

    def run(self, probe: object = None) -> Mapping[str, Array]:
        """Plain outputs by name, nothing instrumented, for whatever `verify(probe=)` takes."""
        return self._timed("run", self._fixed(probe), None)

    def _fixed(self, given: object) -> Probe:
        """A probe as it is; anything else is made into one for the model."""
        if isinstance(given, Probe):
            return given
        if given is None and isinstance(self, BringsProbe) and self.own_probe is not None:
            return self.own_probe
        if self.make_probe is None:
            raise UsageError(
                f"Backend {self.spec} was not made by driftwalk.backend(spec, model), and cannot "
                f"make a probe of {type(given).__name__}; give a driftwalk.Probe."
            )
        return self.make_probe(given)

    def lap(self, probe: Probe) -> Lap:
        """One plain run, timed. A backend with a device of its own waits for it, and says more."""
        return Lap(self._clocked(probe, None)[1])

    def restart_clock(self) -> None:
        """Begin the account of seconds anew."""
        self._seconds.clear()

    def close(self) -> None:
        self._close()

    def _timed(self, what: str, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        outputs, self._seconds[what] = self._clocked(probe, sink)
        return MappingProxyType({name: read_only(array) for name, array in outputs.items()})

    def _clocked(self, probe: Probe, sink: Sink | None) -> tuple[Mapping[str, Array], float]:
        """One run and its seconds, less what was booked on the way: loading, exporting."""
        start = time.perf_counter() - sum(self._seconds.values())
        outputs = self._forward(probe, sink)
        return outputs, time.perf_counter() - sum(self._seconds.values()) - start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec}>"
