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
What else it can do are the protocols below, each with a method or two; what it cannot, it leaves
out. The public methods check what the hooks return: a broken adapter fails at once and by name.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, runtime_checkable

import numpy as np

from .decoding import Beams, Decoding
from .dtypes import Array
from .errors import BackendError, UsageError
from .offers import Lap, Offer
from .progress import Progress
from .spec import Spec
from .states import BackendInfo, Held, HeldState, Probe, State, Trace, read_only
from .weight_source import WeightSource

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

    from .exercised import Exercised
    from .formats import HonestSides

__all__ = ["Backend", "BackendInfo", "Lap", "Offer"]  # the last three stand elsewhere
Sink = Callable[[State], None]


# ---- what a backend may be able to do beside: a method of that name is all there is to it ----


@runtime_checkable
class Replays(Protocol):
    """Runs each block on a given previous state: blame, and layers judged by their own input."""

    def replay(self, probe: Probe, given: Mapping[str, Array], sink: Sink) -> None:
        """Hand on X_n(given_{n-1}) for each point n, in order of execution."""


@runtime_checkable
class LooksInside(Protocol):
    """Gives the states of the modules inside its blocks: `--depth`, and to drill into a layer.

    With `look("module", "layer.5")` a trace also has, for each module in that layer's block, its
    first float output as `layer.5.<path below the block>` (a second call of it ends in `#2`), and
    its input as the same with `:in`, where that is not the output of a module. Without a layer,
    every block is looked into, and only for outputs.
    """

    @property
    def looks_at(self) -> tuple[str, str]:
        """The depth, and the layer or nothing."""

    def look(self, depth: str, layer: str = "") -> None: ...


@runtime_checkable
class Decodes(Protocol):
    """Can feed a probe's tokens step by step, on a cache, as deployments do.

    The states of all steps are joined along their tokens; beside them it gives what the cache holds
    at the end: `layer.3.key` and `layer.3.value` by token.
    """

    def decode(self, plan: Decoding | None) -> None:
        """From now on; None: all tokens at once, without a cache."""

    def generate(self, probe: Probe, plan: Decoding, sink: Sink) -> Mapping[str, Array]:
        """Feed the probe's tokens, then in each step of the plan the one that is likeliest.

        Hands the states on as a trace of the whole sequence does, and gives its inputs.
        """


@runtime_checkable
class Rewinds(Protocol):
    """Can also reorder and cut what it keeps between steps: beam search, drafts that were wrong.

    It then does so wherever a plan to `decode` by says so.
    """

    def search(self, probe: Probe, plan: Decoding, beams: int) -> tuple[Mapping[str, Array], Beams]:
        """The inputs of the sequences that a beam search leaves, and how they were found."""


@runtime_checkable
class Restores(Protocol):
    """Can decode with given states in place of its own: `generate --patch`."""

    def restored(
        self, probe: Probe, plan: Decoding, given: Mapping[str, Array], sink: Sink
    ) -> None:
        """Hand on what a decoding gives in which each step has its part of the given states."""


@runtime_checkable
class BringsSteps(Protocol):
    """Has decoded already: a recording of steps; it may have one of the whole run, too."""

    @property
    def own_steps(self) -> Decoding | None: ...

    @property
    def has_whole(self) -> bool: ...


@runtime_checkable
class GivesShared(Protocol):
    """Gives what blocks share, `shared.mask`, as states before the layer that first gets them."""

    def share(self, on: bool) -> None: ...


@runtime_checkable
class Holds(Protocol):
    """Leaves its states on the device that made them, to be compared there."""

    @property
    def holds_on(self) -> str:
        """The device, `cuda:0`; empty where states are on the host anyway."""

    def hold(self, on: bool) -> None:
        """From now on give `HeldState`s, as far as the device has room for them; or no longer."""


