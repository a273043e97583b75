"""Blame: introduced plus inherited is the error, and the layer that made it is named."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import driftwalk
import zoo
from driftwalk.adapter import BackendInfo
from driftwalk.judge.accusation import _worth_a_closer_look
from driftwalk.judge.blame import blame, root_cause, unseen_before
from driftwalk.judge.calibrate import calibrate
from driftwalk.judge.replay import replay_trace
from driftwalk.registry import create
from driftwalk.result import to_dict
from driftwalk.states import Point, Probe, State, Trace
from driftwalk.traces.trace_file import save_trace
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model


def replayed(truth, trace: Trace) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    replay_trace(truth, trace, lambda state: found.__setitem__(state.point.name, state.array))
    return found


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["gpt2", "llama", "bert", "albert", "t5", "vit"]),
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
    st.floats(1e-12, 10),
)
def test_introduced_plus_inherited_is_the_error(name, seed, noise_seed, size):
    model = open_model(zoo.build(name, seed))
    probe = make_probe(model)
    truth = create("truth", model)
    exact = truth.trace(probe)
    rng = np.random.default_rng(noise_seed)
    states = tuple(
        State(s.point, s.array + size * rng.standard_normal(s.array.shape)) for s in exact
    )
    candidate = Trace(states, probe, exact.backend)
    given_states = replayed(truth, candidate)
    for point in exact.names:
        introduced = candidate[point] - given_states[point]
        inherited = given_states[point] - exact[point]
        error = candidate[point] - exact[point]
        assert np.linalg.norm(introduced + inherited - error) <= 1e-9 * np.linalg.norm(error)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_replaying_the_truth_s_own_states_changes_no_bit(name):
    model = open_model(zoo.build(name))
    truth = create("truth", model)
    exact = truth.trace(make_probe(model))
    again = replayed(truth, exact)
    assert list(again) == list(exact.names)
    assert all((again[point] == exact[point]).all() for point in exact.names)


def test_a_replayed_block_is_the_truth_s_block_on_the_given_state():
    module = zoo.build("gpt2")
    model = open_model(module)
    probe = make_probe(model, [[5, 6, 7, 8]])
    truth = create("truth", model)
    exact = truth.trace(probe)
    rng = np.random.default_rng(0)
    states = tuple(State(s.point, s.array + rng.standard_normal(s.array.shape)) for s in exact)
    candidate = Trace(states, probe, exact.backend)
    found = replayed(truth, candidate)
    double = copy.deepcopy(module).double()
    double.set_attn_implementation("eager")
    mask = torch.full((4, 4), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)
    with torch.no_grad():
        given_state = torch.tensor(np.array(candidate["layer.0"]))
        by_hand = double.transformer.h[1](given_state, attention_mask=mask[None, None])
        by_hand = by_hand[0] if isinstance(by_hand, tuple) else by_hand
    assert np.allclose(by_hand.numpy(), found["layer.1"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "albert", "t5", "bart", "vit"])
def test_a_fault_in_any_block_is_blamed_on_that_block(name):
    module = zoo.build(name)
    model = open_model(module)
    probe = make_probe(model)
    create("torch", model).trace(probe)
    stacks = next(iter(model._layouts.values())).stacks
    for stack in stacks:
        for number, path in enumerate(dict.fromkeys(stack.blocks)):
            twin = copy.deepcopy(module)
            weight = [p for p in twin.get_submodule(path).parameters() if p.ndim == 2][-1]
            weight.data[3, 5] += 0.5
            report = driftwalk.verify(model, candidate=twin, probe=probe, policy="calibrated")
            assert report.verdict == "drift"
            assert report.root_cause.point.name == stack.name(f"layer.{number}"), name


def _embedding(module):
    # The stream is normed at once in many models; a constant shift of one row is not undone there.
    module.get_input_embeddings().weight.data[:, ::2] += 0.5


def _norm(module):
    module.transformer.ln_f.weight.data[3] += 0.5


def _head(module):
    module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight.detach().clone())
    module.lm_head.weight.data[3] += 0.5


@pytest.mark.parametrize(
    ("fault", "point"), [(_embedding, "embed"), (_norm, "norm"), (_head, "logits")]
)
def test_embedding_norm_and_head_take_part(fault, point):
    module = zoo.build("gpt2")
    twin = copy.deepcopy(module)
    twin.lm_head.weight = torch.nn.Parameter(twin.lm_head.weight.detach().clone())
    fault(twin)
    report = driftwalk.verify(module, candidate=twin, policy="calibrated")
    assert report.root_cause.point.name == point


def test_a_layer_that_makes_nan_is_blamed():
    module = zoo.build("gpt2")
    twin = copy.deepcopy(module)
    twin.transformer.h[1].mlp.c_proj.bias.data[0] = float("nan")
    report = driftwalk.verify(module, candidate=twin, policy="calibrated")
    assert report.layer("layer.1").verdict == "nonfinite"
    assert report.root_cause.point.name == "layer.1"


def test_later_layers_inherit():
    module = zoo.build("gpt2")
    model = open_model(module)
    probe = make_probe(model)
    twin = copy.deepcopy(module)
    twin.transformer.h[0].mlp.c_proj.weight.data[3, 5] += 0.5
    truth = create("truth", model)
    known = calibrate(truth, create("torch:cpu:fp32", model), probe)
    found = blame(truth, known, create("torch", twin).trace(probe))
    assert found["layer.0"].guilty
    assert not found["layer.1"].guilty
    assert found["layer.0"].introduced > 100 * found["layer.0"].inherited
    assert found["layer.1"].inherited > 100 * found["layer.1"].introduced
    assert 0.1 < found["layer.1"].gain < 10


def test_a_head_of_another_shape_is_its_own_cause():
    module = zoo.build("gpt2")
    port = copy.deepcopy(module)
    port.lm_head = torch.nn.Linear(module.config.n_embd, 7, bias=False)
    report = driftwalk.verify(module, candidate=port)
    assert report.layer("logits").verdict == "shape"
    assert report.cause == "logits"
    assert not any("root cause" in note or "look inside" in note for note in report.notes)


def test_a_layer_that_is_not_there_is_not_looked_into():
    module = zoo.build("gpt2")
    port = copy.deepcopy(module)
    port.transformer.h = port.transformer.h[:-1]
    report = driftwalk.verify(module, candidate=port)
    assert report.root_cause is not None
    assert report.root_cause.verdict == "missing"
    assert not any("look inside" in note for note in report.notes)


def test_what_both_sides_gave_bit_by_bit_is_no_cause():
    """However much the truth finds wrong with it: the difference came later."""
    module = zoo.build("gpt2")
    port = copy.deepcopy(module)
    port.transformer.h[2].mlp.c_proj.weight.data[3, 4] += 1.0
    report = driftwalk.verify(module, candidate=port)
    assert report.cause == "layer.2"
    found = {row.point.name: row.blame for row in report.layers if row.blame is not None}
    guilty = found | {"layer.0": replace(found["layer.0"], guilty=True)}
    assert report.layer("layer.0").metrics.max_abs == 0
    assert root_cause(guilty, report.layers) == "layer.2"
    apart = replace(report.layer("layer.0").metrics, max_abs=1e-7)
    rows = [replace(r, metrics=apart) if r.index == 1 else r for r in report.layers]
    assert root_cause(guilty, rows) == "layer.0"


def test_where_roundings_tip_over_a_layer_within_its_allowance_is_blamed_last():
    """One of its tokens tipped over, and blame sees no more of a fault that is small."""
    module = zoo.build("gpt2")
    port = copy.deepcopy(module)
    port.transformer.h[2].mlp.c_proj.weight.data[3, 4] += 1.0
    report = driftwalk.verify(module, candidate=port)
    found = {row.point.name: row.blame for row in report.layers if row.blame is not None}
    tipped = found | {"layer.1": replace(found["layer.1"], guilty=True)}
    near = replace(report.layer("layer.1").metrics, max_abs=1e-7)
    rows = [replace(r, metrics=near) if r.index <= 2 else r for r in report.layers]
    assert report.layer("layer.1").ok
    assert root_cause(tipped, rows) == "layer.1"
    assert root_cause(tipped, rows, tips=True) == "layer.2"
    alone = {n: replace(item, guilty=n == "layer.1") for n, item in found.items()}
    assert root_cause(alone, rows, tips=True) == "layer.1"


@pytest.mark.parametrize(
    ("faulty", "lost", "cause", "among"),
    [
        ("h.1", ("layer.1",), "layer.2", ("layer.1",)),
        ("h.1", ("embed", "layer.0", "layer.1"), "layer.2", ("embed", "layer.0", "layer.1")),
        ("h.2", ("layer.1", "norm"), "layer.2", ("layer.1",)),
        ("h.1", ("layer.0", "layer.2"), "layer.1", ("layer.0",)),
        ("h.1", ("layer.2",), "layer.1", ()),
    ],
)
def test_a_cause_with_layers_before_it_that_gave_no_state_is_one_of_several(
    faulty: str, lost: tuple[str, ...], cause: str, among: tuple[str, ...], tmp_path: Path
) -> None:
    module = zoo.build("gpt2")
    port = copy.deepcopy(module)
    port.transformer.get_submodule(faulty).mlp.c_proj.weight.data[3, 4] += 1.0
    model = open_model(module)
    probe = make_probe(model)
    whole = driftwalk.backend("torch", open_model(port)).trace(probe)
    kept = tuple(state for state in whole if state.point.name not in lost)
    replace(whole, states=kept).save(tmp_path / "port.trace")
    report = driftwalk.verify(model, f"trace:{tmp_path / 'port.trace'}", probe=probe)
    assert report.verdict == "drift"
    assert report.cause == cause
    assert report.cause_among == among
    assert to_dict(report).get("cause_among", []) == list(among)


def test_of_another_shape_is_no_state_that_the_truth_can_be_handed():
    true, point = np.zeros((1, 2, 3)), "layer.{}"
    info = BackendInfo("side", "side", "cpu", "fp32")
    probe = Probe({"input_ids": np.ones((1, 2), np.int64)})
    names = [*(point.format(i) for i in range(3)), "logits", "output.0"]
    truth = Trace(tuple(State(Point(n, n), true) for n in names), probe, info)
    odd = tuple(State(Point(n, n), true[..., :2] if n == "layer.1" else true) for n in names)
    assert unseen_before("layer.2", truth, Trace(odd, probe, info)) == ("layer.1",)
    few = Trace((odd[0], odd[4]), probe, info)
    assert unseen_before("output.0", truth, few) == ("layer.1", "layer.2")
    assert unseen_before("layer.2", truth, few) == ()  # a layer that only one side has


def test_points_without_a_state_are_no_reason_to_look_for_a_cause():
    module = zoo.build("gpt2")
    port = copy.deepcopy(module)
    port.transformer.h[1].mlp.c_proj.weight.data[3, 4] += 1.0
    drifting = driftwalk.verify(module, candidate=port, blame=False).layers
    lost = tuple(replace(row, verdict="ok" if row.ok else "missing") for row in drifting)
    assert not _worth_a_closer_look(lost)
    assert _worth_a_closer_look(drifting)
    assert not _worth_a_closer_look(drifting[:1])


def test_where_only_an_output_is_missing_no_side_is_said_to_drift(tmp_path: Path):
    """The reference gave all that it has, and is within its allowance."""
    module = zoo.build("gpt2")
    recorded = driftwalk.record(module)
    states = tuple(one for one in recorded if one.point.name != "logits")
    save_trace(replace(recorded, states=states), tmp_path / "trace")
    report = driftwalk.verify(module, candidate=f"trace:{tmp_path / 'trace'}")
    assert report.verdict == "drift"
    assert report.coverage.missing == ("logits",)
    assert report.cause is None
    assert not any("No root cause" in note for note in report.notes)
