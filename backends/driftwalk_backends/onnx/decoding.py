"""Decoding on a cache with graphs: what every backend of ONNX Runtime has that can."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

from driftwalk.adapter import Sink
from driftwalk.decoding import Decoding
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.spec import Spec
from driftwalk.states import Probe, State

from ..cache_points import kept
from ..calls import call_as_it_is, on_device, with_floats
from ..choosing import likeliest
from ..decoding import Steps
from ..layout import Layout
from ..tensors import TORCH_DTYPES, to_numpy
from .stepping import SteppedGraphs

CACHES = ("dynamic", "none")
OUTPUTS = ("logits", "encoder_last_hidden_state")
"""Outputs of a graph that the next step needs."""
HandOn = Callable[[dict[str, Array], Sink | None], dict[str, Array]]
"""Of all that a graph gave: the states to a sink, the model's own outputs back."""


class DecodesGraphs:
    """The protocol `Decodes`, for graphs that take a past."""

    spec: Spec
    _plan: Decoding | None = None
    _has_decoded = False

    def decode(self, plan: Decoding | None) -> None:
        if plan is not None and plan.cache not in CACHES:
            raise BackendError(
                f"Backend {self.spec} has no {plan.cache} cache: what its graph keeps grows with "
                f"the sequence. It has {' and '.join(CACHES)}."
            )
        self._plan = plan
        self._has_decoded = self._has_decoded or plan is not None

    def generate(self, probe: Probe, plan: Decoding, sink: Sink) -> Mapping[str, Array]:
        self.decode(plan)
        inputs = self._stepped(probe, plan, sink, grows=True)[1]
        return {name: to_numpy(value) for name, value in inputs.items() if name in probe.inputs}

    def _decoded(self, probe: Probe, plan: Decoding, sink: Sink | None) -> dict[str, Array]:
        return self._stepped(probe, plan, sink, grows=False)[0]

    @abstractmethod
    def _graphs(
        self, probe: Probe, plan: Decoding, traced: bool
    ) -> tuple[SteppedGraphs, HandOn, Layout, str]:
        """The graphs for sequences like a probe's, what their outputs are, and their dtype."""

    def _stepped(
        self, probe: Probe, plan: Decoding, sink: Sink | None, grows: bool
    ) -> tuple[dict[str, Array], Mapping[str, Any]]:
        graphs, hand_on, layout, dtype = self._graphs(probe, plan, sink is not None)
        inputs = with_floats(on_device(probe, "cpu"), TORCH_DTYPES[dtype])
        steps = Steps(graphs, inputs, plan, likeliest if grows else None)
        with torch.no_grad():
            steps.outputs(lambda _, given: call_as_it_is(graphs, given))
        parts: dict[str, list[torch.Tensor]] = {}
        for named in graphs.seen:
            for name, array in named.items():
                parts.setdefault(name, []).append(torch.from_numpy(array))
        joined = {
            name: steps.joined(name, tensors).numpy()
            for name, tensors in parts.items()
            if len(tensors) in (1, len(steps.counts))
        }
        outputs = hand_on(joined, sink)
        if sink is not None:
            for point, tensor in kept(steps.cache, layout, steps.past + steps.tokens):
                sink(State(point, to_numpy(tensor)))
        return outputs, steps.inputs
