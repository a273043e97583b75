"""What a backend may be able to do beside giving states: a method of that name is all there is.

One protocol each, with a method or two; what a backend cannot do, it leaves out. `adapter` has the
one interface that all of them share, and gives these names on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .chosen import Choice
from .decoding import Beams, Decoding
from .dtypes import Array
from .states import Probe, State
from .switches import Switch
from .weight_source import WeightSource

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

    from .adapter import Backend
    from .exercised import Exercised
    from .formats import HonestSides

Sink = Callable[[State], None]


@runtime_checkable
class Replays(Protocol):
    """Runs each block on a given previous state: blame, and layers judged by their own input."""

    def replay(self, probe: Probe, given: Mapping[str, Array], sink: Sink) -> None:
        """Hand on X_n(given_{n-1}) for each point n, in order of execution."""


@runtime_checkable
class RunsInARow(Protocol):
    """Prepares for several runs that follow one another once, not for each of them."""

    def in_a_row(self) -> AbstractContextManager[None]:
        """Nothing but such runs, inside, touches what they run: each finds it as the first did."""


@runtime_checkable
class BreaksTies(Protocol):
    """Rounds numbers while it runs, and what lies half-way between two either way."""

    def half_way_otherwise(self) -> AbstractContextManager[None]:
        """For a while, to the one that it does not take otherwise."""


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


@runtime_checkable
class Chooses(Protocol):
    """Can say what its model chose in a run, experts say, and be made to choose otherwise."""

    @property
    def chooses_nothing(self) -> bool:
        """Whether a run before has shown that there is nothing to choose."""

    def chosen(
        self,
        probe: Probe,
        sink: Sink,
        given: Mapping[str, Array] | None = None,
        forced: Mapping[str, Array] | None = None,
    ) -> tuple[Choice, ...]:
        """Hand on the states of such a run, and say what was chosen in it. With `given`, each block
        runs on the state before; what is `forced`, by its name, is taken whatever numbers say.
        """


@runtime_checkable
class HasSwitches(Protocol):
    """Does things that can be turned off one by one, and can be made anew without: `bisect`."""

    def switches(self, probe: Probe) -> Sequence[Switch]:
        """What can be turned off, in order: what is turned off last takes most with it."""

    def without(self, off: Collection[str]) -> Backend:
        """The same with these turned off; its spec says so, and can be run by anybody."""