@runtime_checkable
class Prepares(Protocol):
    """Finds out before a run whatever `info` can only say with a probe at hand."""

    def prepare(self, probe: Probe) -> None: ...


@runtime_checkable
class MayBeClosed(Protocol):
    """Can be something whose outputs alone are seen: an artefact of a compiler, a function."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing inside can be looked at."""


@runtime_checkable
class RunsAgain(Protocol):
    """Can say where its runs of one probe differ, if they do."""

    def unrepeatable(self, probe: Probe) -> str | None:
        """The innermost module that gives something else in every run; None where none does."""


@runtime_checkable
class BringsProbe(Protocol):
    """Can be run with one probe only: a recording."""

    @property
    def own_probe(self) -> Probe | None: ...


@runtime_checkable
class BringsModel(Protocol):
    """Computes another model on purpose, and can say which: a quantised graph."""

    def honest_model(self) -> LoadedModel | None:
        """What it should compute; None where that is the model itself, or cannot be told."""


@runtime_checkable
class BringsTruth(Protocol):
    """Declares more than other weights, and can run as it declares itself: a graph that rounds."""

    def honest_sides(self) -> HonestSides | None: ...


@runtime_checkable
class LeavesOut(Protocol):
    """Can be made anew with some of its quantised modules left in float: a spec, or a module."""

    def leaving_out(self, modules: Sequence[str]) -> object: ...


@runtime_checkable
class ShowsModel(Protocol):
    """May run the very model it was given, in plain PyTorch: proof of what was stored of it."""

    def shows(self, model: object) -> bool:
        """Whether its states are those of that model as it is, on the CPU."""


@runtime_checkable
class InRanges(Protocol):
    """Has each range of its model's blocks run on a machine of its own."""

    def ranges_of(self, model: object) -> str:
        """Options with which another backend does so, too; empty where it runs another model."""


@runtime_checkable
class HasWeights(Protocol):
    """Can show the weights that it computes with, where they may be others than the model's."""

    def other_weights(self, model: object, probe: Probe) -> WeightSource | None:
        """None where they are that model's by construction, or are no plain numbers."""


@runtime_checkable
class SkipsOutputs(Protocol):
    """Says what of the model's output no state is given for, after the first traced run."""

    @property
    def outputs_skipped(self) -> tuple[str, ...]: ...


@runtime_checkable
class Exercises(Protocol):
    """Sees in one more run what of the model a probe uses: rows, positions, experts."""

    def exercised(self, probe: Probe) -> Exercised | None: ...


@runtime_checkable
class TimesLayers(Protocol):
    """Tells the seconds spent in each point's block, in one run of its own: `bench --layers`."""

    def layer_laps(self, probe: Probe) -> Mapping[str, float]: ...


@runtime_checkable
class HasDeviceMemory(Protocol):
    """Knows the peaks of its device's memory in bytes, by name; empty where it has none."""

    def device_memory(self) -> Mapping[str, int]: ...


@runtime_checkable
class CopiesWeights(Protocol):
    """Knows how much of the host's memory its own weights take: `--budget`."""

    def weights_taken(self, lent: bool) -> int:
        """Bytes; `lent`: if weights are lent to it, whatever the size of the model (lending.py)."""


@runtime_checkable
class Jitters(Protocol):
    """Runs with every result off by a random part of a roundoff; asked of the truth alone."""

    def jittered(self, probe: Probe, roundoff: float, sink: Sink) -> None:
        """Hand on each state of a run whose operations are off by up to `roundoff`, relatively."""


@runtime_checkable
class Tips(Protocol):
    """Runs with its close choices tipped over, top-k of experts say; asked of the truth alone."""

    def tipped(
        self, probe: Probe, reach: float, sink: Sink, given: Mapping[str, Array] | None = None
    ) -> int:
        """Hand on the states of such a run, and say how many choices were close: by `reach` times
        what the last jittered run moved them. With `given`, each block runs on the state before.
        """


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
