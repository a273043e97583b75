"""Graphs that driftwalk did not make: with names, without, optimised, and with a fault inside."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

import driftwalk
import graphs
import zoo
from driftwalk.errors import BackendError, UsageError
from driftwalk_backends.matching import Pool, error
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model

NAMES = ("gpt2", "llama", "bert", "albert", "distilbert")
PRODUCTS = {"gpt2": 4, "llama": 7, "bert": 6, "albert": 6, "distilbert": 6}
"""Products with a stored matrix in one block, so that the last of layer k can be spoilt."""

Make = Callable[..., Path]


@cache
def model(name: str, seed: int = 0) -> LoadedModel:
    return open_model(zoo.build(name, seed))


@cache
def probe(name: str, seed: int = 0) -> driftwalk.Probe:
    return make_probe(model(name, seed), seed=seed)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Exports of tiny models, each made once."""

    @cache
    def make(name: str, dynamo: bool = False) -> Path:
        folder = tmp_path_factory.mktemp(name)
        return graphs.export(model(name).module, probe(name), folder, dynamo)

    return make


@cache
def sound(name: str, path: Path) -> int:
    """How many states a graph without a fault has."""
    return len(states(name, path))


def states(name: str, path: Path) -> driftwalk.Trace:
    with driftwalk.backend(f"onnxruntime,file={path}", model(name)) as backend:
        return backend.trace(probe(name))


def surviving(name: str, path: Path, right: driftwalk.Trace) -> list[str]:
    """The states that some tensor of a graph still holds: an optimiser may fuse one away."""
    with driftwalk.backend(f"onnxruntime,file={path}", model(name)) as backend:
        backend.run(probe(name))
        keys = [*backend.parts.floats, *backend.parts.outputs]
        sizes = frozenset(state.array.size for state in right)
        pool = Pool(backend.runs.fetch(probe(name), keys, sizes))
    return [s.point.name for s in right if pool.hits(s.array)[0].error < 1e-5]


def verify(name: str, path: Path) -> driftwalk.Report:
    return driftwalk.verify(
        model(name), candidate=f"onnxruntime,file={path}", probe=probe(name), policy="calibrated"
    )


def ways(report: driftwalk.Report) -> dict[str, str]:
    return {layer.point.name: layer.point.found for layer in report.layers}


def block_product(name: str, path: Path, layer: int) -> str:
    """The last product of a layer's block."""
    found = graphs.products(path)
    first = next(
        i
        for i, product in enumerate(found)
        if "lin" in product or "attn" in product.lower() or "attention" in product
    )
    return found[first + PRODUCTS[name] * (layer + 1) - 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_with_names_is_verified_at_every_point(name: str, made: Make) -> None:
    report = verify(name, made(name))
    assert report.ok, report
    assert not report.coverage.missing
    assert report.observer["candidate"].checked
    # On some processors ONNX Runtime fuses otherwise where a state is an output; it is told.
    assert report.observer["candidate"].within_tolerance
    found = ways(report)
    # One block applied many times has one scope: no name can tell its states apart.
    named = {n for n in found if n.startswith("layer.")} if name != "albert" else set()
    assert all(found[n] == "node names" for n in {*named, "embed"}), found
    assert found["logits"] == "output name"
    if name == "albert":
        assert {found[f"layer.{i}"] for i in range(zoo.LAYERS)} == {"value"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_without_any_name_states_are_found_by_value_and_never_wrongly(
    name: str, made: Make, tmp_path: Path
) -> None:
    matched = expected = 0
    source = made(name)
    right = states(name, source)
    graphs.strip(source, tmp_path / "stripped.onnx")
    files = [tmp_path / "stripped.onnx"]
    for level in ("ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"):
        graphs.optimise(source, tmp_path / f"{level}.named.onnx", level)
        graphs.strip(tmp_path / f"{level}.named.onnx", tmp_path / f"{level}.onnx")
        files.append(tmp_path / f"{level}.onnx")
    for path in files:
        found = states(name, path)
        wrong = [s.point.name for s in found if error(right[s.point.name], s.array) > 1e-5]
        assert not wrong, path.name
        matched += len(found)
        expected += len(surviving(name, path, right))
        assert {s.point.found for s in found} <= {"value", "output name"}
    assert matched >= 0.95 * expected, f"{matched} of {expected}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layer"), [(n, i % zoo.LAYERS) for i, n in enumerate(NAMES)])
