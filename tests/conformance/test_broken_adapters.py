"""Adapters that break one promise each: the suite, or Backend's own checks, must say which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from driftwalk import registry
from driftwalk.adapter import Sink
from driftwalk.conformance.suite import BackendConformance
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.states import Point, Probe, State
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_eager import TorchEager

MODEL = "demo:decoder"


class Views(TorchEager):
    """Hands on one buffer that the next state overwrites."""

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        if sink is None:
            return super()._forward(probe, None)
        buffers: dict[tuple[int, ...], Array] = {}

        def reuse(state: State) -> None:
            buffer = buffers.setdefault(state.array.shape, np.empty_like(state.array))
            buffer[...] = state.array
            sink(State(state.point, buffer))

        return super()._forward(probe, reuse)


class KeptBuffers(TorchEager):
    """A buffer per point, written again by the next run."""

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        if sink is None:
            return super()._forward(probe, None)
        buffers: dict[str, Array] = self.__dict__.setdefault("buffers", {})

        def reuse(state: State) -> None:
            buffer = buffers.setdefault(state.point.name, np.empty_like(state.array))
            buffer[...] = state.array
            sink(State(state.point, buffer))

        return super()._forward(probe, reuse)


class Rewritten(TorchEager):
    """Changes what passes through the sink; `change` gives the states to hand on instead."""

    def change(self, states: list[State]) -> list[State]:
        raise NotImplementedError

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        states: list[State] = []
        outputs = super()._forward(probe, None if sink is None else states.append)
        if sink is not None:
            for state in self.change(states):
                sink(state)
        return outputs


class Twice(Rewritten):
    def change(self, states: list[State]) -> list[State]:
        return [*states, states[1]]


class Silent(Rewritten):
    def change(self, states: list[State]) -> list[State]:
        return []


class NotArrays(Rewritten):
    def change(self, states: list[State]) -> list[State]:
        return [State(s.point, s.array.tolist()) for s in states]  # type: ignore[arg-type]


class Sorted(Rewritten):
    """By name, as mappings do it: `norm` still last, but layers the other way round."""

    def change(self, states: list[State]) -> list[State]:
        return sorted(states, key=lambda state: state.point.name, reverse=True)


class Swapped(Rewritten):
    """Right names, wrong tensors."""

    def change(self, states: list[State]) -> list[State]:
        points = [state.point for state in states]
        points[2], points[3] = points[3], points[2]
        swapped = [State(p, s.array) for p, s in zip(points, states, strict=True)]
        return sorted(swapped, key=lambda s: [t.point.name for t in states].index(s.point.name))


class OwnNames(Rewritten):
    def change(self, states: list[State]) -> list[State]:
        return [
            State(Point(s.point.name.replace("layer.", "transformer.h.")), s.array) for s in states
        ]


class OneMissing(Rewritten):
    def change(self, states: list[State]) -> list[State]:
        return states[:3] + states[4:]


class Upcast(Rewritten):
    """Computes in half precision and says float32."""

    def change(self, states: list[State]) -> list[State]:
        return [State(s.point, s.array.astype(np.float16).astype(np.float32)) for s in states]


class WrongDtype(Rewritten):
    def change(self, states: list[State]) -> list[State]:
        return [State(s.point, s.array.astype(np.float64)) for s in states]


class Random(Rewritten):
    def change(self, states: list[State]) -> list[State]:
        noise = np.random.default_rng().standard_normal
        return [
            State(s.point, s.array + 1e-7 * noise(s.array.shape).astype(np.float32)) for s in states
        ]


class Observed(TorchEager):
    """Its outputs depend on whether anybody looks."""

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        outputs = super()._forward(probe, sink)
        return outputs if sink is not None else {n: 1.01 * a for n, a in outputs.items()}


class DropsMask(TorchEager):
    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        rest = {n: a for n, a in probe.inputs.items() if n != "attention_mask"}
        return super()._forward(Probe(rest), sink)


class LeavesHooks(TorchEager):
    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        self._model.module.register_forward_hook(lambda *_: None)
        return super()._forward(probe, sink)


class Trains(TorchEager):
    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        self._model.module.requires_grad_(False)
        return super()._forward(probe, sink)


class EditsWeights(TorchEager):
    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        outputs = super()._forward(probe, sink)
        next(self._model.module.parameters()).data[0] += 1e-3
        return outputs


class Swallows(TorchEager):
    """Turns whatever a sink raises into an error of its own."""

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        try:
            return super()._forward(probe, sink)
        except Exception as error:
            raise BackendError("something failed") from error


class AnyDevice(TorchEager):
    def __init__(self, spec: Any, model: object) -> None:
        super().__init__(type(spec)("torch"), model)


def adapt(monkeypatch: pytest.MonkeyPatch, kind: type) -> BackendConformance:
    """The suite for a backend class that is registered under the name `broken`."""
    named = type(kind.__name__, (kind,), {"name": "broken"})
    known = {**registry.known_backends(), "broken": f"{__name__}:unused"}
    monkeypatch.setattr(registry, "known_backends", lambda: known)
    load = registry.load_target
    monkeypatch.setattr(
        registry, "load_target", lambda t: named if t.endswith(":unused") else load(t)
    )
    return type("Suite", (BackendConformance,), {"spec": "broken", "models": (MODEL,)})()


@pytest.mark.parametrize(
    ("kind", "test", "says"),
    [
        (Views, "test_states_are_copies", "embed changed after the run"),
        (KeptBuffers, "test_states_are_copies", "changed after a run on another probe"),
        (Sorted, "test_states_come_in_order", "outputs not last"),
        (Swapped, "test_states_are_those_of_the_model", "first divergence at layer.1"),
        (OwnNames, "test_names_are_canonical", "'transformer.h.0' is no canonical name"),
        (OneMissing, "test_states_come_in_order", "not in order of execution"),
        (OneMissing, "test_points_are_those_of_eager_torch", "eager PyTorch has"),
        (Upcast, "test_dtype_is_honest", "computed in fp16, handed on as fp32"),
        (WrongDtype, "test_dtype_is_honest", "info.dtype is fp32, embed is fp64"),
        (Random, "test_repeats_bit_for_bit", "run twice: embed is not the same"),
        (Observed, "test_plain_outputs_equal_instrumented_ones", "changed output 'logits' by"),
        (DropsMask, "test_masks_are_respected", "is attention_mask passed on?"),
        (LeavesHooks, "test_leaves_model_and_probe_alone", "hooks are left on"),
        (Trains, "test_leaves_model_and_probe_alone", "requires_grad were changed"),
        (EditsWeights, "test_leaves_model_and_probe_alone", "weights or attributes were changed"),
        (Swallows, "test_works_after_a_sink_that_raised", "expected _Stop, got BackendError"),
        (AnyDevice, "test_refuses_unknown_devices", "nothing was raised"),
        (AnyDevice, "test_says_what_it_is", "asked for 'broken'"),
    ],
)
def test_the_suite_catches(
    monkeypatch: pytest.MonkeyPatch, kind: type, test: str, says: str
) -> None:
    suite = adapt(monkeypatch, kind)
    run: Callable[[str], None] = getattr(suite, test)
    with pytest.raises(AssertionError) as caught:
        run(MODEL)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Twice, "gave point 'layer.0' twice"),
        (Silent, "gave no states at all"),
        (NotArrays, "gave a list at 'embed'; a state is a numpy array"),
    ],
)
def test_backend_itself_refuses(monkeypatch: pytest.MonkeyPatch, kind: type, says: str) -> None:
    suite = adapt(monkeypatch, kind)
    model = open_model(MODEL)
    with registry.create("broken", model) as broken, pytest.raises(BackendError, match=says):
        broken.trace(make_probe(model))
    with pytest.raises(BackendError, match=says):
        suite.test_states_come_in_order(MODEL)
