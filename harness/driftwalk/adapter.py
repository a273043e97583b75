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
The public methods check what the hooks return, so that a broken adapter fails at once and by name.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import ClassVar, Protocol, Self

import numpy as np

from .dtypes import Array
from .errors import BackendError, UsageError
from .spec import Spec
from .states import BackendInfo, Held, HeldState, Probe, State, Trace, read_only

__all__ = ["Backend", "BackendInfo", "Lap", "Model", "Offer", "Sink"]

Sink = Callable[[State], None]


@dataclass(frozen=True)
class Offer:
    """One thing a backend can or cannot do on this machine, and why not."""

    spec: str
    usable: bool
    note: str


@dataclass(frozen=True)
class Lap:
    """One plain run, in seconds of wall clock, waited for to the end."""

    seconds: float
    """The run itself."""
    copy_in: float = 0.0
    copy_out: float = 0.0
    """Copies of inputs and outputs between host and device, not part of the run."""
    device: float | None = None
    """The run by the device's own clock, where it has one."""


class Model(Protocol):
    """What the harness knows of a model; backends know more (see driftwalk_backends.sources)."""

    @property
    def label(self) -> str: ...

    def describe(self) -> Mapping[str, str]: ...


class Backend(ABC):
    """One runtime, one model. Use it as a context manager, or call `close()`."""

    name: ClassVar[str]
    options: ClassVar[Mapping[str, str]] = {}
    """Spec options the backend takes, each with a line of help."""
    observable: ClassVar[bool] = True
    """Whether it can be run plain, to see if looking changed anything; a recording cannot."""

    make_probe: Callable[[object], Probe] | None = None
    """Makes a probe for its model of text, arrays, a file or nothing; set by who made it."""

    seconds: Mapping[str, float]
    """What was slow so far: `load`, `export`, `trace`, `run`."""

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
    def own_probe(self) -> Probe | None:
        """The only probe it can be run with; None for all that run a model."""
        return None

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        """What of the model's output is given by no state, known after the first traced run."""
        return ()

    @property
    @abstractmethod
    def info(self) -> BackendInfo:
        """Device, dtype, versions and flags; complete after the first run."""

    @abstractmethod
    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        """Run once; see the module's docstring for what is promised."""

    def _close(self) -> None:  # noqa: B027 - optional hook
        """Free sessions, device memory, files."""

    def prepare(self, probe: Probe) -> None:  # noqa: B027 - optional hook
        """Find out now whatever `info` can only tell with a probe at hand."""

    def stream(self, probe: Probe, sink: Sink) -> Mapping[str, Array]:
        """Run instrumented, handing each state on as it is made, so that none need be kept."""
        seen: set[str] = set()

        def check(state: State) -> None:
            name = state.point.name
            if name in seen:
                raise BackendError(f"Backend {self.spec} gave point {name!r} twice in one run.")
            seen.add(name)
            if isinstance(state, HeldState):
                if not isinstance(state.held, Held):
                    raise BackendError(
                        f"Backend {self.spec} holds a {type(state.held).__name__} at {name!r}; "
                        "what is held has a shape, a dtype and can be fetched."
                    )
                sink(state)
                return
            if not isinstance(state.array, np.ndarray):
                raise BackendError(
                    f"Backend {self.spec} gave a {type(state.array).__name__} at {name!r}; "
                    "a state is a numpy array."
                )
            sink(State(state.point, read_only(state.array)))

        outputs = self._timed("trace", probe, check)
        if not seen:
            raise BackendError(f"Backend {self.spec} gave no states at all.")
        return outputs

    def trace(self, probe: object = None) -> Trace:
        """Give me all layer states, for whatever `verify(probe=)` takes."""
        states: list[State] = []
        fixed = self._fixed(probe)
        outputs = self.stream(fixed, states.append)
        return Trace(tuple(states), fixed, self.info, outputs)

    def run(self, probe: object = None) -> Mapping[str, Array]:
        """Plain outputs by name, nothing instrumented, for whatever `verify(probe=)` takes."""
        return self._timed("run", self._fixed(probe), None)

    def _fixed(self, given: object) -> Probe:
        """A probe as it is; anything else is made into one for the model."""
        if isinstance(given, Probe):
            return given
        if given is None and self.own_probe is not None:
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

    def layer_laps(self, probe: Probe) -> Mapping[str, float]:
        """Seconds spent in each point's block, in one run of its own; empty where unknown."""
        return {}

    def device_memory(self) -> Mapping[str, int]:
        """Peaks of the device's memory in bytes, by name; empty where it has none of its own."""
        return {}

    def close(self) -> None:
        self._close()

    def _timed(self, what: str, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        outputs, self._seconds[what] = self._clocked(probe, sink)
        return MappingProxyType({name: read_only(array) for name, array in outputs.items()})

    def _clocked(self, probe: Probe, sink: Sink | None) -> tuple[Mapping[str, Array], float]:
        """One run and its seconds, less what was booked on the way: loading, exporting."""
        start, before = time.perf_counter(), sum(self._seconds.values())
        outputs = self._forward(probe, sink)
        booked = sum(self._seconds.values()) - before
        return outputs, time.perf_counter() - start - booked

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec}>"