def test_a_wrong_weight_is_placed_in_its_layer_with_names_and_without(
    name: str, layer: int, made: Make, tmp_path: Path
) -> None:
    def wrong(matrix: np.ndarray) -> np.ndarray:
        matrix[3, 5] += 0.5
        return matrix

    source = made(name)
    product = block_product(name, source, layer)
    faulty = graphs.spoil(source, tmp_path / "faulty.onnx", product, wrong)
    graphs.strip(faulty, tmp_path / "stripped.onnx")
    for path in (faulty, tmp_path / "stripped.onnx"):
        report = verify(name, path)
        assert report.verdict == "drift"
        assert not report.coverage.missing, path.name
        assert report.root_cause is not None
        assert report.root_cause.point.name == f"layer.{layer}", path.name


FAULTS: dict[str, graphs.Change] = {
    "a tenth more": lambda matrix: matrix * 1.1,
    "gone": lambda matrix: matrix * 0,
    "thirty times": lambda matrix: matrix * 30,
    "noise": lambda matrix: matrix + np.random.default_rng(0).standard_normal(matrix.shape),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how"),
    [("llama", "a tenth more"), ("bert", "gone"), ("gpt2", "thirty times"), ("llama", "noise")],
)
def test_a_layer_however_wrong_is_matched_rightly_or_not_at_all(
    name: str, how: str, made: Make, tmp_path: Path
) -> None:
    source, missing = made(name), 0
    for layer in range(zoo.LAYERS):
        product = block_product(name, source, layer)
        faulty = graphs.spoil(source, tmp_path / "faulty.onnx", product, FAULTS[how])
        right = states(name, faulty)
        assert len(right) == sound(name, source)
        graphs.strip(faulty, tmp_path / "stripped.onnx")
        found = states(name, tmp_path / "stripped.onnx")
        wrong = [s.point.name for s in found if error(right[s.point.name], s.array) > 1e-4]
        assert not wrong, f"layer {layer}"
        missing += len(right) - len(found)
    assert missing <= 1


@pytest.mark.slow
def test_scope_metadata_comes_first(made: Make) -> None:
    report = verify("bert", made("bert", dynamo=True))
    assert report.ok, report
    assert set(ways(report).values()) == {"scope metadata", "output name"}, ways(report)
    told = json.loads(driftwalk.result.to_json(report))
    assert [layer["found"] for layer in told["layers"]] == list(ways(report).values())
    assert driftwalk.result.from_dict(told).layers[1].point.found == "scope metadata"


@pytest.mark.slow
def test_scopes_that_lie_are_not_believed(made: Make, tmp_path: Path) -> None:
    """Node names of layers 0 and 1 exchanged: values say otherwise."""
    graph = onnx.load(str(made("bert")))
    for node in graph.graph.node:
        node.name = node.name.replace("/layer.0/", "/layer.x/").replace("/layer.1/", "/layer.0/")
        node.name = node.name.replace("/layer.x/", "/layer.1/")
    onnx.save(graph, str(tmp_path / "lying.onnx"))
    right, found = states("bert", made("bert")), states("bert", tmp_path / "lying.onnx")
    assert found.names == right.names
    assert all(error(right[s.point.name], s.array) < 1e-5 for s in found)
    assert {s.point.found for s in found} >= {"value"}


@pytest.mark.slow
def test_inputs_and_outputs_without_names_are_told_by_shape_and_value(
    made: Make, tmp_path: Path
) -> None:
    graphs.strip(made("gpt2"), tmp_path / "bare.onnx", keep_ends=False)
    report = verify("gpt2", tmp_path / "bare.onnx")
    assert report.ok, report
    assert not report.coverage.missing
    assert ways(report)["logits"] == "output shape"


