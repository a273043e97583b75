"""What a format costs and what a kernel adds are all of the error: by formula, and on models."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

import driftwalk
import zoo
from driftwalk.adapter import BackendInfo
from driftwalk.formats import Declared, Misstored
from driftwalk.judge.format_split import FormatSplit, split
from driftwalk.states import Point, Probe, State, Trace
from driftwalk_backends.formats.declared import declared_model
from driftwalk_backends.formats.rounded import RoundedWeight, whole_numbers
from driftwalk_backends.formats.rounding import InputRounding
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model

NUMBERS = hnp.arrays(np.float64, (3, 5, 4), elements=st.floats(-1e3, 1e3))


@settings(max_examples=100, deadline=None)
@given(candidate=NUMBERS, declared=NUMBERS, true=NUMBERS)
def test_the_two_parts_make_the_total(
    candidate: np.ndarray, declared: np.ndarray, true: np.ndarray
) -> None:
    keep = np.array([[True] * 5, [True] * 3 + [False] * 2, [True] * 5])
    for counted in (None, keep):
        found = split(candidate, declared, true, counted)
        whole = (candidate - true)[keep if counted is not None else ...]
        square, most = float(np.square(whole).sum()), (found.format + found.kernel) ** 2
        assert math.isclose(found.total**2, square, rel_tol=1e-9, abs_tol=1e-9 * most)


def quantised(model: LoadedModel, bits: int, block: int, inputs: bool) -> LoadedModel:
    """The model with every linear layer stored in so many bits."""
    weights = []
    for path, part in model.module.named_modules():
        if not isinstance(part, nn.Linear) or part.weight.shape[1] % block:
            continue
        own = part.weight.detach().double().numpy()
        rows = own.reshape(own.shape[0], -1, block)
        grid = whole_numbers(bits)
        step = np.maximum(np.abs(rows).max(-1), 1e-9) / grid.highest
        numbers = grid.nearest(rows / step[..., None]).reshape(own.shape)
        rounding = InputRounding(rows=True) if inputs else None
        zero = np.zeros_like(step)
        weights.append(RoundedWeight(path, grid, numbers, step, zero, (1, block), rounding))
    made = declared_model(model, weights)
    assert made is not None
    return made


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(["llama", "bert", "vit"]),
    seed=st.integers(0, 99),
    bits=st.sampled_from([2, 4, 8]),
    block=st.sampled_from([8, 16]),
    inputs=st.booleans(),
)
def test_format_and_kernel_are_all_of_a_models_error(
    name: str, seed: int, bits: int, block: int, inputs: bool
) -> None:
    """candidate - truth = (declared - truth) + (candidate - declared), state by state."""
    model = open_model(zoo.build(name, seed))
    made = quantised(model, bits, block, inputs)
    probe = make_probe(model, seed=seed)
    with driftwalk.backend("truth", model) as exact, driftwalk.backend("truth", made) as told:
        true, declared = exact.trace(probe), told.trace(probe)
    with driftwalk.backend("torch", made) as kernel:
        candidate = kernel.trace(probe)
    for state in candidate:
        arrays = [trace[state.point.name] for trace in (declared, true)]
        found = split(state.array, *arrays, None)
        whole = float(np.linalg.norm(state.array.astype(np.float64) - arrays[1]))
        assert math.isclose(found.total, whole, rel_tol=1e-9), state.point.name
        if not inputs:
            assert found.kernel < 1e-5 * found.scale


pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
]


@pytest.fixture(scope="module")
def copies() -> tuple[nn.Module, nn.Module]:
    if "qnnpack" in torch.backends.quantized.supported_engines and not _is_x86():
        torch.backends.quantized.engine = "qnnpack"
    model = zoo.build("llama", 0)
    return model, torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})


def _is_x86() -> bool:
    import platform

    return platform.machine() in ("x86_64", "AMD64")


def test_a_quantised_copy_passes_by_what_it_declares_and_its_cost_is_told(
    copies: tuple[nn.Module, nn.Module],
) -> None:
    report = driftwalk.verify(*copies)
    assert report.ok, report.reason
    found = report.format
    assert found is not None
    (kind,) = found.stored
    assert kind.kind == "int8"
    assert f"{7 if _is_x86() else 8} bits" in kind.inputs  # as each one's own kernels round
    assert found.decisions is not None
    assert found.in_float == ()
    last = found.layers["logits"]
    assert last.format > 1e-3 * last.scale
    assert last.kernel < last.format
    assert list(found.layers) == [layer.point.name for layer in report.layers]


def test_a_wrong_weight_in_a_quantised_copy_is_drift_in_its_layer(
    copies: tuple[nn.Module, nn.Module],
) -> None:
    """One number of one row: far below what roundings that tip over make of the whole."""
    model, honest = copies
    wrong = copy.deepcopy(honest)
    part = wrong.model.layers[1].mlp.down_proj
    weight = part.weight()
    numbers = weight.int_repr()
    numbers[3, 5] = -numbers[3, 5] - 30
    scale, zero = weight.q_scale(), weight.q_zero_point()
    part.set_weight_bias(torch._make_per_tensor_quantized_tensor(numbers, scale, zero), part.bias())
    report = driftwalk.verify(model, wrong)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert report.format is not None
    assert list(report.format.wrong) == ["model.layers.1.mlp.down_proj"]


def test_sums_in_half_precision_are_drift_and_the_kernels(
    copies: tuple[nn.Module, nn.Module],
) -> None:
    model, honest = copies
    wrong = copy.deepcopy(honest)
    part = wrong.model.layers[1].mlp.up_proj
    plain = part.forward
    part.forward = lambda x: plain(x).half().float()
    report = driftwalk.verify(model, wrong)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert report.format is not None
    assert not report.format.wrong


@pytest.mark.parametrize(
    ("met", "path", "shown"),
    [
        (("a", "b", "end"), "m.a.up", "a"),
        (("b", "end"), "m.a.up", "b"),
        (("a",), "m.b.up", "a"),
        (("a", "b", "end"), "m.head.dense", "end"),
        ((), "m.a.up", "a"),
    ],
)
def test_a_weight_stored_wrong_shows_where_the_candidate_has_a_state(
    met: tuple[str, ...], path: str, shown: str
) -> None:
    """A layer without a state, or a module outside of all, hides none."""
    probe = Probe({"input_ids": np.ones((1, 2), np.int64)})
    points = {"a": "m.a", "b": "m.b", "end": "m.head.out"}
    states = {name: State(Point(name, at), np.ones((1, 2, 3))) for name, at in points.items()}
    truth = Trace(tuple(states.values()), probe, BackendInfo("truth", "truth", "cpu", "fp64"))
    says = Declared((), tips=True, wrong={path: Misstored("it is wrong", 3.0)})
    parts = FormatSplit(truth, truth, says)
    for name in met:
        parts.meet(states[name])
    assert parts.misstored == {shown: 3.0}
