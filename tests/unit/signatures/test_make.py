"""From a trace to its signature: the same bytes, without padding, without growing memory."""

from __future__ import annotations

import hashlib
import tracemalloc
from dataclasses import replace

import numpy as np

from driftwalk import Signature
from driftwalk.signatures.make import QUANTILES
from driftwalk.states import BackendInfo, Point, Probe, State, Trace

MASK = np.array([[1, 1, 1, 0], [0, 1, 1, 1]])


def trace(seed: int = 0, mask: np.ndarray = MASK, size: int = 16, **told) -> Trace:
    rng = np.random.default_rng(seed)
    states = tuple(
        State(Point(name, f"model.{name}"), rng.standard_normal((2, 4, size)).astype(np.float32))
        for name in ("embed", "layer.0", "logits")
    )
    probe = Probe({"input_ids": np.arange(8).reshape(2, 4), "attention_mask": mask}, "a test")
    info = BackendInfo("torch", "torch", "cpu", "fp32", {"torch": "2"}, {})
    return Trace(states, probe, info, {}, **told)


def with_state(made: Trace, name: str, array: np.ndarray) -> Trace:
    states = [State(s.point, array) if s.point.name == name else s for s in made]
    return replace(made, states=tuple(states))


def test_the_same_trace_gives_the_same_bytes(tmp_path) -> None:
    one = Signature.of(trace()).save(tmp_path / "a.signature.json").read_bytes()
    stored = Trace.load(trace().save(tmp_path / "a.trace"))
    assert Signature.of(stored).save(tmp_path / "b.signature.json").read_bytes() == one
    assert len(one) < 12_000
    loaded = Signature.load(tmp_path / "a.signature.json")
    assert loaded == Signature.of(trace())
    loaded.save(tmp_path / "a.signature.json")
    assert (tmp_path / "a.signature.json").read_bytes() == one


def test_the_numbers_are_what_they_say() -> None:
    array = trace(mask=np.ones((2, 4), np.int64))["layer.0"]
    (found,) = [
        s for s in Signature.of(trace(mask=np.ones((2, 4), np.int64))).states if s.name == "layer.0"
    ]
    wide = array.astype(np.float64)
    assert found.sha256 == hashlib.sha256(array.tobytes()).hexdigest()
    assert (found.moments.min, found.moments.max) == (wide.min(), wide.max())
    assert found.moments.min_abs == np.abs(wide).min()
    assert np.isclose(found.moments.rms, np.sqrt((wide**2).mean()), rtol=1e-14)
    assert np.isclose(found.moments.mean, wide.mean(), rtol=1e-12)
    assert found.quantiles == tuple(np.quantile(wide, QUANTILES, method="lower"))
    assert set(found.samples) <= set(wide.reshape(-1).tolist())
    assert len(set(found.samples)) > 20


def test_padding_is_no_part_of_it() -> None:
    made = trace()
    array = made["layer.0"].copy()
    array[0, 3], array[1, 0] = np.nan, 1e9
    assert Signature.of(with_state(made, "layer.0", array)).states == Signature.of(made).states
    array[1, 1, 5] += 1
    assert Signature.of(with_state(made, "layer.0", array)).states != Signature.of(made).states
    assert Signature.of(made).states[0].counted == 6 * 16


def test_what_is_not_finite_is_counted_and_kept_out() -> None:
    made = trace()
    array = made["layer.0"].copy()
    array[0, 0, :3] = np.nan, np.inf, -np.inf
    found = Signature.of(with_state(made, "layer.0", array)).states[1]
    assert found.nonfinite == 3
    assert all(np.isfinite(found.projections))
    assert np.isfinite(found.moments.rms)
    array[:] = np.nan
    assert Signature.of(with_state(made, "layer.0", array)).states[1].quantiles == ()


def test_views_and_byte_orders_make_no_difference() -> None:
    made = trace()
    turned = np.ascontiguousarray(made["layer.0"].transpose(2, 0, 1)).transpose(1, 2, 0)
    swapped = made["layer.0"].astype(">f4")
    for array in (turned, swapped):
        assert Signature.of(with_state(made, "layer.0", array)).states[1].projections == (
            Signature.of(made).states[1].projections
        )


def test_few_inputs_come_along_and_many_do_not() -> None:
    found = Signature.of(trace()).inputs_as_probe()
    assert found is not None
    assert found.sha256 == trace().probe.sha256
    pixels = Probe({"pixel_values": np.ones((1, 3, 4, 4), np.float32)})
    assert Signature.of(replace(trace(), probe=pixels)).inputs_as_probe() is None


def test_memory_is_that_of_one_state_and_not_of_its_weights() -> None:
    """64 weights for each of 2^17 elements would be 64 MB."""
    array = np.ones((1, 128, 1024), np.float32)
    made = Trace((State(Point("a"), array),), Probe({"x": np.ones(1)}), BackendInfo("", "", "", ""))
    tracemalloc.start()
    try:
        Signature.of(made)
        assert tracemalloc.get_traced_memory()[1] < 12e6
    finally:
        tracemalloc.stop()