@pytest.mark.slow
def test_weights_beside_the_graph_are_used_where_they_are(made: Make, tmp_path: Path) -> None:
    whole = onnx.load(str(made("bert")))
    path = tmp_path / "model.onnx"
    onnx.save(
        whole, str(path), save_as_external_data=True, location="weights.bin", size_threshold=64
    )
    before = sorted(tmp_path.iterdir())
    report = verify("bert", path)
    assert report.ok, report
    assert sorted(tmp_path.iterdir()) == before, "nothing is written beside the user's file"


@pytest.mark.slow
def test_a_file_can_be_the_reference(made: Make) -> None:
    report = driftwalk.verify(
        model("gpt2"),
        reference=f"onnxruntime,file={made('gpt2')}",
        candidate="torch",
        probe=probe("gpt2"),
    )
    assert report.ok, report
    assert not report.coverage.missing
    assert not report.coverage.extra


@pytest.mark.slow
def test_the_part_that_is_wrong_is_named_inside_a_graph(made: Make, tmp_path: Path) -> None:
    product = block_product("gpt2", made("gpt2"), 1)
    faulty = graphs.spoil(made("gpt2"), tmp_path / "f.onnx", product, lambda m: m * 1.5)
    report = verify("gpt2", faulty)
    assert report.culprit is not None
    assert report.culprit.module == "transformer.h.1.mlp.c_proj"


@pytest.mark.slow
def test_another_models_graph_is_no_partner(made: Make, tmp_path: Path) -> None:
    graphs.strip(made("bert"), tmp_path / "stripped.onnx")
    report = driftwalk.verify(
        model("bert", 7), candidate=f"onnxruntime,file={made('bert')}", probe=probe("bert", 7)
    )
    assert report.verdict == "drift", "its names fit, its numbers do not"
    stripped = f"onnxruntime,file={tmp_path / 'stripped.onnx'}"
    with (
        driftwalk.backend(stripped, model("bert", 7)) as backend,
        pytest.raises(
            BackendError, match=r"None of the .* states .* Is it an export of this model"
        ),
    ):
        backend.trace(probe("bert", 7))


def test_what_cannot_be_meant_is_refused_at_construction(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        driftwalk.backend(f"onnxruntime,file={tmp_path}/no.onnx", "demo:decoder")
    with pytest.raises(UsageError, match="there is no such file"):
        driftwalk.backend("onnxruntime,file=", "demo:decoder")
    (tmp_path / "a.onnx").write_bytes(b"")
    with pytest.raises(UsageError, match="give one of the two"):
        driftwalk.backend(f"onnxruntime,file={tmp_path}/a.onnx,exporter=torch", "demo:decoder")
    with pytest.raises(UsageError, match="expected one of torch, transformers, optimum, auto"):
        driftwalk.backend("onnxruntime,exporter=magic", "demo:decoder")
    (tmp_path / "b.onnx").write_bytes(b"")
    backend = driftwalk.backend(f"onnxruntime,file={tmp_path}", "demo:decoder")
    with pytest.raises(UsageError, match=r"has neither model.onnx nor .* It has a.onnx, b.onnx"):
        backend.run(make_probe(open_model("demo:decoder")))


def test_another_probe_of_known_shapes_is_fed_as_well(made: Make) -> None:
    """States are looked for once for each shape; how a graph is fed is asked of each probe."""
    other = make_probe(model("gpt2"), seed=1)
    with driftwalk.backend(f"onnxruntime,file={made('gpt2')}", model("gpt2")) as backend:
        backend.prepared(probe("gpt2"))
        backend.prepared(other)
        ((part, feed),) = backend.runs.fed(other)
    np.testing.assert_array_equal(feed[part.graph.inputs[0].name], other.inputs["input_ids"])
