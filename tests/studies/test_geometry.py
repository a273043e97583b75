"""Labelled sentences at every layer, on one backend and on two."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import driftwalk
from backends.test_real_models import MINILM, folder_of
from cli.program import invoke
from driftwalk.document import from_dict, load, to_json
from driftwalk.errors import UsageError
from driftwalk.tasks.studies.inputs import BUILT_IN, Dataset, load_dataset
from driftwalk.tasks.studies.results import Geometry
from driftwalk_backends.demo import decoder
from driftwalk_reports.schema import load_schema
from driftwalk_reports.studies.geometry import render
from driftwalk_reports.studies.geometry import render_page as page

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")

CITIES = load_dataset("cities-incomplete")
SOME = Dataset("some", CITIES.texts[::4], CITIES.labels[::4])


def noisy(size: float) -> torch.nn.Module:
    """The demo's decoder with noise on every weight."""
    model = decoder()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(size * parameter.std() * torch.randn_like(parameter))
    return model


@cache
def study(size: float) -> Geometry:
    return driftwalk.geometry("demo:decoder", SOME, candidate=noisy(size), k=4)


def test_the_built_in_set() -> None:
    whole = load_dataset("cities")
    assert len(whole.texts) == len(set(whole.texts)) == 100
    counts = {label: whole.labels.count(label) for label in set(whole.labels)}
    assert set(counts.values()) == {25}
    assert len(counts) == 4
    for name in ("cities-incomplete", "cities-complete"):
        part = load_dataset(name)
        assert sorted(set(part.labels)) == ["Berlin", "Paris"]
        named = [label in text for label, text in zip(part.labels, part.texts, strict=True)]
        assert sum(named) == (0 if "incomplete" in name else 50)
    assert set(BUILT_IN) == {"cities", "cities-incomplete", "cities-complete"}


def test_identical_backends_agree_wholly() -> None:
    found = driftwalk.geometry("demo:decoder", SOME, candidate="torch", k=4)
    assert found.pooling == "last"
    assert [x.point.name for x in found.layers] == [
        *("embed", *(f"layer.{i}" for i in range(6)), "norm")
    ]
    for layer in found.layers:
        assert layer.agreement is not None
        assert layer.agreement.knn_overlap == layer.agreement.cka == 1
        assert layer.agreement.procrustes < 1e-12
        assert layer.agreement.displacement == 0
        assert layer.separation == layer.candidate_separation
        assert layer.reference == layer.candidate


def test_agreement_falls_with_noise() -> None:
    rows = [study(size).layer("layer.5").agreement for size in (0.01, 0.1, 1.0)]
    cka, kept = [x.cka for x in rows if x], [x.knn_overlap for x in rows if x]
    assert 1 > cka[0] > cka[1] > cka[2]
    assert 1 >= kept[0] > kept[1] > kept[2]


def test_a_padded_batch_gives_the_mean_of_each_sentence() -> None:
    """Against one sentence at a time, which has no padding, from a plain trace."""
    found = driftwalk.geometry("demo:encoder", SOME, batch=5)
    assert found.pooling == "mean"
    from driftwalk.tasks.studies.geometry import _batches, pooled
    from driftwalk_backends.sources import open_model

    model = open_model("demo:encoder")
    with driftwalk.backend("torch", "demo:encoder") as backend:
        cloud = pooled(backend, _batches(model, SOME.texts, 5), "mean")
        for number in (0, 3, 7):
            (probe,) = _batches(model, [SOME.texts[number]], 1)
            trace = backend.trace(probe)
            for name in ("embed", "layer.5"):
                alone = trace[name][0].astype(np.float64).mean(axis=0)
                assert np.allclose(cloud[name][1][number], alone, rtol=0, atol=2e-6)


def test_only_pooled_vectors_are_kept() -> None:
    """A state per token of all sentences would be many times as much."""
    from driftwalk.tasks.studies.geometry import _batches, pooled
    from driftwalk_backends.sources import open_model

    model = open_model("demo:decoder")
    with driftwalk.backend("torch", "demo:decoder") as backend:
        cloud = pooled(backend, _batches(model, SOME.texts, 4), "last")
    assert {array.shape for _, array in cloud.values()} == {(len(SOME.texts), 64)}
    assert all(array.base is None for _, array in cloud.values())
    assert "logits" not in cloud


