"""A probe of a search judged as ever, or many of them looked at; both sides stay open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...adapter import Backend
from ...errors import BackendError
from ...result import Report
from ...stage import make_probe
from ...states import Probe
from ...tolerance import make_policy
from ..constants import UPHILL_STEPS, WORST_GOAL_SHARE
from .collecting import largest_use
from .looks import Look, fit, look_at
from .run import Verify


class Weighing:
    """One model and two sides, and what they say of probes."""

    def __init__(
        self, verify: Verify, model: Any, first: object, other: object, options: dict[str, Any]
    ) -> None:
        self._verify, self._model, self._sides = verify, model, (first, other)
        self._options = options
        self._policy = make_policy(options.get("policy", "calibrated"))
        self._activations: list[str] = []
        self._points: dict[str, str] = {}

    @property
    def model(self) -> Any:
        return self._model

    def make(self, given: object) -> Probe:
        return make_probe(self._model, given)

    def prepare(self, probe: Probe) -> None:
        """Learn which modules there are: those that a run was seen to call as activations, or
        before one, and the points that are taken from modules."""
        seen = self._report(probe, policy="dtype", blame=False).coverage.exercised
        self._activations = sorted({one.where for one in seen.driven}) if seen else []
        self.looks([probe])

    def looks(self, probes: Sequence[Probe]) -> tuple[Look | None, ...]:
        """What each of some probes comes to, without a truth."""
        first, other = self._sides
        if not isinstance(first, Backend) or not isinstance(other, Backend):
            raise BackendError(f"{first if not isinstance(first, Backend) else other} is not open.")
        looked = look_at(first, other, probes, self._policy)
        for point, module in looked.modules.items():
            self._points.setdefault(module, point)
        return looked.looks

    def used(self, probe: Probe) -> tuple[float, str]:
        """What the search goes by, and the module that has it; nothing is stored of probes that
        are soon forgotten."""
        report = self._report(probe, cache=False, **{**self._options, "blame": False})
        needed = (
            (row.tolerance.needed, row.point.module) for row in report.layers if row.tolerance
        )
        return _use(report), max(needed, key=lambda one: one[0], default=(0.0, ""))[1] or ""

    def goal(self, worst: str, rng: Any) -> str:
        """A module to drive farther: an activation, or that where most of an allowance is used."""
        paths = self._activations
        return str(
            worst if not paths or (worst and rng.random() < WORST_GOAL_SHARE) else rng.choice(paths)
        )

    def point_of(self, module: str) -> str:
        """The first point that is taken from a module; empty where none is."""
        return self._points.get(module, "")

    def uphill(
        self, probe: Probe, path: str, bounds: dict[str, float], rng: Any
    ) -> list[dict[str, Any]]:
        """Inputs that may drive a module farther; none where no gradient says how."""
        from driftwalk_backends.probe_sets.gradients import climbed, reworded

        wanted = fit(probe.inputs)
        if any(name in bounds for name in probe.inputs):
            step = float(rng.choice(UPHILL_STEPS))
            return climbed(self._model, probe, path, step, bounds, wanted, rng)
        return reworded(self._model, probe, path, wanted, rng)

    def report(self, probe: Probe) -> Report:
        return self._report(probe, **self._options)

    def _report(self, probe: Probe, **options: Any) -> Report:
        first, other = self._sides
        return self._verify(self._model, [other], first, probe, **options)[0]


def _use(report: Report) -> float:
    """The largest share of an allowance; what could not be verified is no drift."""
    found = largest_use(report)
    return 0.0 if found is None or report.verdict == "unverified" else found
