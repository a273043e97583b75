"""Decoding by ONNX Runtime: our own export, and graphs with a past that others made."""

from __future__ import annotations

import numpy as np
import pytest

import decoder_files as files
import driftwalk
from cli.program import invoke
from driftwalk.errors import BackendError
from driftwalk_backends.onnx.past import Kept, kept_as

STEPS = 5


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    files.export(files.model(), path)
    return path


def generated(candidate, given=None, **options):
    given = files.prompt() if given is None else given
    options = {"steps": STEPS, **options}
    return driftwalk.generate(files.model(), candidate=candidate, prompt=given, **options)


def of_file(path, given=None, **options):
    return generated(f"onnxruntime,file={path}", given, **options)


def names(report):
    return [row.point.name for row in report.layers]


EVERY_POINT = [
    *("embed", "layer.0", "layer.1", "norm", "logits"),
    *("layer.0.key", "layer.0.value", "layer.1.key", "layer.1.value"),
]


def passes(report):
    assert report.ok, (report, report.reason, report.explanation)
    assert report.cause is None
    assert report.parted is None or report.parted.tie
    assert {one.agreement for one in report.cache_paths.values()} <= {"bit-exact", "within noise"}


def test_its_own_export_decodes_padded_rows_in_a_window_as_candidate_and_as_reference():
    model, given = files.windowed(), {"prompt": files.padded(), "steps": STEPS}
    report = driftwalk.generate(model, "onnxruntime", **given)
    passes(report)
    assert names(report) == EVERY_POINT
    assert report.layer("layer.1.key").shape == (2, 5, files.SIZE), "what the next token can see"
    turned = driftwalk.generate(model, "torch", reference="onnxruntime", **given)
    passes(turned)
    assert [step.tokens for step in turned.steps] == [step.tokens for step in report.steps]
    passes(driftwalk.generate(model, "onnxruntime", cache="none", **given))


def test_a_file_with_a_past_is_decoded_and_its_states_found(exported):
    report = of_file(exported)
    passes(report)
    assert names(report) == EVERY_POINT
    assert not any(row.verdict == "missing" for row in report.layers)
    passes(of_file(exported, files.padded()))
    turned = generated("torch", reference=f"onnxruntime,file={exported}")
    passes(turned)
    assert [step.tokens for step in turned.steps] == [step.tokens for step in report.steps]


def pair(exported, folder, change=None):
    folder.mkdir(exist_ok=True)
    files.changed(exported, folder / "decoder_model.onnx", files.without_past)
    after = folder / "decoder_with_past_model.onnx"
    return files.changed(exported, after, change or (lambda made: None))


def test_a_pair_of_files_and_a_merged_one_show_outputs_and_caches(exported, tmp_path):
    one = pair(exported, tmp_path / "pair")
    (tmp_path / "merged").mkdir()
    files.merged(exported, tmp_path / "merged" / "decoder_model_merged.onnx")
    for path in (tmp_path / "pair", one, tmp_path / "merged"):
        report = of_file(path, files.padded())
        passes(report)
        compared = [row.point.name for row in report.layers if row.metrics is not None]
        assert compared == ["logits", *EVERY_POINT[-4:]]
        assert any("cannot be seen in every step" in note for note in report.notes)
    with pytest.raises(BackendError, match="cannot be the reference"):
        generated("torch", reference=f"onnxruntime,file={one}")


def test_a_graph_that_takes_no_mask_is_not_fed_padded_rows(exported, tmp_path):
    pair(exported, tmp_path)
    begins = tmp_path / "decoder_model.onnx"
    files.changed(begins, begins, lambda made: files.renamed(made, "attention_mask", "unknown"))
    with pytest.raises(BackendError, match="does not take 'attention_mask'"):
        of_file(tmp_path, files.padded())


def test_a_weight_that_is_wrong_in_the_decode_graph_alone(exported, tmp_path):
    pair(exported, tmp_path, files.wrong_weight(1))
    report = of_file(tmp_path)
    assert report.cause == "cache"
    assert report.first_divergence.step == 1
    assert report.root_cause.point.name == "layer.1.key"
    assert (report.root_cause.step, report.root_cause.slot) == (1, 6)
    assert "layer.1: what its cache holds as key in slot 6" in report.explanation


