"""What the peers answer on a tiny model: a clean copy, a fault in one layer, NaN."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from proving.case import EVERY
from proving.peers import PAGE, PEERS, Answer, ask_all, graphs, quiet

BY_HAND, POLYGRAPHY, VERIFICATION, DYNAMO, DIAGNOSTIC = (peer.name for peer in PEERS)
WIDTH = 8
INPUTS = {"x": np.linspace(-1, 1, 3 * WIDTH, dtype=np.float32).reshape(3, WIDTH)}
MISSING = {
    POLYGRAPHY: () if find_spec("polygraphy") else ("polygraphy",),
    DIAGNOSTIC: tuple(name for name in ("onnx_diagnostic", "scipy") if not find_spec(name)),
}
EAGER = (BY_HAND, POLYGRAPHY, DYNAMO)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.mix(self.norm(x)))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = layer(x)
        return {"logits": self.head(x), "hidden": x.T}  # x.T is not contiguous


def net() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net().eval()


def changed(path: str, factor: float) -> Net:
    module = net()
    module.get_parameter(path).data *= factor
    return module


def here(name: str) -> None:
    if missing := MISSING.get(name):
        pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.fixture(scope="module")
def clean_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with quiet():
        return graphs.written(REFERENCE, INPUTS, tmp_path_factory.mktemp("graph") / "clean.onnx")


REFERENCE = net()


def with_initialiser(graph: Path, name: str, factor: float, path: Path) -> Path:
    """A graph with one initialiser times a factor."""
    model = onnx.load(str(graph))
    (tensor,) = (t for t in model.graph.initializer if t.name.endswith(name))
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * factor, tensor.name))
    onnx.save(model, str(path))
    return path


def test_each_says_what_it_is_and_who_it_is():
    assert set(PAGE) == {peer.name for peer in PEERS}
    for peer in PEERS:
        assert set(peer.runs) <= set(EVERY)
        assert peer.version or peer.name in MISSING


@pytest.mark.parametrize("name", EAGER)
def test_a_clean_copy_is_the_same(name):
    here(name)
    assert ask_all(REFERENCE, net(), INPUTS, "fp32")[name] == Answer("same")


@pytest.mark.parametrize(("name", "place"), [*((n, "layers.1") for n in EAGER[:2]), (DYNAMO, "")])
def test_a_weight_that_is_changed_is_seen_and_placed_by_those_with_hooks(name, place):
    here(name)
    answer = ask_all(REFERENCE, changed("layers.1.up.weight", 1.5), INPUTS, "fp32")[name]
    assert (answer.verdict, answer.place) == ("differs", place)
    assert answer.why


@pytest.mark.parametrize(
    ("name", "both"), [(BY_HAND, "differs"), (POLYGRAPHY, "differs"), (DYNAMO, "same")]
)
def test_nan_on_one_side_differs_and_on_both_it_depends(name, both):
    here(name)
    broken = changed("layers.1.down.bias", float("nan"))
    assert ask_all(REFERENCE, broken, INPUTS, "fp32")[name].verdict == "differs"
    assert ask_all(broken, copy.deepcopy(broken), INPUTS, "fp32")[name].verdict == both


def test_in_half_precision_rounding_is_a_difference_to_those_with_one_tolerance():
    answers = ask_all(REFERENCE, net(), INPUTS, "bf16")
    assert answers[DYNAMO].verdict == "same"
    if not MISSING[POLYGRAPHY]:
        assert answers[POLYGRAPHY].verdict == "differs"


def test_int8_runs():
    answers = ask_all(REFERENCE, net(), INPUTS, "int8")
    assert {answers[n].verdict for n in (BY_HAND, DYNAMO)} <= {"same", "differs"}


def test_where_the_blocks_have_other_names_the_outputs_are_compared():
    candidate = net()
    candidate.layers = nn.Sequential(candidate.layers[0], candidate.layers[2])
    answer = ask_all(REFERENCE, candidate, INPUTS, "fp32")[BY_HAND]
    assert (answer.verdict, answer.place) == ("differs", "")


def test_blocks_of_a_single_child_are_hooked_too():
    sides = net(), changed("layers.1.up.weight", 1.5)
    for side in sides:
        side.layers = nn.ModuleList(nn.Sequential(layer) for layer in side.layers)
    assert ask_all(*sides, INPUTS, "fp32")[BY_HAND].place == "layers.1"


def test_what_cannot_be_run_is_said():
    answers = ask_all(REFERENCE, net(), INPUTS, "generate")
    assert answers[BY_HAND] == Answer("cannot", why="TypeError: Net has no generate")
    assert answers[VERIFICATION] == Answer("cannot", why="it has no way to run generate")
    answers = ask_all(REFERENCE, "onnx:somewhere", INPUTS, "fp32")
    assert {answer.verdict for answer in answers.values()} == {"cannot"}
    assert "not a torch module" in answers[DYNAMO].why


ONNX = {BY_HAND: "", POLYGRAPHY: "layers.1.up", VERIFICATION: "", DYNAMO: ""}


@pytest.mark.slow
def test_on_a_clean_graph_all_that_run_onnx_say_the_same(clean_graph):
    answers = ask_all(REFERENCE, clean_graph, INPUTS, "onnx")
    for name in ONNX:
        if not MISSING.get(name):
            assert answers[name] == Answer("same"), (name, answers[name])


@pytest.mark.slow
def test_an_initialiser_that_is_changed_is_seen_and_placed_by_polygraphy(clean_graph, tmp_path):
    graph = with_initialiser(clean_graph, "layers.1.up.weight", 1.5, tmp_path / "changed.onnx")
    answers = ask_all(REFERENCE, graph, INPUTS, "onnx")
    for name, place in ONNX.items():
        if not MISSING.get(name):
            assert (answers[name].verdict, answers[name].place) == ("differs", place), name


@pytest.mark.slow
def test_nan_in_a_graph_passes_torchs_verification(clean_graph, tmp_path):
    graph = with_initialiser(clean_graph, "layers.1.down.bias", float("nan"), tmp_path / "nan.onnx")
    answers = ask_all(REFERENCE, graph, INPUTS, "onnx")
    assert answers[BY_HAND].verdict == answers[DYNAMO].verdict == "differs"
    assert answers[VERIFICATION] == Answer("same")


@pytest.mark.slow
def test_onnx_diagnostic_sees_no_weight_that_it_takes_from_the_program(clean_graph, tmp_path):
    here(DIAGNOSTIC)

    def errors(graph: Path) -> dict[str, float]:
        with quiet():
            records = graphs.side_by_side(REFERENCE, INPUTS, onnx.load(str(graph)))
            return {record.onnx_name: record.err_abs for record in records}

    def after(name: str, factor: float) -> dict[str, float]:
        return errors(with_initialiser(clean_graph, name, factor, tmp_path / "changed.onnx"))

    clean = errors(clean_graph)
    assert 0 < max(clean.values()) < 1e-5
    assert after("layers.1.up.weight", 1.5) == after("layers.1.up.weight", float("nan")) == clean
    assert max(after("layers.1.mix.weight", 1.5).values()) > 1e-3  # 8 x 8: it cannot be aligned
    answer = ask_all(REFERENCE, clean_graph, INPUTS, "onnx")[DIAGNOSTIC]
    assert answer.verdict in ("same", "differs"), answer.why
