"""Every output of a model is a point: whatever it is wrapped in, whatever it is made of."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

import driftwalk
from driftwalk.judge.exact import exact_row
from driftwalk.result import Report
from driftwalk.tolerance import make_policy
from driftwalk_backends.model_outputs import given_by, named_outputs
from driftwalk_reports.schema import load_schema
from outputs import (
    GIVES,
    IDS,
    Headed,
    Opaque,
    detector,
    headed,
    pre_training,
    question_answering,
    second_head,
    spoilt,
)

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")

NOTE = "whole numbers are compared exactly"


def _verify(model: nn.Module, candidate: object, **options: Any) -> Report:
    return driftwalk.verify(model, candidate, probe=IDS, cache=False, **options)


@pytest.mark.parametrize("kind", GIVES)
def test_a_destroyed_output_is_drift_at_its_own_point(kind: str) -> None:
    model, point = headed(kind), GIVES[kind][1]
    report = _verify(model, spoilt(model, second_head))
    assert report.verdict == "drift"
    assert report.first_divergence is not None
    assert (report.first_divergence.point.name, report.cause) == (point, point)
    assert _verify(model, copy.deepcopy(model)).ok


@pytest.mark.parametrize("policy", ["calibrated", "dtype", "fixed:1e3,1e3"])
@pytest.mark.parametrize("kind", ["integers", "booleans", "bytes"])
def test_whole_numbers_are_exact_under_every_policy(kind: str, policy: str) -> None:
    model, point = headed(kind), GIVES[kind][1]
    row = _verify(model, spoilt(model, second_head), policy=policy).layer(point)
    assert row.verdict == "drift"
    assert row.metrics is not None
    assert 0 < row.metrics.mismatched <= row.metrics.total
    assert row.note == NOTE


def _end(model: Any) -> None:
    model.qa_outputs.weight[1] *= 2


def _next_sentence(model: Any) -> None:
    model.cls.seq_relationship.weight *= -1


def _pooler(model: Any) -> None:
    model.bert.pooler.dense.weight *= 0.5


def _boxes(model: Any) -> None:
    model.bbox_predictor.layers[2].weight.zero_()


@pytest.mark.parametrize(
    ("make", "change", "point"),
    [
        (question_answering, _end, "output.end_logits"),
        (pre_training, _next_sentence, "output.seq_relationship_logits"),
        (pre_training, _pooler, "output.seq_relationship_logits"),
        (detector, _boxes, "output.pred_boxes"),
    ],
)
def test_heads_of_transformers(
    make: Callable[[], nn.Module], change: Callable[[Any], None], point: str
) -> None:
    model = make()
    report = driftwalk.verify(model, spoilt(model, change), cache=False)
    assert report.first_divergence is not None
    assert (report.first_divergence.point.name, report.cause) == (point, point)
    clean = driftwalk.verify(model, "emulated:bf16", cache=False)
    assert clean.ok
    assert point in [row.point.name for row in clean.layers]


def test_the_answer_of_a_question_is_a_decision() -> None:
    model = question_answering()
    report = driftwalk.verify(model, copy.deepcopy(model), cache=False)
    assert report.outputs is not None
    assert report.outputs.positions == 2  # one start for each row


def test_an_embedding_is_no_decision() -> None:
    """The point is `logits`, as of every main output; reports call it as the model does."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    images = {"pixel_values": np.random.default_rng(0).standard_normal((4, 3, 16, 16))}
    clip = tf.CLIPVisionModelWithProjection(tf.CLIPVisionConfig(**sizes, projection_dim=8)).eval()
    report = driftwalk.verify(clip, candidate="emulated:bf16", probe=images)
    assert report.ok
    assert report.outputs is None
    assert report.layer("logits").point.output == "image_embeds"
    assert [one.output for one in report.embeddings] == ["image_embeds", "last_hidden_state"]
    assert all(0.99 < one.cosine_min < 1 and one.compared for one in report.embeddings)
    printed = _printed(report)
    assert "logits (image_embeds)" in printed
    assert "image_embeds: cosine to the reference 1" in printed
    assert "top choice" not in printed
    vit = tf.ViTModel(tf.ViTConfig(**sizes), add_pooling_layer=False).eval()
    report = driftwalk.verify(vit, candidate="emulated:bf16", probe=images)
    assert [one.output for one in report.embeddings] == ["last_hidden_state"]
    assert "logits" not in _printed(report)


