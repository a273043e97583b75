"""States left on a device: their sums, formed there, come to the numbers that the host finds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import driftwalk
import zoo
from driftwalk.measure.metrics import Measured
from driftwalk.measure.reduction import holding
from driftwalk.states import HeldState, Point
from driftwalk.tolerance import Tolerance
from driftwalk_backends.on_device import states
from driftwalk_backends.on_device.states import HeldTensor
from driftwalk_backends.torch_eager import TorchEager
from pairs import check_alike, on_device, on_host

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHAPES = ((2, 7, 33), (1, 64, 5), (3, 5, 1), (4, 40), (17,), (), (2, 3, 4, 5))
TOLERANCES = (
    *(Tolerance(1e-3, 1e-3, "rms"), Tolerance(0.0, 1e-2), Tolerance(1e-4)),
    *(Tolerance(0.0), Tolerance(1e-2, 0.0, "rms")),
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors, near or far; with ties, zeros of both signs, tiny and huge values."""
    shape = draw(st.sampled_from(SHAPES))
    random = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    r = torch.randn(shape, generator=random) * 10.0 ** draw(st.integers(-6, 4))
    c = r * (1 + 10.0 ** draw(st.integers(-7, 1)) * torch.randn(shape, generator=random))
    pick = torch.rand(shape, generator=random)
    c = torch.where(pick < draw(st.sampled_from((0.0, 0.3, 1.0))), r, c)
    r = torch.where(pick > draw(st.sampled_from((1.0, 0.9))), -0.0, r)
    c = torch.where(pick > draw(st.sampled_from((1.0, 0.95))), 0.0, c)
    return r.to(draw(st.sampled_from(DTYPES))), c.to(draw(st.sampled_from(DTYPES)))


@settings(deadline=None, max_examples=300)
@given(pairs(), st.sampled_from(TOLERANCES), st.booleans(), st.sampled_from((8, 1 << 22)))
def test_every_number_is_the_host_s(pair, tolerance, padded, chunk) -> None:
    r, c = pair
    keep = None
    if padded and r.ndim > 2:
        keep = np.arange(math.prod(r.shape[:2])).reshape(r.shape[:2]) % 3 != 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "CHUNK", chunk)
        found = on_device(r, c, tolerance, keep)
    assert found is not None, "all of these can be reduced"
    check_alike(found, on_host(r, c, tolerance, keep), sums=1e-6, scale=1e-7)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_fetched_and_told_by_the_host(value, side) -> None:
    both = [torch.randn(2, 3, 8), torch.randn(2, 3, 8)]
    both[side][1, 2, 3] = value
    tolerance = Tolerance(1e-3, 0.0, "rms")
    assert _same(on_device(*both, tolerance, None), on_host(*both, tolerance, None))


def test_a_padded_nan_does_not_count() -> None:
    r, c = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    r[0, 0, 0] = c[0, 0, 1] = math.nan
    keep = np.array([[False, True, True], [True, True, True]])
    tolerance = Tolerance(1e-3, 0.0, "rms")
    found = on_device(r, c, tolerance, keep)
    assert found.metrics.nonfinite == driftwalk.measure.metrics.Nonfinite()
    check_alike(found, on_host(r, c, tolerance, keep), sums=1e-6, scale=1e-7)


def test_what_a_device_does_not_reduce_is_left_to_the_host() -> None:
    wide, empty = torch.randn(2, 3, 8).double(), torch.zeros(2, 0, 8)
    assert on_device(wide, wide, Tolerance(0.0), None) is None
    assert on_device(empty, empty, Tolerance(0.0), None) is None


def test_a_held_state_is_a_copy_and_an_array_to_all_who_ask() -> None:
    tensor = torch.randn(2, 3, 8).bfloat16()
    state = HeldState(Point("layer.0"), states.Holding(torch.device("cpu")).keep(tensor))
    before = tensor.float().numpy().copy()
    tensor.zero_()
    assert (state.dtype, state.shape) == ("bf16", (2, 3, 8))
    assert np.array_equal(state.array.astype(np.float32), before)
    assert state.array is state.array, "fetched once"
    with pytest.raises(ValueError, match="read-only"):
        state.array[0, 0, 0] = 1


