"""What backends tell about time: plain laps, and laps by layer that add up."""

from __future__ import annotations

import time

import pytest
import torch
from onnx import TensorProto, helper

import driftwalk
import zoo
from driftwalk_backends.eager_run import between, device_clock, stamp
from driftwalk_backends.onnx.runtime import AFTER, node_points, tensor_points
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model


@pytest.mark.parametrize("spec", ["torch", "onnxruntime", "emulated:bf16"])
def test_a_lap_takes_time_and_counts_no_loading(spec):
    model = open_model("demo:decoder")
    probe = make_probe(model)
    with driftwalk.backend(spec, model) as backend:
        start = time.perf_counter()
        first = backend.lap(probe)
        passed = time.perf_counter() - start
        start = time.perf_counter()
        second = backend.lap(probe)
        assert 0 < second.seconds < time.perf_counter() - start
        assert (second.copy_in, second.copy_out, second.device) == (0.0, 0.0, None)
        booked = sum(s for name, s in backend.seconds.items() if name in ("load", "export"))
        assert booked > 0
        assert first.seconds + booked <= passed, "one after the other"


@pytest.mark.parametrize("spec", ["torch", "onnxruntime"])
@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_layer_laps_have_the_points_of_the_trace_in_order(spec, name):
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    with driftwalk.backend(spec, model) as backend:
        names = list(backend.trace(probe).names)
        start = time.perf_counter()
        laps = backend.layer_laps(probe)
        took = time.perf_counter() - start
        assert all(0 < seconds < took for seconds in laps.values())
        assert [name for name in names if name in laps] == list(laps)
        # An embedding that is a view of a table may cost nothing that a profiler sees.
        assert {name for name in names if ".layer." in f".{name}"} <= laps.keys()


def test_a_slow_block_is_the_slow_layer():
    model = open_model("demo:decoder")
    probe = make_probe(model)
    slow = model.module.transformer.h[2]
    hook = slow.register_forward_pre_hook(lambda *_: time.sleep(0.5))
    try:
        with driftwalk.backend("torch", model) as backend:
            assert backend.lap(probe).seconds > 0.5  # and warms up
            laps = backend.layer_laps(probe)
    finally:
        hook.remove()
    assert max(laps, key=laps.__getitem__) == "layer.2"
    assert laps["layer.2"] > 0.5


def test_nodes_find_their_point_through_fusion():
    """Two nodes of a block become one with a new name; a new tensor follows its input."""

    def node(kind, given, made, name):
        return helper.make_node(kind, given, made, name=name)

    plain = helper.make_graph(
        [
            node("Gather", ["ids"], ["e"], "n0"),
            node("Identity", ["e"], ["state:embed"], "n1"),
            node("MatMul", ["e"], ["m"], "n2"),
            node("Add", ["m"], ["h"], "n3"),
            node("Identity", ["h"], ["state:layer.0"], "n4"),
            node("MatMul", ["h"], ["logits"], "n5"),
        ],
        "plain",
        [],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
    )
    points = ["embed", "layer.0"]
    tensors = tensor_points(plain, points)
    assert (tensors["e"], tensors["m"], tensors["h"]) == ("embed", "layer.0", "layer.0")
    assert tensors["logits"] == AFTER
    optimised = helper.make_graph(
        [
            node("Gather", ["ids"], ["e"], "n0"),
            node("FusedGemm", ["e"], ["h"], "fused"),
            node("Reorder", ["h"], ["new"], "reordered"),
            node("MatMul", ["new"], ["logits"], "n5"),
        ],
        "optimised",
        [],
        [],
    )
    found = node_points(optimised, tensors, points)
    assert found == {"n0": "embed", "fused": "layer.0", "reordered": "layer.0", "n5": AFTER}


def test_the_clock_of_a_cpu_is_the_wall():
    device = torch.device("cpu")
    with device_clock(device) as clock:
        before = stamp(device)
        after = stamp(device)
    assert clock() is None
    assert between(before, after) >= 0