def test_a_weight_that_is_wrong_in_the_one_graph_is_the_backends_fault(exported, tmp_path):
    report = of_file(files.changed(exported, tmp_path / "m.onnx", files.wrong_weight(1)))
    assert report.cause == "backend"
    assert report.root_cause.point.name == "layer.1"


def test_a_layer_that_leaves_its_neighbours_values(exported, tmp_path):
    report = of_file(files.changed(exported, tmp_path / "m.onnx", files.neighbours_values))
    assert report.cause == "cache"
    assert report.root_cause.point.name == "layer.1"
    assert report.root_cause.step == 1
    assert "layer.1: what its cache holds as value" in report.explanation


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (files.cut_short, r"'present\.1\.key' as \[2, 2, 10, 8\] after 11 tokens.*wrong length"),
        (files.half_precision, r"'present\.0\.value' as float16: a cache of the wrong dtype"),
        (files.forgetful, r"takes 'past_key_values\.1\.key', and .* gives nothing for it"),
        (files.without_past, r"takes no past.*--task text-generation-with-past"),
    ],
    ids=["length", "dtype", "forgetful", "no past"],
)
def test_a_cache_that_cannot_be_gone_on_with(exported, tmp_path, change, said):
    with pytest.raises(BackendError, match=said):
        of_file(files.changed(exported, tmp_path / "m.onnx", change))


@pytest.mark.parametrize("other", [{"layers": 3}, {"heads": 3}])
def test_a_graph_of_another_model(exported, other):
    with pytest.raises(BackendError, match=r"model\.onnx keeps .*: it is a graph of another model"):
        driftwalk.generate(
            files.model(**other),
            candidate=f"onnxruntime,file={exported}",
            prompt=files.prompt(),
            steps=2,
        )


def test_a_graph_of_the_same_shape_with_other_weights_drifts_from_the_prompt_on(exported):
    report = driftwalk.generate(
        files.model(seed=1), f"onnxruntime,file={exported}", prompt=files.prompt(), steps=2
    )
    assert report.cause == "backend"
    assert report.first_divergence.step == 0
    assert report.root_cause.point.name in ("embed", "layer.0")


def test_the_command_ends_with_3_where_a_graph_cannot_be_decoded(exported, tmp_path):
    given = ("generate", "demo:decoder", "--ids", "5 17", "--steps", "2", "-c")
    invoke(*given, f"onnxruntime,file={exported}").refused(3, "a graph of another model")
    plain = files.changed(exported, tmp_path / "m.onnx", files.without_past)
    invoke(*given, f"onnxruntime,file={plain}").refused(3, "takes no past")
    invoke(*given, "onnxruntime", "--cache", "static").refused(3, "no static cache")


def test_what_graphs_do_not_keep_is_refused(exported):
    with pytest.raises(BackendError, match="no static cache"):
        of_file(exported, cache="static")
    with pytest.raises(BackendError, match="scales by all tokens of a run"):
        generated("onnxruntime,quantize=dynamic-int8")


def test_a_verification_after_a_generation_is_as_before(exported):
    model = files.model()
    with driftwalk.backend(f"onnxruntime,file={exported}", model) as backend:
        before = backend.trace(files.prompt())
        from driftwalk.decoding import Decoding

        backend.decode(Decoding((4, 1, 1)))
        stepped = backend.trace(files.prompt())
        backend.decode(None)
        after = backend.trace(files.prompt())
    assert before.names == after.names
    assert set(stepped.names) > set(after.names)
    for name in after.names:
        assert np.array_equal(before[name], after[name])
        assert np.allclose(stepped[name], after[name], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("past_key_values.3.key", Kept(3, "key")),
        ("present.3.encoder.value", Kept(3, "value", cross=True)),
        ("input.past_key_values.layers.3.keys", Kept(3, "key")),
        ("present.0.recurrent.1", Kept(0, "recurrent", 1)),
        ("logits", None),
        (f"past_key_values.{'9' * 5000}.key", None),
    ],
)
def test_what_a_graph_keeps_is_told_by_its_names(name, kept):
    assert kept_as(name) == kept
