"""The `trace` backend: states recorded earlier, here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from driftwalk.adapter import Backend, BackendInfo, Offer, Sink
from driftwalk.decoding import TOKENS, Decoding
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
            eager.decode(None if trace.decoding is None else Decoding())
            return by_value(eager.trace(trace.probe), trace)

    return matched


class Recorded(Backend):
    """Gives back what was recorded, for the probe it was recorded with and no other."""

    name: ClassVar[str] = "trace"
    options: ClassVar[Mapping[str, str]] = {
        "map": MAP,
        "whole": "of a trace of steps: that of one run on the whole sequence",
    }
    observable: ClassVar[bool] = False

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec)
        if not spec.text:
            raise UsageError("Backend 'trace' needs a folder: trace:golden.trace.")
        self._model, self._plan = model, None
        named = naming(spec, model)
        self._recorded = named(Trace.load(spec.text), "block", "")
        whole = spec.options.get("whole")
        self._whole = named(Trace.load(whole), "block", "") if whole else None
        for trace in filter(None, (self._recorded, self._whole)):
            self._check_weights(trace)

    _plan: Decoding | None

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return [Offer("trace:FOLDER", True, "states recorded by `driftwalk record`")]

    def _check_weights(self, trace: Trace) -> None:
        theirs = trace.model.get("fingerprint")
        ours = getattr(self._model, "fingerprint", "")
        if theirs and ours and theirs != ours:
            raise UsageError(
                f"{str(self.spec)!r} was recorded from other weights than these: "
                f"{trace.model.get('label', 'a model')} {theirs[:12]}, not {ours[:12]}."
            )

    @property
    def own_probe(self) -> Probe | None:
        return self._recorded.probe

    @property
    def own_steps(self) -> Decoding | None:
        return self._recorded.decoding

    @property
    def has_whole(self) -> bool:
        return self._whole is not None

    @property
    def info(self) -> BackendInfo:
        made = self._recorded.backend
        flags = {**made.flags, "recorded by": made.spec} if made.spec else dict(made.flags)
        flags |= {f"recorded on, {k}": v for k, v in self._recorded.environment.items()}
        return replace(made, spec=str(self.spec), name=self.name, flags=flags)

    def decode(self, plan: Decoding | None) -> None:
        self._plan = plan

    def generate(self, probe: Probe, plan: Decoding, sink: Sink) -> Mapping[str, Array]:
        self._check_steps(plan)
        recorded = self._recorded.probe.inputs
        for name, array in probe.inputs.items():
            mine = recorded.get(name)
            if mine is None and name.endswith("position_ids"):  # as the mask says
                continue
            if mine is None or not np.array_equal(mine[:, : array.shape[1]], array):
                raise UsageError(
                    f"{str(self.spec)!r} was recorded with another prompt: its {name} is not what "
                    "was given. Leave the prompt out to use the recorded one."
                )
        for state in self._recorded:
            sink(state)
        return {name: array for name, array in recorded.items() if name in probe.inputs}

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        trace = self._asked_for(probe)
        if sink is not None:
            for state in (*trace, *_unnamed(trace)):
                sink(state)
        return trace.outputs

    def _asked_for(self, probe: Probe) -> Trace:
        """The trace of steps, or of one run; an error where it was made of other inputs."""
        if self._plan is not None and self._plan.chunks:
            self._check_steps(self._plan)
            self._check_tokens(probe, self._plan)
            return self._recorded
        trace = self._recorded if self._plan is None else self._whole
        if trace is None or trace.decoding is not None:
            raise UsageError(
                f"{str(self.spec)!r} was recorded step by step, and this asks for one run: "
                "`driftwalk generate` compares it."
            )
        asked = probe if self._plan is None else _without_positions(probe, trace.probe)
        if asked.sha256 != trace.probe.sha256:
            raise UsageError(
                f"{str(self.spec)!r} was recorded with another probe: "
                f"{probe.difference(trace.probe)}. Leave the probe out to use the recorded one."
            )
        return trace

    def _check_steps(self, plan: Decoding) -> None:
        mine = self._recorded.decoding
        if mine is None:
            raise UsageError(
                f"{str(self.spec)!r} was recorded in one run, and has no steps: "
                "`driftwalk record MODEL --steps N` records them (docs/trace-format.md)."
            )
        if mine.chunks != plan.chunks:
            raise UsageError(
                f"{str(self.spec)!r} was recorded in steps of {mine.words} tokens; this asks for "
                f"{plan.words}. Leave prompt and steps out to take them from the recording."
            )

    def _check_tokens(self, probe: Probe, plan: Decoding) -> None:
        """An error, with what to do, where it was fed another sequence."""
        mine = self._recorded.probe
        theirs = _without_positions(probe, mine)
        if not mine.difference(theirs):
            return
        name = next((n for n in TOKENS if n in mine.inputs and n in theirs.inputs), "")
        where = f"{mine.difference(theirs)} (first: recorded, second: asked for)"
        if name and mine.inputs[name].shape == theirs.inputs[name].shape:
            a, b = mine.inputs[name], theirs.inputs[name]
            others = np.argwhere((a != b).T)
            if len(others):
                at, row = map(int, others[0])
                step = next(n for n, (_, end) in enumerate(plan.steps(a.shape[1])) if at < end)
                where = f"token {a[row, at]} in step {step}, not {b[row, at]}"
        raise UsageError(
            f"{str(self.spec)!r} was fed other tokens than the reference chose: {where}. Both "
            "sides are fed the reference's: `driftwalk record MODEL --steps "
            f"{len(plan.chunks) - 1} -o reference.trace` writes them; feed its input:{name}, or "
            "record with --like reference.trace."
        )


def _without_positions(probe: Probe, recorded: Probe) -> Probe:
    """A probe without positions that driftwalk counted by the mask, where a recording has none."""
    kept = {
        name: array
        for name, array in probe.inputs.items()
        if name in recorded.inputs or not name.endswith("position_ids")
    }
    return replace(probe, inputs=kept)


def _unnamed(trace: Trace) -> list[State]:
    """Outputs of a trace that was recorded when the main one alone was a point."""
    states = []
    for name, array in trace.outputs.items():
        point = name if name.startswith(OUTPUT) else f"{OUTPUT}{name}"
        named = point in trace.names or name == "loss"
        if not named and not any(same_bits({"": s.array}, {"": array}) for s in trace):
            states.append(State(Point(point, f"output {name}"), array))
    return states
