"""What every backend has that feeds a torch module step by step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from driftwalk.adapter import Backend, LooksInside, Sink
from driftwalk.decoding import Decoding
from driftwalk.dtypes import Array
from driftwalk.registry import create
from driftwalk.states import Probe
from driftwalk.switches import Switch

from .decoding import Watch, eagerly, generated
from .eager_run import as_arrays
from .hooks import TensorSink
from .tensors import to_numpy
from .torch_runtime import TorchRuntime
from .torch_switching import eager_switches, spec_without


class TorchDecoding(TorchRuntime):
    """A module that is run all at once, or decodes, as it is told to."""

    _decoding: Decoding | None = None

    def decode(self, plan: Decoding | None) -> None:
        self._decoding = plan

    def generate(self, probe: Probe, plan: Decoding, sink: Sink) -> Mapping[str, Array]:
        with self.at_work(probe) as (module, inputs, layout):
            grown: dict[str, Any] = {}
            watch = self._watch(module, plan)

            def run(hand_on: TensorSink) -> Any:
                output, whole = generated(module, inputs, plan, layout, hand_on, watch)
                grown.update(whole)
                return output

            as_arrays(run, sink)
            return {n: to_numpy(v) for n, v in grown.items() if n in probe.inputs}

    def _watch(self, module: nn.Module, plan: Decoding) -> Watch:
        """How one step is made, all of its states seen."""
        return eagerly(module)

    def switches(self, probe: Probe) -> tuple[Switch, ...]:
        """Nothing, of a module that was given: it runs as it is."""
        if self._given is not None:
            return ()
        return tuple(eager_switches(self.spec, self._model.module))

    def without(self, off: Collection[str]) -> Backend:
        made = create(spec_without(self.spec, off), self._model)
        if isinstance(made, LooksInside):
            made.look(*self.looks_at)
        return made

    @property
    def _plan(self) -> Decoding | None:
        """How sequences are fed; as all runs of the model are, where nothing else was said."""
        return self._decoding or self._model.decoding

    @property
    def _asked_for(self) -> Mapping[str, Any]:
        plan = self._plan
        return {} if plan is None or plan.cache == "none" else {"use_cache": True}