def test_states_that_are_given_as_they_are_have_one_row() -> None:
    model = Headed(lambda m, x: {"last": x, "copy": x.clone(), "boxes": m.second(x)})
    with driftwalk.backend("torch", model) as backend:
        trace = backend.trace(driftwalk.Probe(IDS))
    assert trace.names[-2:] == ("layer.2", "logits")
    assert set(trace.outputs) == {"last", "copy", "boxes"}


def test_an_output_that_was_a_state_by_accident_is_a_point_where_it_is_none() -> None:
    def give(model: Headed, x: torch.Tensor) -> Any:
        return {"scores": model.head(x), "late": x * (1 + model.accident)}

    model = Headed(give)
    model.register_buffer("accident", torch.zeros(()))
    with driftwalk.backend("torch", model) as backend:
        probe = driftwalk.Probe(IDS)
        assert "output.late" not in backend.trace(probe).names
        model.accident.fill_(0.5)
        assert "output.late" in backend.trace(probe).names


def test_a_list_that_is_longer_on_one_side_is_extra_or_missing() -> None:
    def give(model: Headed, x: torch.Tensor) -> Any:
        return [model.head(x), *(model.second(x) for _ in range(int(model.sign)))]

    short, long = Headed(give), Headed(give)
    long.load_state_dict(short.state_dict())
    long.sign = 3.0
    assert _verify(short, long).coverage.extra == ("output.2", "output.3")
    assert _verify(long, short).coverage.missing == ("output.2", "output.3")


def test_as_many_boxes_as_the_numbers_say() -> None:
    def give(model: Headed, x: torch.Tensor) -> Any:
        found = model.second(x)
        return {"scores": model.head(x), "boxes": found[found[..., 0] > model.threshold]}

    model = Headed(give)
    model.threshold = 0.0
    assert _verify(model, copy.deepcopy(model)).ok
    report = _verify(model, spoilt(model, lambda m: setattr(m, "threshold", 0.3)))
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == "output.boxes"
    assert report.first_divergence.verdict == "shape"
    model.threshold = 1e9  # none at all
    assert _verify(model, copy.deepcopy(model)).ok


def test_scores_that_are_masked_alike_are_equal() -> None:
    def give(model: Headed, x: torch.Tensor) -> Any:
        found = model.second(x)
        return {
            "scores": model.head(x),
            "masked": found.masked_fill(found < model.sign, -torch.inf),
        }

    model = Headed(give)
    model.sign = 0.0
    assert _verify(model, copy.deepcopy(model)).ok
    report = _verify(model, spoilt(model, lambda m: setattr(m, "sign", -0.2)))
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == "output.masked"


def test_what_is_not_compared_is_named() -> None:
    def give(model: Headed, x: torch.Tensor) -> Any:
        return {"scores": model.head(x), "hidden": Opaque(x), "text": "a word", "loss": x.sum()}

    model = Headed(give)
    report = _verify(model, copy.deepcopy(model))
    assert report.ok
    assert report.coverage.outputs_skipped == ("loss", "hidden")
    assert "hidden" in _printed(report)


def _printed(report: Report) -> str:
    from driftwalk_reports.terminal import render

    return render(report, width=120)


def test_states_that_transformers_was_asked_for_are_no_outputs() -> None:
    model = question_answering()
    model.config.output_hidden_states = True
    report = driftwalk.verify(model, copy.deepcopy(model), cache=False)
    assert report.ok
    assert report.coverage.outputs_skipped == ("hidden_states",)
    assert [row.point.name for row in report.layers][-2:] == ["logits", "output.end_logits"]


def test_a_rule_for_the_point_itself_gives_whole_numbers_room() -> None:
    model = headed("integers")
    wrong = spoilt(model, second_head)
    rules = {"output.ids": driftwalk.Tolerance(3.0), "logits": driftwalk.Tolerance(1e-3)}
    assert _verify(model, wrong, policy=rules).ok
    assert not _verify(model, wrong, policy=rules | {"output.ids": driftwalk.Tolerance(1.0)}).ok


def test_whole_numbers_that_no_double_tells_apart() -> None:
    def give(model: Headed, x: torch.Tensor) -> Any:
        return {"scores": model.head(x), "count": torch.full((2,), 2**53 + int(model.sign))}

    model = Headed(give)
    row = _verify(model, spoilt(model, lambda m: setattr(m, "sign", 0.0))).layer("output.count")
    assert row.verdict == "drift"
    assert row.metrics is not None
    assert (row.metrics.mismatched, row.metrics.max_abs) == (2, 1.0)


