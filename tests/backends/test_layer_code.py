"""A layer written down as Python: the same bits as a replay, and nothing of the other layers."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.registry import create
from driftwalk.states import Probe
from driftwalk_backends.bundles.layer_code import LayerCode, layer_code
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.tensors import from_numpy, to_numpy
from driftwalk_backends.torch_eager import TorchEager

LINE = re.compile(r"    (v\d+ = (torch\.ops\.(aten|prims)\.[\w.]+\(|v\d+\[)|return v\d+\Z)")


def torch_backend(spec: str, model: Any) -> TorchEager:
    made = create(spec, open_model(model))
    assert isinstance(made, TorchEager)
    return made


def run(code: LayerCode, given: dict[str, Array], folder: Path) -> Array:
    """As a reader of a bundle would: the text from a file, the weights as they are."""
    file = folder / "layer.py"
    file.write_text(code.source)
    spec = importlib.util.spec_from_file_location("a_layer", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.no_grad():
        return to_numpy(module.layer(code.weights, [from_numpy(given[n]) for n in code.inputs]))


def replayed(truth: TorchEager, probe: Probe, given: dict[str, Array]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    truth.replay(probe, given, lambda state: found.update({state.point.name: state.array}))
    return found


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral", "albert", "t5", "vit", "whisper"])
def test_the_code_is_the_replay_bit_by_bit(name: str, tmp_path: Path) -> None:
    model = open_model(zoo.build(name))
    probe = make_probe(model)
    with torch_backend("emulated:bf16", model) as candidate, torch_backend("truth", model) as truth:
        trace = candidate.trace(probe)
        given = {state.point.name: state.array for state in trace}
        true = replayed(truth, probe, given)
        fed = {**probe.inputs, **given}
        ends = name in ("gpt2", "t5")  # how a stack begins and ends is alike in all of them
        some = trace.names[1], trace.names[-1]
        for point in (*trace.names[:2], *trace.names[-2:]) if ends else some:
            code = layer_code(truth, probe, given, point)
            np.testing.assert_array_equal(run(code, fed, tmp_path), true[point])
            assert all(LINE.match(line) for line in code.source.splitlines()[6:]), code.source
        for point in some if ends else some[:1]:
            own = layer_code(candidate, probe, given, point)
            np.testing.assert_array_equal(run(own, fed, tmp_path), given[point])


def test_it_holds_its_own_layer_alone() -> None:
    model = open_model(zoo.build("gpt2"))
    probe = make_probe(model)
    with torch_backend("truth", model) as truth:
        given = {state.point.name: state.array for state in truth.trace(probe)}
        code = layer_code(truth, probe, given, "layer.1")
        head = layer_code(truth, probe, given, "logits")
    assert code.inputs == ("attention_mask", "layer.0")
    assert set(code.names.values()) == {
        f"transformer.h.1.{name}" for name, _ in model.module.transformer.h[1].named_parameters()
    }
    assert head.inputs == ("norm",)
    assert len(head.weights) == 1


class Scribbles(nn.Module):
    """A block that writes in place, through a view, on what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        y[..., 2:4].mul_(3.0)
        y.view(-1)[0] = 7.0
        return x + y


def scribbling() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(Scribbles(), Scribbles(), Scribbles())


def test_writes_in_place_are_kept_and_those_of_others_are_not(tmp_path: Path) -> None:
    model = open_model(scribbling())
    values = np.random.default_rng(0).standard_normal((2, 3, 8), dtype=np.float32)
    probe = Probe({"input": values})
    with torch_backend("torch", model) as backend:
        trace = backend.trace(probe)
        given = {state.point.name: state.array for state in trace}
        code = layer_code(backend, probe, given, "layer.1")
    np.testing.assert_array_equal(run(code, given, tmp_path), trace["layer.1"])
    assert code.source.count("mul_.Scalar") + code.source.count("mul_.Tensor") == 1
    assert set(code.names.values()) == {"1.linear.weight", "1.linear.bias"}


def test_the_order_of_reading_and_writing_is_kept(tmp_path: Path) -> None:
    """A write after the last read changes nothing; a write before it does."""

    class ReadsBetween(Scribbles):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            before = y + 0.0
            y.add_(100.0)
            after = y + 0.0
            y.add_(1000.0)
            return x + before + after

    model = open_model(nn.Sequential(*(ReadsBetween() for _ in range(2))))
    probe = Probe({"input": np.ones((1, 2, 8), np.float32)})
    with torch_backend("torch", model) as backend:
        trace = backend.trace(probe)
        given = {state.point.name: state.array for state in trace}
        code = layer_code(backend, probe, given, "layer.1")
    np.testing.assert_array_equal(run(code, given, tmp_path), trace["layer.1"])


def test_an_op_that_is_not_torchs_own_is_refused() -> None:
    @torch.library.custom_op("driftwalk_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    class Foreign(Scribbles):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ops.driftwalk_tests.twice(self.linear(x))  # type: ignore[no-any-return]

    model = open_model(nn.Sequential(Foreign(), Foreign()))
    probe = Probe({"input": np.ones((1, 2, 8), np.float32)})
    with torch_backend("torch", model) as backend:
        given = {state.point.name: state.array for state in backend.trace(probe)}
        with pytest.raises(BackendError, match="it calls driftwalk_tests"):
            layer_code(backend, probe, given, "layer.1")


def test_a_point_that_is_not_there_is_refused() -> None:
    model = open_model(scribbling())
    probe = Probe({"input": np.ones((1, 2, 8), np.float32)})
    with (
        torch_backend("torch", model) as backend,
        pytest.raises(BackendError, match=r"has no point 'layer\.9'"),
    ):
        layer_code(backend, probe, {}, "layer.9")