class Near(TorchEager):
    """Plain PyTorch that holds its states, though they are on the host."""

    holds_on = "cpu"


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the states that were fetched."""
    seen: list[tuple[int, ...]] = []
    fetch = HeldTensor.fetch

    def note(self: HeldTensor):
        seen.append(self.shape)
        return fetch(self)

    monkeypatch.setattr(HeldTensor, "fetch", note)
    return seen


def near(name: str, **changes: float) -> tuple[TorchEager, TorchEager]:
    """Two backends around two copies of a model, in the second of which a weight is off."""
    models = [zoo.build(name), zoo.build(name)]
    for path, factor in changes.items():
        with torch.no_grad():
            models[1].get_parameter(path.replace("__", ".")).mul_(factor)
    return tuple(Near.around(model) for model in models)


@pytest.mark.parametrize("policy", ["dtype", Tolerance(1e-3, 1e-3)])
def test_verify_says_the_same_with_states_held(policy, fetches) -> None:
    off = {"model__layers__1__mlp__down_proj__weight": 1.5}
    sides = near("llama", **off)
    found = driftwalk.verify(zoo.build("llama"), sides[1], sides[0], policy=policy, blame=False)
    assert len(fetches) == 2, "the logits of both, for what they decide, and nothing else"
    plain = [TorchEager.around(side._model.module) for side in sides]
    expected = driftwalk.verify(zoo.build("llama"), plain[1], plain[0], policy=policy, blame=False)
    assert found.first_divergence.point.name == expected.first_divergence.point.name == "layer.1"
    assert found.outputs.margin == pytest.approx(expected.outputs.margin, rel=1e-12)
    assert replace(found.outputs, margin=0.0) == replace(expected.outputs, margin=0.0)
    for one, other in zip(found.layers, expected.layers, strict=True):
        assert (one.point, one.verdict, one.dtypes) == (other.point, other.verdict, other.dtypes)
        assert one.metrics.max_abs == other.metrics.max_abs
        assert one.metrics.ulp_p99 == other.metrics.ulp_p99
        assert one.metrics.rmse == pytest.approx(other.metrics.rmse, rel=1e-6)


def test_a_calibrated_run_and_a_spilled_one_hold_nothing(fetches) -> None:
    first, second = near("gpt2")
    driftwalk.verify(zoo.build("gpt2"), second, first)
    driftwalk.verify(zoo.build("gpt2"), second, first, policy="dtype", spill=True)
    assert fetches == []


def test_what_is_held_must_be_something_that_can_be_fetched(monkeypatch) -> None:
    backend, _ = near("gpt2")
    monkeypatch.setattr(states.Holding, "keep", lambda self, tensor: tensor)
    backend.hold(True)
    probe = driftwalk.Probe({"input_ids": np.arange(8).reshape(1, 8)})
    with pytest.raises(driftwalk.DriftwalkError, match="holds a Tensor at 'embed'"):
        backend.trace(probe)


def test_only_those_on_one_device_hold() -> None:
    first, second = near("gpt2")
    far = TorchEager.around(zoo.build("gpt2"))
    with holding(first, [far]) as some:
        assert not some
        assert not first._hold
    with holding(first, [second, far]) as some:
        assert some
        assert (first._hold, second._hold, far._hold) == (True, True, False)
    assert not first._hold


def test_states_beyond_the_room_go_to_the_host_and_the_report_says_so(monkeypatch) -> None:
    first, second = near("gpt2")
    room = iter([3 * 1024, math.inf])
    plain = states.Holding.__init__

    def small(self, device) -> None:
        plain(self, device)
        self._left = next(room)

    probe = driftwalk.Probe({"input_ids": np.arange(8).reshape(1, 8)})
    monkeypatch.setattr(states.Holding, "__init__", small)
    report = driftwalk.verify(zoo.build("gpt2"), second, first, probe, policy="dtype")
    assert report.ok
    assert all(layer.metrics.max_abs == 0 for layer in report.layers)
    (note,) = [note for note in report.notes if "too little free memory" in note]
    assert "reference states" in note


def _same(one: Measured, other: Measured) -> bool:
    return repr((one, one.tokens)) == repr((other, other.tokens))
