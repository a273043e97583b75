"""Whether a state may depend on later tokens: said by the model, or seen in a run.

A model's own words are needed to call a leak a fault: of a run alone one can only say what is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...adapter import Backend
from ...dtypes import FORMATS, Array
from ...states import Probe, State

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel

ROUNDOFFS = 1024
"""Units of roundoff by which a mixture of experts may differ before the first differing token:
its matrices are as tall as the tokens that chose an expert are many, and so round otherwise.
One layer 768 wide was seen to need about 40, and layers add up."""


@dataclass(frozen=True)
class Causality:
    """None: it cannot be said, because two stacks look at each other or there are no tokens."""

    causal: bool | None
    by: str
    slack: float = 0.0
    """By how much, relative to a token's norm, equal tokens may still differ."""


def declared(model: LoadedModel) -> bool | None:
    """What the model says: all its attention modules, or its config."""
    config = model.config
    flags = {bool(m.is_causal) for m in model.module.modules() if hasattr(m, "is_causal")}
    if len(flags) == 1:
        return flags.pop()
    if flags:
        return None
    return True if getattr(config, "is_decoder", False) is True else None


def causality(model: LoadedModel, backend: Backend, probe: Probe) -> Causality:
    """Of one model; `probe` is a single row, run twice where the model itself says nothing."""
    ids = probe.inputs.get("input_ids")
    if ids is None or ids.ndim != 2 or any(name.startswith("decoder_") for name in probe.inputs):
        return Causality(None, "inputs are not one row of tokens that one stack reads")
    said = declared(model)
    slack = _slack(model, backend)
    if said is not None:
        return Causality(said, "the model's attention says so", slack)
    if ids.shape[1] < 2:
        return Causality(None, "one token alone says nothing")
    seen = _seen(backend, probe, slack)
    return Causality(seen, "seen when only the last token was changed", slack)


def _slack(model: LoadedModel, backend: Backend) -> float:
    from driftwalk_backends.precision import has_experts

    known = FORMATS.get(backend.info.dtype)
    return ROUNDOFFS * known.roundoff if known and has_experts(model.module) else 0.0


def _seen(backend: Backend, probe: Probe, slack: float) -> bool:
    """Whether nothing but the last token's states changes with the last token."""
    ids = np.array(probe.inputs["input_ids"])
    ids[0, -1] = ids[0, -2] if ids[0, -2] != ids[0, -1] else max(0, ids[0, -1] - 1)
    if ids[0, -1] == probe.inputs["input_ids"][0, -1]:
        ids[0, -1] += 1
    kept: dict[str, Array] = {}
    backend.stream(probe, lambda state: kept.update({state.point.name: state.array}))
    same: list[bool] = []
    last = ids.shape[1] - 1

    def check(state: State) -> None:
        old = kept.pop(state.point.name, None)
        if old is not None and old.ndim >= 3 and old.shape[1] == last + 1:
            same.append(leak(old, state.array, last, slack) == 0)

    backend.stream(Probe({**probe.inputs, "input_ids": ids}), check)
    return bool(same) and all(same)


def leak(one: Array, other: Array, start: int, slack: float = 0.0) -> float:
    """The largest difference before token `start`; zero where it is within the slack."""
    before, after = (state[:, :start].astype(np.float64) for state in (one, other))
    if start == 0 or np.array_equal(before, after, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.abs(before - after)
    found = float(np.nanmax(apart, initial=0.0)) or float("nan")
    scale = float(np.sqrt(np.mean(np.square(before))))
    return 0.0 if found <= slack * scale else found
