"""Sums formed on the GPU come to the numbers that the host finds."""

from __future__ import annotations

import math

import numpy as np
import pytest

import driftwalk
import zoo
from driftwalk.tolerance import BY_DTYPE, Tolerance

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
HALF, BRAIN, FLOAT = torch.float16, torch.bfloat16, torch.float32
FORMATS = [(HALF, HALF), (BRAIN, BRAIN), (FLOAT, FLOAT), (FLOAT, HALF), (HALF, BRAIN)]
TOLERANCES = [BY_DTYPE["fp16"], Tolerance(1e-3, 1e-3), Tolerance(0.0), Tolerance(1e-2, 0.0, "rms")]


def a_pair(shape, formats, noise: float, seed: int):
    random = torch.Generator().manual_seed(seed)
    r = torch.randn(shape, generator=random)
    c = r * (1 + noise * torch.randn(shape, generator=random))
    pick = torch.rand(shape, generator=random)
    c = torch.where(pick < 0.1, r, c)
    r = torch.where(pick > 0.999, -0.0, r)
    return r.to(formats[0]).cuda(), c.to(formats[1]).cuda()


@pytest.fixture
def left_to_the_host(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the kernels could not do."""
    line = pytest.importorskip("driftwalk_backends.on_device.batching")
    left: list[object] = []
    read = line.read

    def note(*given):
        found = read(*given)
        if found is None:
            left.append(given[0][: line.f.HEAD.value].tolist())
        return found

    monkeypatch.setattr(line, "read", note)
    return left


@pytest.mark.parametrize(
    ("noise", "tolerance"), list(zip([1e-4, 1e-2, 1.0, 1e-3], TOLERANCES, strict=True)), ids=str
)
@pytest.mark.parametrize("formats", FORMATS, ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 70, 33), (1, 64, 4096), (2, 33, 50257), (3, 50, 7), (40, 1025), (1, 5, 40000)]
)
def test_every_number_is_the_host_s(shape, formats, noise, tolerance, left_to_the_host) -> None:
    from pairs import check_alike, on_device, on_host

    r, c = a_pair(shape, formats, noise, seed=sum(shape))
    keep = None
    if len(shape) > 2 and noise == 1e-2:
        keep = np.arange(math.prod(shape[:2])).reshape(shape[:2]) % 5 != 1
    found = on_device(r, c, tolerance, keep)
    check_alike(found, on_host(r, c, tolerance, keep), sums=1e-6, scale=1e-7)
    if math.prod(shape) > 100_000:
        assert not left_to_the_host, "the kernels do what is ordinary"


@pytest.mark.parametrize("formats", FORMATS[:3], ids=str)
def test_many_pairs_at_once_keep_their_numbers_apart(formats, left_to_the_host) -> None:
    """States of several sizes, padded or not, under several tolerances: begun first, then read."""
    from driftwalk.measure.reduction import begin
    from driftwalk.states import HeldState
    from driftwalk_backends.on_device.states import HeldTensor
    from pairs import POINT, check_alike, on_host

    shapes = [(2, 9, 8208), (1, 32, 4096), (2, 60, 1024), (1, 8, 16400)]
    begun = []
    for number, (shape, tolerance) in enumerate(zip(shapes, TOLERANCES, strict=True)):
        r, c = a_pair(shape, formats, 10.0 ** -(number % 4), seed=number)
        keep = np.arange(math.prod(shape[:2])).reshape(shape[:2]) % 3 != 1 if number % 2 else None
        sides = (HeldState(POINT, HeldTensor(side)) for side in (r, c))
        begun.append((begin(*sides, tolerance, keep), (r, c, tolerance, keep)))
    for waits, given in reversed(begun):
        check_alike(waits(), on_host(*given), sums=1e-6, scale=1e-7)
    assert not left_to_the_host, "numbers that make no sense would be the host's"


@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_states_that_are_the_same(formats, left_to_the_host) -> None:
    from pairs import check_alike, on_device, on_host

    r = torch.randn(2, 9, 300).to(formats[0]).cuda()
    for tolerance in TOLERANCES:
        found = on_device(r, r.clone(), tolerance, None)
        check_alike(found, on_host(r, r, tolerance, None), sums=1e-6, scale=1e-7)
        assert found.metrics.cosine == pytest.approx(1, abs=1e-15)
        assert found.metrics.worst.index == (0, 0, 0)
    assert not left_to_the_host


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_told_by_the_host(value, side) -> None:
    from pairs import on_device, on_host

    both = a_pair((2, 9, 300), (HALF, HALF), 1e-2, 0)
    both[side][1, 2, 3] = value
    tolerance = BY_DTYPE["fp16"]
    found = on_device(*both, tolerance, None)
    expected = on_host(*both, tolerance, None)
    assert repr((found, found.tokens)) == repr((expected, expected.tokens))
    assert found.metrics.nonfinite.candidate == side


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e25])
def test_sizes_beyond_float32_s_squares(size) -> None:
    from pairs import check_alike, on_device, on_host

    r = (torch.randn(2, 9, 300) * size).cuda()
    c = r * 1.001
    for tolerance in TOLERANCES:
        check_alike(
            on_device(r, c, tolerance, None), on_host(r, c, tolerance, None), sums=1e-6, scale=1e-7
        )


@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_without_triton_too(formats, monkeypatch) -> None:
    from driftwalk_backends.on_device import states
    from pairs import check_alike, on_device, on_host

    monkeypatch.setattr(states, "_kernels", lambda device: None)
    r, c = a_pair((1, 64, 4096), formats, 1e-2, 0)
    tolerance = BY_DTYPE["fp16"]
    found = on_device(r, c, tolerance, None)
    check_alike(found, on_host(r, c, tolerance, None), sums=1e-6, scale=1e-7)


def test_triton_is_used_where_it_is_there() -> None:
    pytest.importorskip("triton")
    from driftwalk_backends.on_device.states import _kernels

    assert _kernels(torch.device("cuda", 0)) is not None


@pytest.mark.parametrize("candidate", ["torch:cuda:fp32", "torch:cuda:fp16", "torch:cuda:bf16"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5"])
def test_verify_on_the_gpu_says_what_it_says_on_the_host(name, candidate, monkeypatch) -> None:
    from driftwalk_backends.on_device.states import HeldTensor
    from driftwalk_backends.torch_eager import TorchEager

    fetched: list[tuple[int, ...]] = []
    fetch = HeldTensor.fetch
    monkeypatch.setattr(
        HeldTensor, "fetch", lambda self: (fetched.append(self.shape), fetch(self))[1]
    )
    model = zoo.build(name)

    def run(policy):
        return driftwalk.verify(
            model, candidate, reference="torch:cuda:fp32", policy=policy, blame=False
        )

    for policy in ("dtype", Tolerance(1e-3, 1e-3)):
        found = run(policy)
        assert not [note for note in found.notes if "free memory" in note]
        held_back = len(fetched)
        with monkeypatch.context() as patch:
            patch.setattr(TorchEager, "holds_on", "")
            expected = run(policy)
        assert len(fetched) == held_back, "without holding nothing is fetched later"
        assert found.verdict == expected.verdict
        for one, other in zip(found.layers, expected.layers, strict=True):
            assert (one.point, one.verdict) == (other.point, other.verdict)
            for exact in ("max_abs", "max_rel", "ulp_max", "ulp_p99", "mismatched", "worst"):
                ours, theirs = (getattr(side.metrics, exact) for side in (one, other))
                assert ours == theirs, (one.point.name, exact)
            assert one.metrics.rmse == pytest.approx(other.metrics.rmse, rel=1e-6)
