"""The `trace` backend: states recorded earlier, here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from driftwalk.adapter import Backend, BackendInfo, Offer, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import UsageError
from driftwalk.spec import Spec
from driftwalk.states import OUTPUT, Point, Probe, State, Trace, same_bits
from driftwalk.traces.point_map import load_map

from .matching import AUTO, by_value

MAP = "a TOML file: which point each state is; or auto: found by value (docs/trace-format.md)"

Naming = Callable[[Trace, str, str], Trace]
"""A port's trace under the names of points; what depth and layer it was asked for."""


def naming(spec: Spec, model: object) -> Naming:
    """What `map=` says; a file is read now, so that a mistake in it is found at once."""
    named = spec.options.get("map")
    if named is None:
        return lambda trace, depth, layer: trace
    if named != AUTO:
        points = load_map(named)
        return lambda trace, depth, layer: points.renamed(trace)

    def matched(trace: Trace, depth: str, layer: str) -> Trace:
        from .torch_eager import TorchEager  # the one that knows what is expected

        with TorchEager(Spec("torch"), model) as eager:
            eager.look(depth, layer)
            return by_value(eager.trace(trace.probe), trace)

    return matched


class Recorded(Backend):
    """Gives back what was recorded, for the probe it was recorded with and no other."""

    name: ClassVar[str] = "trace"
    options: ClassVar[Mapping[str, str]] = {"map": MAP}
    observable: ClassVar[bool] = False

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec)
        if not spec.text:
            raise UsageError("Backend 'trace' needs a folder: trace:golden.trace.")
        self._model = model
        self._recorded = naming(spec, model)(Trace.load(spec.text), "block", "")
        self._trace()

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return [Offer("trace:FOLDER", True, "states recorded by `driftwalk record`")]

    def _trace(self) -> Trace:
        theirs = self._recorded.model.get("fingerprint")
        ours = getattr(self._model, "fingerprint", "")
        if theirs and ours and theirs != ours:
            raise UsageError(
                f"{str(self.spec)!r} was recorded from other weights than these: "
                f"{self._recorded.model.get('label', 'a model')} {theirs[:12]}, not {ours[:12]}."
            )
        return self._recorded

    @property
    def own_probe(self) -> Probe | None:
        return self._recorded.probe

    @property
    def info(self) -> BackendInfo:
        made = self._recorded.backend
        flags = {**made.flags, "recorded by": made.spec} if made.spec else dict(made.flags)
        flags |= {f"recorded on, {k}": v for k, v in self._recorded.environment.items()}
        return replace(made, spec=str(self.spec), name=self.name, flags=flags)

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        trace = self._trace()
        if probe.sha256 != trace.probe.sha256:
            raise UsageError(
                f"{str(self.spec)!r} was recorded with another probe: "
                f"{probe.difference(trace.probe)}. Leave the probe out to use the recorded one."
            )
        if sink is not None:
            for state in (*trace, *_unnamed(trace)):
                sink(state)
        return trace.outputs


def _unnamed(trace: Trace) -> list[State]:
    """Outputs of a trace that was recorded when the main one alone was a point."""
    states = []
    for name, array in trace.outputs.items():
        point = name if name.startswith(OUTPUT) else f"{OUTPUT}{name}"
        named = point in trace.names or name == "loss"
        if not named and not any(same_bits({"": s.array}, {"": array}) for s in trace):
            states.append(State(Point(point, f"output {name}"), array))
    return states
