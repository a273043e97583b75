"""Predicted propagation: the candidate's own errors, carried through the truth's Jacobian.

It needs of the candidate only its states. The truth runs four or five times: plain, on the
candidate's states, and with two or three sets of tangents.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...adapter import Backend
from ...dtypes import Array
from ...effects import Carried, Propagation
from ...errors import BackendError
from ...judge.drill import looking
from ...judge.replay import replay_trace
from ...measure.norms import ratio
from ...states import OUTPUT, Probe, State, Trace

if TYPE_CHECKING:
    from driftwalk_backends.torch_eager import TorchEager

States = dict[str, Array]


def propagation(
    truth: Backend, candidate: Backend, probe: Probe, source: str | None = None
) -> Propagation:
    """Predicted and measured inherited drift at every point.

    `source` is a layer whose own error is also followed alone, to tell it from what others add.
    """
    from driftwalk_backends.torch_eager import TorchEager

    if not isinstance(truth, TorchEager):
        raise BackendError(f"{truth!r} has no derivatives.")
    start = time.perf_counter()
    with looking(candidate, "block"), looking(truth, "block"):
        met, exact = candidate.trace(probe), truth.trace(probe)
        given, made = _given(met, exact), _replayed(truth, met, exact)
    points = [state.point.name for state in exact if state.point.name in given]
    if not points:
        raise BackendError("the candidate shares no state with the truth.")
    introduced = {name: _counted(probe, name, given[name] - made[name]) for name in points}
    error = {name: _counted(probe, name, given[name] - exact[name]) for name in points}
    sizes = {name: _size(array) for name, array in introduced.items()}
    followed = {name: introduced[name] for name in points if name == source}
    predicted = _tangents(truth, probe, introduced, add=True)
    step = _tangents(truth, probe, error, add=False)
    alone = _tangents(truth, probe, followed, add=True) if followed else {}
    layers = []
    for name in points:
        inherited = _counted(probe, name, made[name] - exact[name])
        layers.append(
            Carried(
                point=name,
                measured=_size(inherited),
                predicted=_size(predicted[name]),
                off=ratio(_size(predicted[name] - inherited), _size(inherited)),
                step=_size(step[name]),
                source=_size(alone[name]) if alone else 0.0,
                introduced=sizes[name],
            )
        )
    return Propagation(next(iter(followed), ""), tuple(layers), time.perf_counter() - start)


def _given(met: Trace, exact: Trace) -> States:
    """The candidate's states that can stand in the truth's place, in float64."""
    return {
        state.point.name: state.array.astype(np.float64)
        for state in met
        if (true := exact.state(state.point.name)) is not None
        and true.array.shape == state.array.shape
        and not state.point.name.startswith(OUTPUT)
    }


def _replayed(truth: Backend, met: Trace, exact: Trace) -> States:
    """X_n(c_{n-1}) at every point."""
    from dataclasses import replace

    made: States = {}

    def keep(state: State) -> None:
        made[state.point.name] = state.array

    fitting = tuple(
        s
        for s in met
        if (true := exact.state(s.point.name)) is None or true.array.shape == s.array.shape
    )
    replay_trace(truth, replace(met, states=fitting), keep)
    return made


def _tangents(truth: TorchEager, probe: Probe, given: Mapping[str, Array], *, add: bool) -> States:
    """J_n d at every point, padding left out."""
    from driftwalk_backends.jacobians import carried

    found: States = {}

    def keep(state: State) -> None:
        found[state.point.name] = _counted(probe, state.point.name, state.array)

    carried(truth, probe, given, keep, add=add)
    return found


def _counted(probe: Probe, name: str, array: Array) -> Array:
    """The array with padding set to zero: what stands there is nobody's error."""
    keep = probe.keep(name, array.shape)
    if keep is None:
        return array
    return np.where(keep.reshape(keep.shape + (1,) * (array.ndim - keep.ndim)), array, 0.0)


def _size(array: Array) -> float:
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(array.ravel()))
