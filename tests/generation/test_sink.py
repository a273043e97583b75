"""An attention sink: one token outweighs all others; the step of a fault is right all the same."""

from __future__ import annotations

import numpy as np
import pytest

import decoders
import driftwalk

LATE = 3


@pytest.mark.parametrize("policy", ["calibrated", "dtype"])
def test_a_stale_slot_in_a_late_layer_is_placed_beside_a_sink(policy):
    model = decoders.with_sink()
    ids = decoders.prompt("llama")["input_ids"]
    ids[:, 0] = 1
    port = decoders.broken(model, lambda port: decoders.stale_slot(port, layer=LATE, slot=12))
    report = driftwalk.generate(model, port, prompt={"input_ids": ids}, steps=14, policy=policy)
    sizes = np.linalg.norm(
        driftwalk.record(model, probe={"input_ids": ids})[f"layer.{LATE}"], axis=-1
    )
    assert (sizes[:, 0] > 1000 * sizes[:, 1:].max()).all()
    assert report.cause == "cache"
    assert report.root_cause.point.name == f"layer.{LATE}"
    assert report.root_cause.step == 6
    assert report.root_cause.slot == 12