def test_a_candidate_that_overflows_is_a_finding() -> None:
    broken: Any = decoder()
    with torch.no_grad():
        broken.transformer.h[4].mlp.c_fc.weight[3, 5] = float("nan")
    found = driftwalk.geometry("demo:decoder", SOME, candidate=broken)
    assert "first at layer.4" in found.failed
    assert found.layer("layer.4").agreement is None
    assert found.layer("layer.3").agreement is not None
    assert "FAILED" in render(found)
    assert "NaN or Inf in 13 sentences" in page(found)


def test_json_fits_its_schema_and_comes_back(tmp_path: Path) -> None:
    found = study(0.1)
    data = json.loads(to_json(found))
    jsonschema.Draft202012Validator(load_schema(kind="geometry")).validate(data)
    assert from_dict(data) == found
    assert load(found.save(tmp_path) / "geometry.json") == found


def test_the_command_line(tmp_path: Path) -> None:
    lines = [{"text": f"Sentence {i} of {i % 2}", "label": f"l{i % 2}"} for i in range(8)]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n", "utf-8")
    done = invoke(
        *("geometry", "demo:encoder", "-d", str(file), "-c", "torch", "-k", "2", "--json"),
        *("-o", str(tmp_path / "out")),
    )
    assert done.code == 0, done.err
    found = from_dict(json.loads(done.out))
    assert isinstance(found, Geometry)
    assert found.dataset == "own.jsonl"
    assert found.labels[:2] == ("l0", "l1")
    assert "http" not in (tmp_path / "out" / "geometry.html").read_text("utf-8").replace(
        "http-equiv", ""
    )
    invoke("geometry", "demo:decoder", "-d", "citys").refused(2, "Did you mean 'cities'")
    invoke("geometry", "demo:decoder", "--pooling", "sum").refused(2, "last, cls, mean, max")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "text,label\nfine,x\n,y\n", "a.csv, line 3: text is empty"),
        ("a.csv", "text\nfine\n", "line 1: no column label"),
        ("a.csv", "text,label\nParis, the city,x\n", "line 2: more values than columns"),
        ("a.csv", 'text,label\n"open,x\n', "line 2"),
        ("a.csv", "", "line 1: no column text and no column label"),
        ("a.csv", "text,label\na,b\n", "has 1 rows; 4 to 2000"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{"text": 3, "label": "x"}', "line 2: text is"),
        ("a.jsonl", '{"text": "a"}', "line 1: label is empty"),
        ("a.jsonl", '\n{"text": ', "line 2: not JSON"),
        ("a.jsonl", "[1]", "line 1: expected an object"),
        ("a.txt", "", "Unknown dataset"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(UsageError) as error:
        load_dataset(tmp_path / name)
    assert told in str(error.value)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,label\n\xff\xfe,b\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_dataset(tmp_path / "a.csv")
    with pytest.raises(UsageError, match="Cannot read"):
        load_dataset(tmp_path / "none.csv")


def test_hostile_labels_and_sentences_are_harmless() -> None:
    hostile = Dataset(
        "<b>.csv", ("<script>alert(1)</script>", "\x1b[31mred", "a", "b"), ("<i>", "\x07", "x", "x")
    )
    found = driftwalk.geometry("demo:encoder", hostile)
    assert "<script>alert" not in page(found)
    assert "<i>:" not in page(found)
    assert not set("\x1b\x07") & set(render(found) + page(found))


def test_a_model_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(UsageError, match="tokenizer"):
        driftwalk.geometry(torch.nn.Linear(2, 2), SOME)


@pytest.mark.slow
def test_minilm_keeps_its_neighbours_in_bf16() -> None:
    found = driftwalk.geometry(folder_of(*MINILM[:2]), candidate="emulated:bf16")
    assert found.pooling == "mean"
    worst = found.least_overlap
    assert worst is not None
    assert worst.agreement is not None
    assert 0.98 < worst.agreement.knn_overlap < 1
