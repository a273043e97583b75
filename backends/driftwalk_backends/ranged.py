"""`torch,ranges=2` and the like: the blocks of one model on several nodes of a Ray cluster.

What comes out is what the same backend gives in one process, bit by bit: range_nodes.py has the
nodes, block_ranges.py what each of them does. The points are found here, in one run that streams
the folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from driftwalk.adapter import Backend, BackendInfo, Offer, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import BackendUnavailable, UsageError
from driftwalk.exercised import Exercised
from driftwalk.registry import create
from driftwalk.spec import Spec
from driftwalk.states import Probe, State

from .block_ranges import Blocks
from .depth import Looks
from .loaded import LoadedModel
from .range_nodes import NOT_INSTALLED, Made, NodeModel, Nodes, Order
from .ray_cluster import installed
from .sources import torch_model
from .torch_eager import TorchEager
from .truth import Truth


class Ranged(Looks, Backend):
    """A backend of torch whose blocks run on several nodes."""

    name: ClassVar[str] = "torch"
    options: ClassVar[Mapping[str, str]] = {**TorchEager.options, **Truth.options}

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec)
        self._count = spec.count("ranges") or 1
        self._address = spec.options.get("address", "auto")
        if "compile" in spec.options or not (spec.device or "cpu").startswith("cpu"):
            raise UsageError(
                f"{spec}: ranges=... runs eagerly, on the CPUs of nodes: torch:cpu:DTYPE, "
                "emulated:DTYPE."
            )
        self._model = torch_model(model)
        NodeModel.of(self._model)
        own = {k: v for k, v in spec.options.items() if k not in ("ranges", "address")}
        made = create(replace(spec, options=own), self._model)
        assert isinstance(made, TorchEager)
        self._local = made
        """The same backend in this process: it finds the points, and says what it is."""
        if not installed():
            raise BackendUnavailable(NOT_INSTALLED)
        self._nodes: Nodes | None = None
        self._flags: dict[str, str] = {}

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return ()

    @property
    def info(self) -> BackendInfo:
        local = self._local.info
        flags = {**local.flags, **self._flags, "ranges": str(self._count)}
        return replace(local, spec=str(self.spec), flags=flags)

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        return self._local.outputs_skipped

    def shows(self, model: LoadedModel) -> bool:
        """Whether its states are those of the model as it is: the ranges change no bit."""
        return self._local.shows(model) and self._look == self._local._look

    def ranges_of(self, model: object) -> str:
        """The options that ask for these ranges on these nodes."""
        asked = {k: v for k, v in self.spec.options.items() if k in ("ranges", "address")}
        return str(Spec("", options=asked)) if model is self._model else ""

    def exercised(self, probe: Probe) -> Exercised | None:
        return self._local.exercised(probe)

    def unrepeatable(self, probe: Probe) -> str | None:
        return self._local.unrepeatable(probe)

    def replay(self, probe: Probe, given: Mapping[str, Array], sink: Sink) -> None:
        """Run each block on the given previous state, on the node that has it."""
        self._over_ranges("replay", probe, sink, given=dict(given))

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        made = self._over_ranges("run" if sink is None else "stream", probe, sink)
        return {name: array.copy() for name, array in made[-1].items()}

    def _over_ranges(self, how: str, probe: Probe, sink: Sink | None, **more: Any) -> list[Any]:
        """What the method gives on each node; the states of all go to the sink, in order."""
        with self._local.at_work(probe) as (_, _, layout):
            pass
        if self._model.drawing:
            raise UsageError(
                f"{self._model.label} draws random numbers in {', '.join(self._model.drawing)}: "
                "ranges of its blocks would draw others. Run it without ranges=..."
            )
        blocks = Blocks.of(layout)
        ranges = blocks.cut(self._model.module, self._count)
        if self._nodes is None:
            with self.progress.stage(f"{self.spec}: starting {self._count} nodes", extra=True):
                self._nodes = Nodes.of(self._address, self._count, self._model)
        self._nodes.check(layout, ranges)
        order = Order(self._spec_there, self._look, how, probe, more, layout)
        given: list[Any] = []
        flags: list[Mapping[str, str]] = []
        asked = self._nodes.run(order, ranges)
        for number, some in enumerate(ranges):
            what = f"range {number + 1} of {len(ranges)} ({blocks.name(some)})"
            with self.progress.stage(f"{self.spec}: {what}", extra=True):
                made: Made = self._nodes.get(number, asked.pop(0), f"run {what}")
                while made.states and sink is not None:
                    state: State = self._nodes.get(number, made.states.pop(0), f"run {what}")
                    # Ray's own memory is small, and shared.
                    sink(State(state.point, state.array.copy()))
            given.append(made.given)
            flags.append(made.flags)
        self._flags = _joined(flags) | {"nodes": ", ".join(self._nodes.names)}
        return given

    @property
    def _spec_there(self) -> str:
        """The backend on a node: no weight is copied, and as many threads work as would here."""
        usual = {"stream": "on", "threads": str(torch.get_num_threads())}
        known = {k: v for k, v in usual.items() if k in self._local.options}
        return str(replace(self.spec, options={**known, **self._local.spec.options}))

    def _close(self) -> None:
        self._local.close()
        if self._nodes is not None:
            self._nodes.close(self._spec_there)
            self._nodes = None


class RangedTruth(Ranged):
    """The truth, in ranges."""

    name: ClassVar[str] = "truth"

    def jittered(self, probe: Probe, roundoff: float, sink: Sink) -> None:
        self._over_ranges("jittered", probe, sink, roundoff=roundoff)

    def tipped(
        self, probe: Probe, reach: float, sink: Sink, given: Mapping[str, Array] | None = None
    ) -> int:
        more = {"reach": reach, "given": None if given is None else dict(given)}
        return sum(self._over_ranges("tipped", probe, sink, **more))


def _joined(flags: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The flags of all nodes; where they differ, all values."""
    names = dict.fromkeys(name for one in flags for name in one)
    return {n: " / ".join(dict.fromkeys(one[n] for one in flags if n in one)) for n in names}
