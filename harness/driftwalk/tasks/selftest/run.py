"""Mutation testing for a numerical gate: inject known faults, and see which of them it catches.

Each fault goes into a copy of the model; the candidate runs the copy, and is judged as `verify`
judges it, with the calibrated policy and blame. What a fault really does is known from float64:

    effect(n)   |X'_n(x_{n-1}) - X_n(x_{n-1})|     X' is the faulty copy's block, x the clean truth
    owed        the effect exceeds YARDSTICKS times the yardstick's introduced error plus the floor
    right       the first point, of those that use what was changed, that has an effect at all

A fault that is owed must be caught and placed at the right point; one that is not may hide in the
noise of honest arithmetic. One without any effect in float64 is listed apart and counts nowhere.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ...adapter import Backend, BackendInfo
from ...environment import head
from ...errors import BackendError, DriftwalkError, UsageError
from ...judge.blame import blame, root_cause
from ...judge.calibrate import Calibration
from ...judge.constants import YARDSTICKS
from ...judge.gate import run_verdict
from ...judge.replay import replay_trace
from ...judge.walk import Walk, coverage
from ...judge.witness import Witness
from ...measure.norms import ZERO, Norms, ratio
from ...progress import Progress
from ...registry import create
from ...result import RunVerdict
from ...spec import Spec
from ...stage import Setting, open_stage
from ...states import State, Trace
from ...tolerance import make_policy
from ..constants import NO_EFFECT
from .result import Count, Outcome, SelfTest, Sensitivity, Trial
from .trusted import LIES, tell_lies

if TYPE_CHECKING:
    from driftwalk_backends.faults.fault import Fault
    from driftwalk_backends.faults.planning import FaultyModel
    from driftwalk_backends.faults.trusted.lie import Weighed

FAULTS = 66
"""Three of every kind and variant; seconds on a small model with a torch candidate."""
CANNOT_TAKE_FAULTS = ("trace", "command", "truth")


def selftest(
    model: object,
    candidate: str = "torch",
    faults: int = FAULTS,
    seed: int = 0,
    probe: object = None,
    *,
    cache: bool = True,
    trusted: int = LIES,
    command: str = "",
    progress: Progress | None = None,
    **setting: Any,
) -> SelfTest:
    """Inject `faults` seeded faults, one at a time, and judge the candidate with each.

    `trusted` is how many lies of each kind are told: faults in what the gate trusts (trusted.py).
    The `setting` is what `stage.Setting` takes: `blocks`, `trust_remote_code`, `batch`, `length`.
    """
    from driftwalk_backends.anatomy import examine
    from driftwalk_backends.faults.graph import faulty_backend
    from driftwalk_backends.faults.planning import KINDS, FaultyModel, plan
    from driftwalk_backends.faults.trusted.lie import Ground

    if faults < 1:
        raise UsageError(f"faults={faults}: expected 1 or more.")
    if trusted < 0:
        raise UsageError(f"trusted={trusted}: expected 0 or more.")
    if (name := Spec.parse(candidate).name) in CANNOT_TAKE_FAULTS:
        raise UsageError(
            f"Candidate {name!r} runs no copy of a model: no fault can be put into it."
        )
    start, show = time.perf_counter(), progress or Progress()
    show.expect(4 + faults)
    asked = Setting.asked(model, probe, **setting)
    with open_stage(asked, (candidate,), show=show) as stage, ExitStack() as opened:
        loaded, (clean,), fixed = stage.torch_model, stage.backends, stage.probe
        with show.stage("reference: torch"), create("torch", loaded) as reference:
            trace = reference.trace(fixed)
        witness = Witness(loaded, fixed, cache, show)
        opened.callback(witness.close)
        gate = _Gate(witness, clean.info, reference, trace)
        with show.stage(f"the clean candidate: {clean.spec}"):
            gate.check_clean(clean)
        inputs = loaded.inputs(loaded.module, fixed, "cpu")
        layout = loaded.layout(loaded.module, inputs, _unknown_layout)
        anatomy = examine(loaded, fixed, layout)
        planned = plan(loaded, anatomy, clean.info.dtype, faults, seed)
        trials = []
        for number, fault in enumerate(planned.faults, start=1):
            with show.stage(f"fault {number} of {len(planned.faults)}: {fault.description}"):
                try:
                    faulty = FaultyModel(loaded, fault)
                    trials.append(gate.try_fault(faulty, faulty_backend(clean, faulty, fixed)))
                except DriftwalkError as error:
                    trials.append(_trial(fault, "not_built", note=str(error)))
        ground = Ground(loaded, fixed, anatomy, clean, seed, gate.weigh, gate.is_plain)
        lies = tell_lies(ground, trusted, show)
        info = clean.info
    return SelfTest(
        **head(command, loaded.describe()),
        probe=fixed.sha256,
        candidate=info,
        seed=seed,
        k=YARDSTICKS,
        trials=tuple(trials),
        kinds=tuple(Count.of(kind, trials) for kind in KINDS if kind not in planned.absent),
        layers=tuple(_sensitivity(point, trials, gate.calibration) for point in trace.names),
        not_applicable={**planned.absent, **lies.absent},
        trusted=lies.trials,
        trusted_kinds=lies.kinds,
        seconds=time.perf_counter() - start,
    )


class _Gate:
    """The gate as `verify` runs it, with the truth, the reference and the calibration shared."""

    def __init__(
        self, witness: Witness, info: BackendInfo, reference: Backend, trace: Trace
    ) -> None:
        self._dtype = info.dtype
        self.calibration = _needed(witness, info.dtype)
        _needed(witness, trace.backend.dtype)
        self._witness = witness
        self._probe = trace.probe
        self._runs = reference
        self._reference = trace
        self._policy = make_policy("calibrated")

    def _judge(self, candidate: Backend) -> tuple[RunVerdict, str | None, str | None]:
        """Verdict, first divergence and root cause of one candidate."""
        trace = candidate.trace(self._probe)
        judged = self._witness.judged(self._reference)
        walk = Walk(self._reference, candidate.info, self._policy, (), self.calibration, judged)
        walk.meet_all(trace, self._runs)
        layers = walk.layers()
        verdict, _ = run_verdict(layers, coverage(layers), {})
        first = next((layer.point.name for layer in layers if not layer.ok), None)
        cause = root_cause(blame(self._witness.truth, self.calibration, trace), layers)
        return verdict, first, cause

    def check_clean(self, candidate: Backend) -> None:
        """A gate that cries without a fault can say nothing about faults."""
        verdict, first, cause = self._judge(candidate)
        if verdict != "pass" or cause is not None:
            raise BackendError(
                f"{candidate.spec} drifts from the truth without any fault (verdict {verdict}, "
                f"first divergence {first}, root cause {cause}), so catching a fault would prove "
                "nothing. Run `driftwalk verify` on it first."
            )

    def try_fault(self, faulty: FaultyModel, candidate: Backend) -> Trial:
        """What the fault does in float64, and what the gate says of the candidate that has it."""
        with candidate:
            weighed = self.weigh(faulty, self._dtype)
            if weighed is None:
                return _trial(faulty.fault, "no_effect")
            verdict, first, cause = self._judge(candidate)
        outcome: Outcome = "missed" if weighed.excess > 1 else "hidden"
        if verdict != "pass" or cause is not None:
            outcome = "placed" if cause == weighed.right else "misplaced"
        return _trial(
            faulty.fault,
            outcome,
            right=weighed.right,
            effect=weighed.effect,
            excess=weighed.excess,
            verdict=verdict,
            first_divergence=first,
            root_cause=cause,
        )

    def weigh(self, faulty: FaultyModel, dtype: str) -> Weighed | None:
        """What a fault does in float64, compared with honest arithmetic of a dtype."""
        from driftwalk_backends.faults.trusted.lie import Weighed

        calibration = _needed(self._witness, dtype)
        with create("truth", faulty) as wrong:
            effects = self._effects(wrong, calibration)
        fault = faulty.fault
        right = next((p for p in fault.points if self._is_seen(p, effects[p])), None)
        if right is None:
            return None
        effect = ratio(effects[right].l2, calibration.size(right).l2)
        return Weighed(fault, right, effects[right].over(calibration.allowed_own(right))[0], effect)

    def is_plain(self, candidate: Backend) -> bool:
        """Whether the dtype table alone, without any witness, shows that a candidate is wrong."""
        walk = Walk(self._reference, candidate.info, make_policy("dtype"))
        with candidate:
            walk.meet_trace(candidate.trace(self._probe))
        return not all(row.ok for row in walk.layers())

    def _effects(self, wrong: Backend, calibration: Calibration) -> dict[str, Norms]:
        """What each block of the faulty copy makes of the truth's states, against the truth."""
        effects = dict.fromkeys(calibration.truth.names, ZERO)

        def meet(state: State) -> None:
            name = state.point.name
            true = calibration.truth.state(name)
            if true is not None:
                effects[name] = calibration.own_error(name, state.array, true.array)

        replay_trace(wrong, calibration.truth, meet)
        return effects

    def _is_seen(self, point: str, effect: Norms) -> bool:
        own = self.calibration.own.get(point)
        return own is None or effect.over(own.size.scaled(NO_EFFECT))[0] > 1


def _needed(witness: Witness, dtype: str) -> Calibration:
    calibration = witness.calibration(dtype)
    if calibration is None:
        why = witness.doubt(dtype) or " ".join(witness.notes(dtype))
        raise BackendError(f"A self-test needs the calibrated policy. {why}")
    return calibration


def _unknown_layout(**extra: object) -> object:
    raise BackendError("The reference ran, but left no points behind: a bug in driftwalk.")


def _trial(fault: Fault, outcome: Outcome, **judged: object) -> Trial:
    return Trial(
        fault.kind,
        fault.target,
        fault.description,
        fault.points,
        fault.structural,
        outcome,
        **judged,  # type: ignore[arg-type]
    )


def _sensitivity(point: str, trials: list[Trial], calibration: Calibration) -> Sensitivity:
    ours = [trial for trial in trials if trial.right == point]
    caught = [trial.effect for trial in ours if trial.caught]
    missed = [trial.effect for trial in ours if not trial.caught]
    allowed = calibration.allowed_own(point)
    return Sensitivity(
        point,
        len(ours),
        min(caught, default=None),
        max(missed, default=None),
        ratio(allowed.l2, calibration.size(point).l2),
    )
