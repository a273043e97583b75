"""The `trace` backend: states recorded earlier, here or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from driftwalk.adapter import Backend, BackendInfo, Offer, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import UsageError
from driftwalk.spec import Spec
from driftwalk.states import Probe, Trace
from driftwalk.trace_file import load_trace


class Recorded(Backend):
    """Gives back what was recorded, for the probe it was recorded with and no other."""

    name: ClassVar[str] = "trace"
    observable: ClassVar[bool] = False

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec)
        if not spec.text:
            raise UsageError("Backend 'trace' needs a folder: trace:golden.trace.")
        self._model = model
        self._trace()

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return [Offer("trace:FOLDER", True, "states recorded by `driftwalk record`")]

    @cached_property
    def _recorded(self) -> Trace:
        return load_trace(self.spec.text)

    def _trace(self) -> Trace:
        found = self._recorded.model.get("fingerprint")
        known = getattr(self._model, "fingerprint", "")
        if found and known and found != known:
            raise UsageError(
                f"{str(self.spec)!r} was recorded from other weights than these: "
                f"{self._recorded.model.get('label', 'a model')} {found[:12]}, not {known[:12]}."
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
            for state in trace:
                sink(state)
        return trace.outputs
