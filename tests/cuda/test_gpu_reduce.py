"""Sums formed on the GPU are those formed on the CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest

from driftwalk.metrics import measure
from driftwalk.tolerance import Tolerance

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 7, 33), (1, 64, 4096), (3, 5, 1), (4, 1025)])
def test_rows_come_to_the_same(dtype, shape) -> None:
    from benchmarks.gpu.reduce import can_reduce, reduce_pairs
    from driftwalk_backends.tensors import to_numpy

    torch.manual_seed(0)
    r = torch.randn(shape, dtype=torch.float32).to(dtype)
    c = (r.float() * (1 + 1e-2 * torch.randn(shape))).to(dtype)
    c.view(-1)[::7] = r.view(-1)[::7]
    assert can_reduce(r.cuda(), c.cuda())
    (found, again) = reduce_pairs([(r.cuda(), c.cuda()), (c.cuda(), r.cuda())], 1e-3, 1e-3)
    a, b = to_numpy(r), to_numpy(c)
    told = measure(a, b, Tolerance(1e-3, 1e-3))
    x, y = a.astype(np.float64), b.astype(np.float64)
    assert found["dd"].sum() == pytest.approx(((x - y) ** 2).sum(), rel=1e-5)
    assert found["rr"].sum() == pytest.approx((x * x).sum(), rel=1e-5)
    assert found["rc"].sum() == pytest.approx((x * y).sum(), rel=1e-5)
    assert found["abs_d"].sum() == pytest.approx(np.abs(x - y).sum(), rel=1e-5)
    assert found["max_abs"].max() == pytest.approx(told.metrics.max_abs, rel=1e-6)
    assert found["max_rel"].max() == pytest.approx(told.metrics.max_rel, rel=1e-5)
    assert found["exceeded"].max() == pytest.approx(told.exceeded, rel=1e-4)
    assert abs(found["mismatched"].sum() - told.metrics.mismatched) <= 1
    assert found["ulp_max"].max() == told.metrics.ulp_max
    assert found.buckets.sum() == a.size, "so few rows are all counted"
    assert again["max_abs"].tolist() == found["max_abs"].tolist()
    (scaled,) = reduce_pairs([(r.cuda(), c.cuda())], 1e-3, 0.0, by_rms=True)
    told = measure(a, b, Tolerance(1e-3, 0.0, scale="rms"))
    assert scaled["exceeded"].max() == pytest.approx(told.exceeded, rel=1e-4)


def test_what_is_not_finite_is_counted_apart() -> None:
    from benchmarks.gpu.reduce import reduce_pairs

    r = torch.ones((3, 40), dtype=torch.float16, device="cuda")
    c = r.clone()
    c[1, 7] = math.nan
    c[2, 3] = math.inf
    r[2, 9] = -math.inf
    (found,) = reduce_pairs([(r, c)], 0.0, 0.0)
    assert found["bad_c"].tolist() == [0, 1, 1]
    assert found["bad_r"].tolist() == [0, 0, 1]
    assert (found["bad_c_at"][1], found["bad_c_at"][2], found["bad_r_at"][2]) == (7, 3, 9)
    assert found["dd"].tolist() == [0, 0, 0]
    assert found["mismatched"].tolist() == [0, 1, 2]
