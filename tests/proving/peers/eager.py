"""Peers that compare tensors, however these were made."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from . import graphs
from .answer import Answer
from .layers import Recorded, both, dtype_of, outputs, recorded


def assert_close(
    reference: nn.Module,
    candidate: nn.Module | None,
    inputs: Mapping[str, Any],
    graph: Path | None,
) -> Answer:
    """`torch.testing.assert_close`, layer after layer, until one fails."""
    left, right = _sides(reference, candidate, inputs, graph)
    if left.keys() != right.keys():
        return Answer("differs", why=f"outputs {', '.join(left)} became {', '.join(right)}")
    for name, (path, expected) in left.items():
        actual = right[name][1]
        try:
            torch.testing.assert_close(actual, expected, check_dtype=actual.dtype == expected.dtype)
        except AssertionError as error:
            said = " ".join(str(error).split())
            return Answer("differs", path, f"{name}: {said}"[:300])
    return Answer("same")


def polygraphy(
    reference: nn.Module,
    candidate: nn.Module | None,
    inputs: Mapping[str, Any],
    graph: Path | None,
) -> Answer:
    """`Comparator.compare_accuracy` with the compare function that it takes by default."""
    from polygraphy.comparator import Comparator, IterationResult, RunResults
    from polygraphy.logger import G_LOGGER

    # It formats every array for its log whether or not that is shown: short ones cost less.
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1), np.printoptions(threshold=4, edgeitems=1):
        if graph is None:
            assert candidate is not None
            left, right = both(reference, candidate, inputs)
        else:
            left, right = graphs.all_tensors(reference, inputs, graph)
        results = RunResults()
        for name, side in (("candidate", right), ("reference", left)):  # relative to the second
            arrays = {n: _array(side[n][1]) for n in left if n in side}
            results.append((name, [IterationResult(arrays, runner_name=name)]))
        accuracy = Comparator.compare_accuracy(results)
    (matches,) = next(iter(accuracy[0].values()))
    for name, match in matches.items():
        if not match:
            return Answer("differs", left[name][0], f"{name}: {match}")
    if missing := [name for name in left if name not in matches]:
        return Answer("differs", why=f"not among the candidate's outputs: {', '.join(missing)}")
    return Answer("same" if accuracy else "differs")


def dynamo_same(
    reference: nn.Module,
    candidate: nn.Module | None,
    inputs: Mapping[str, Any],
    graph: Path | None,
) -> Answer:
    """`same` on the outputs, with the arguments of `same_two_models`, the accuracy minifier's."""
    from torch._dynamo import config
    from torch._dynamo.utils import same

    dtype = torch.float32 if candidate is None else dtype_of(candidate)
    expected = reference if dtype == dtype_of(reference) else copy.deepcopy(reference).to(dtype)
    left, right = _sides(expected, candidate, inputs, graph)
    said: list[str] = []
    agree = same(
        outputs(left),
        outputs(right),
        _in_double(reference, inputs),
        tol=config.repro_tolerance,
        equal_nan=True,
        log_error=lambda text, *values: said.append(text % values),
    )
    return Answer("same") if agree else Answer("differs", why="; ".join(said)[:300])


def _in_double(reference: nn.Module, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor] | None:
    """The reference's outputs in float64; the minifier goes on without where that cannot run."""
    try:
        return outputs(recorded(copy.deepcopy(reference).double(), inputs))
    except Exception:  # whatever a model raises that takes float32 only
        return None


def _sides(
    reference: nn.Module,
    candidate: nn.Module | None,
    inputs: Mapping[str, Any],
    graph: Path | None,
) -> tuple[Recorded, Recorded]:
    """Both sides as PyTorch tensors: of a graph the outputs, for no layer of it has a hook."""
    if graph is None:
        assert candidate is not None
        return both(reference, candidate, inputs)
    expected = outputs(recorded(reference, inputs))
    actual = graphs.run_graph(graph, inputs, expected)
    return {n: ("", t) for n, t in expected.items()}, {n: ("", t) for n, t in actual.items()}


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """As Polygraphy takes it: contiguous; half precision as float32, which holds it exactly."""
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return (tensor.float() if half else tensor).contiguous().numpy()
