"""Pairs of tensors to be measured on a device and on the host, and what must agree."""

from __future__ import annotations

import math

import numpy as np
import torch

from driftwalk.dtypes import Array
from driftwalk.measure.metrics import Measured, measure
from driftwalk.measure.reduction import begin
from driftwalk.states import HeldState, Point
from driftwalk.tolerance import Tolerance
from driftwalk_backends.on_device.states import HeldTensor
from driftwalk_backends.tensors import to_numpy

POINT = Point("layer.0")
SUMS = ("mean_abs", "rmse", "rel_l2", "cosine", "snr_db")


def on_device(
    r: torch.Tensor, c: torch.Tensor, tolerance: Tolerance, keep: Array | None
) -> Measured | None:
    begun = begin(HeldState(POINT, HeldTensor(r)), HeldState(POINT, HeldTensor(c)), tolerance, keep)
    return None if begun is None else begun()


def on_host(r: torch.Tensor, c: torch.Tensor, tolerance: Tolerance, keep: Array | None) -> Measured:
    return measure(to_numpy(r), to_numpy(c), tolerance, keep)


def check_alike(found: Measured, expected: Measured, sums: float, scale: float = 1e-12) -> None:
    """Counts, maxima and places must agree exactly; sums within a part of `sums`."""
    ours, theirs = found.metrics, expected.metrics
    for name in ("max_abs", "max_rel", "ulp_max", "ulp_p99", "total", "nonfinite", "worst"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert math.isclose(found.scale, expected.scale, rel_tol=scale), "scale"
    assert math.isclose(found.exceeded, expected.exceeded, rel_tol=2 * scale), "exceeded"
    for name in SUMS:
        one, other = getattr(ours, name), getattr(theirs, name)
        near = math.isclose(one, other, rel_tol=sums, abs_tol=1e-300)
        # dB are a logarithm: a part of the ratio is an absolute number of them.
        assert near or (name == "snr_db" and abs(one - other) < 10 * sums), name
    assert ours.mismatched == theirs.mismatched
    assert (found.tokens is None) == (expected.tokens is None)
    if found.tokens is not None and expected.tokens is not None:
        for mine, their in zip(found.tokens, expected.tokens, strict=True):
            assert [x is None for x in mine] == [x is None for x in their]
            a, b = (np.array([x for x in row if x is not None]) for row in (mine, their))
            # Four digits: a sum that differs in its tenth may round the fourth another way.
            np.testing.assert_allclose(a, b, rtol=max(sums, 1.1e-3), atol=0)