def test_padding_of_whole_numbers_does_not_count() -> None:
    mask = np.ones((2, 6), np.int64)
    mask[:, -2:] = 0
    probe = driftwalk.Probe({**IDS, "attention_mask": mask})
    point = driftwalk.Point("output.ids")
    ids = np.arange(12).reshape(2, 6)
    for place, verdict in (((1, 5), "ok"), ((1, 3), "drift")):
        other = ids.copy()
        other[place] += 9
        states = driftwalk.State(point, ids), driftwalk.State(point, other)
        assert exact_row(point, *states, probe, make_policy("calibrated")).verdict == verdict


def test_a_result_with_whole_numbers_is_stored_and_read(tmp_path: Path) -> None:
    model = headed("integers")
    report = _verify(model, spoilt(model, second_head))
    file = report.save(tmp_path) / "result.json"
    jsonschema.Draft202012Validator(load_schema()).validate(
        json.loads(file.read_text(encoding="utf-8"))
    )
    again = driftwalk.load(file).layer("output.ids")
    assert (again.verdict, again.note) == ("drift", NOTE)
    assert "output.ids" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_names_are_paths_and_no_two_are_the_same() -> None:
    one = torch.ones(2)
    assert list(named_outputs(one)) == ["output"]
    assert list(named_outputs((one, one, [one]))) == ["output", "output.1", "output.2.0"]
    assert list(named_outputs((one.long(), one))) == ["output.0", "output"]
    assert list(named_outputs({"a.b": one, "a": {"b": one}})) == ["a.b", "a.b#2"]
    assert list(named_outputs({"1": one, "output": {"1": one}})) == ["1", "output.1#2"]
    assert given_by({"x": one.to_sparse(), "y": None, "z": 3}).skipped == ["x"]
    assert named_outputs(torch.ones(3, dtype=torch.complex64))["output"].shape == (3, 2)


@pytest.mark.parametrize("kind", ["nested dict", "integers", "booleans", "complex", "a number"])
def test_compiled_and_exported_models_give_the_same_points(kind: str) -> None:
    model, point = headed(kind), GIVES[kind][1]
    wrong = spoilt(model, second_head)
    for candidate in ("onnxruntime", "torch,compile=aot_eager"):
        report = _verify(model, candidate)
        assert report.ok, report.first_divergence
        assert report.layer(point).verdict == "ok"
        with driftwalk.backend(candidate, wrong) as backend:
            report = _verify(model, backend)
        assert report.first_divergence is not None
        assert report.first_divergence.point.name == point


@pytest.mark.parametrize("kind", ["integers", "booleans", "bytes", "complex", "halves", "doubles"])
def test_outputs_are_in_traces_and_signatures(kind: str, tmp_path: Path) -> None:
    sign = driftwalk.Signature.of
    model, point = headed(kind), GIVES[kind][1]
    probe = driftwalk.Probe(IDS)
    traces = []
    for one in (model, spoilt(model, second_head)):
        with driftwalk.backend("torch", one) as backend:
            traces.append(backend.trace(probe))
    again = driftwalk.Trace.load(traces[0].save(tmp_path / "golden.trace"))
    assert np.array_equal(again[point], traces[0][point])
    assert again[point].dtype == traces[0][point].dtype
    assert driftwalk.compare(again, traces[0]).ok
    assert driftwalk.compare(again, traces[1]).first_divergence.point.name == point
    assert driftwalk.compare(sign(again), traces[0]).ok
    assert driftwalk.compare(sign(again), traces[1]).first_divergence.point.name == point
    assert driftwalk.verify(model, f"trace:{tmp_path / 'golden.trace'}", cache=False).ok


def test_a_trace_from_when_one_output_was_a_point(tmp_path: Path) -> None:
    model = headed("nested dict")
    with driftwalk.backend("torch", model) as backend:
        trace = backend.trace(driftwalk.Probe(IDS))
    old = replace(trace, states=trace.states[:-1])
    assert old.names[-1] == "logits"
    golden = f"trace:{old.save(tmp_path / 'golden.trace')}"
    assert driftwalk.verify(model, golden, cache=False).ok
    report = driftwalk.verify(spoilt(model, second_head), golden, cache=False)
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == "output.found.0.boxes"
