"""`verify` and `verify_all` as the world calls them: a verification, and what tasks add to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import verification
from .result import Report
from .tasks.bench.run import Timings
from .tasks.studies.effects import PATCHING, PROPAGATION, InUnitsOfMeaning
from .tasks.weights.cause import WeightsOfGuilty
from .tolerance import DEFAULT_POLICY, PolicyLike


def verify(
    model: object,
    candidate: object = "onnxruntime",
    reference: object = None,
    probe: object = None,
    policy: PolicyLike = DEFAULT_POLICY,
    depth: str = "block",
    blame: bool | str = "auto",
    **options: Any,
) -> Report:
    """Run one model on two backends and walk their layer states; see `verify_all` for options."""
    return verify_all(model, [candidate], reference, probe, policy, depth, blame, **options)[0]


def verify_all(
    model: object,
    candidates: Sequence[object],
    reference: object = None,
    probe: object = None,
    policy: PolicyLike = DEFAULT_POLICY,
    depth: str = "block",
    blame: bool | str = "auto",
    *,
    bench: int = 0,
    contrast: object = None,
    propagation: bool = False,
    patch: bool = False,
    **options: Any,
) -> list[Report]:
    """Verify several candidates against one reference, whose trace is made once.

    `bench` is how many plain runs of each backend are timed afterwards. `contrast` is a pair of
    inputs, or True for the built-in one: drift is then also told as a share of their distance.
    `propagation` holds the drift against what the truth's Jacobian predicts; `patch` counts the
    flips that each restored layer of the candidate takes away, one run for each. All other options
    are those of `verification.verify_all` (`allow_missing`, `cache`, `spill`, `witness`,
    `budget`, `command`, `progress`) and of `stage.Setting` (`blocks`, `trust_remote_code`, `batch`,
    `length`, `seed`, `stream`).
    """
    additions = (
        WeightsOfGuilty(),
        *((InUnitsOfMeaning(contrast),) if contrast else ()),
        *((PROPAGATION,) if propagation else ()),
        *((PATCHING,) if patch else ()),
        *((Timings(bench),) if bench else ()),
    )
    sides = (candidates, reference, probe, policy, depth, blame)
    return verification.verify_all(model, *sides, additions=additions, **options)
