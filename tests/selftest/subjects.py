"""Models that faults are put into, examined once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import zoo
from driftwalk.measure.norms import distance
from driftwalk.registry import create
from driftwalk.states import Probe, Trace
from driftwalk_backends.anatomy import Anatomy, examine
from driftwalk_backends.faults.planning import Fault, FaultyModel, Plan, plan
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model


@dataclass(frozen=True, eq=False)
class Subject:
    model: LoadedModel
    probe: Probe
    truth: Trace
    anatomy: Anatomy

    def plan(self, number: int = 200, seed: int = 0, dtype: str = "fp32") -> Plan:
        return plan(self.model, self.anatomy, dtype, number, seed)

    def first(self, kind: str) -> Fault:
        return next(fault for fault in self.plan().faults if fault.kind == kind)

    def effects(self, fault: Fault) -> set[str]:
        """The points whose computation differs in float64 when fed the clean states."""
        found: set[str] = set()
        given = {state.point.name: state.array for state in self.truth}

        def meet(state: object) -> None:
            name, array = state.point.name, state.array  # type: ignore[attr-defined]
            keep = self.probe.keep(name, array.shape)
            size = distance(given[name], None, keep).l2
            if not distance(array, given[name], keep).l2 <= 1e-14 * size:
                found.add(name)

        with create("truth", FaultyModel(self.model, fault)) as wrong:
            wrong.replay(self.probe, given, meet)  # type: ignore[attr-defined]
        return found


@cache
def subject(name: str) -> Subject:
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    with create("truth", model) as truth:
        trace = truth.trace(probe)
    layout = next(iter(model._layouts.values()))
    return Subject(model, probe, trace, examine(model, probe, layout))
