"""Two near-identical sentences, token by token and layer by layer: the experiment of seed 002."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import driftwalk
import zoo
from cli.program import invoke
from driftwalk.document import from_dict, load, to_dict, to_json
from driftwalk.errors import ProbeError, UsageError
from driftwalk.states import Probe
from driftwalk.tasks.studies.inputs import paired
from driftwalk.tasks.studies.results import Contrast
from driftwalk_reports.schema import load_schema
from driftwalk_reports.studies.contrast import render
from nets import residual
from studies import subjects
from studies.subjects import FRANCE, GERMANY, probe

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")


@cache
def seed_002() -> Contrast:
    return driftwalk.contrast(
        subjects.gpt2(), probe(FRANCE), probe(GERMANY), candidate="emulated:fp16"
    )


def test_numbers_equal_those_of_hidden_states_exactly() -> None:
    """Ten lines of one's own, as the seed has them; the last state is after the final norm."""
    model = subjects.gpt2()
    with torch.no_grad():
        one, two = (
            model(torch.tensor(ids), output_hidden_states=True).hidden_states
            for ids in (FRANCE, GERMANY)
        )
    apart = [(a.double() - b.double()).numpy() for a, b in zip(one, two, strict=True)]
    found = [x for x in seed_002().layers if x.point.name not in ("layer.11", "logits")]
    assert [x.point.name for x in found] == ["embed", *(f"layer.{i}" for i in range(11)), "norm"]
    for layer, rest in zip(found, apart, strict=True):
        assert np.array_equal(layer.l2, np.sqrt((rest * rest).sum(-1))), layer.point.name
        assert np.array_equal(layer.mean, rest.mean(-1)), layer.point.name
        assert np.array_equal(layer.std, rest.std(-1, ddof=1)), layer.point.name
    # torch's own norm in float32, which the seed prints, rounds otherwise in its last digits.
    printed = [torch.norm(a - b, dim=-1) for a, b in zip(one, two, strict=True)]
    for layer, shown in zip(found, printed, strict=True):
        assert np.allclose(layer.l2, shown.numpy(), rtol=1e-5)


def test_the_structure_of_the_table_in_seed_002() -> None:
    found = seed_002()
    rows = {layer.point.name: layer.l2[0] for layer in found.layers}
    assert found.rows[0].differs == (False, False, False, True, False, True, False)
    for name, values in rows.items():
        assert values[:3] == (0.0, 0.0, 0.0), name
        assert all(v is not None and v > 0 for v in (values[3], values[5])), name
    assert rows["embed"][4] == rows["embed"][6] == 0
    assert all(v is not None and v > 0 for v in rows["layer.0"][4:])
    last, norm = rows["layer.11"], rows["norm"]
    assert all((b or 0) < (a or 0) for a, b in zip(last[3:], norm[3:], strict=True))


def test_drift_in_units_of_meaning() -> None:
    """fp16 drift over the distance, from traces alone."""
    found = seed_002()
    model = subjects.gpt2()
    pairs = [
        [driftwalk.backend(spec, model).trace(probe(ids)) for ids in (FRANCE, GERMANY)]
        for spec in ("torch", "emulated:fp16")
    ]
    (a, b), (c, d) = pairs
    for name in ("embed", "layer.5", "norm"):
        drift = [x[name].astype(float) - y[name].astype(float) for x, y in ((a, c), (b, d))]
        meant = a[name][:, 3:].astype(float) - b[name][:, 3:].astype(float)
        inside = np.stack([x[:, 3:] for x in drift])
        wanted = np.sqrt((inside**2).sum(-1).mean()) / np.sqrt((meant**2).sum(-1).mean())
        assert found.layer(name).share == pytest.approx(wanted, rel=1e-12)
    worst = found.largest_share
    assert worst is not None
    assert worst.share is not None
    assert 1e-5 < worst.share < 0.05
    last = render(found).rstrip().splitlines()[-1]
    assert "The drift of emulated:fp16 is at most" in last
    assert "between “The capital of France is Paris.” and “The capital of Germany" in last


def test_a_causal_model_that_sees_ahead_is_a_finding() -> None:
    found = driftwalk.contrast(subjects.leaky(), FRANCE, GERMANY)
    assert "at layer.1 states before token 3" in found.failed
    assert "FAILED" in render(found)
    ahead = invoke("contrast", "studies.subjects:leaky", "0 1 2 3", "0 1 2 4", "--ids")
    assert ahead.code == 1
    assert "they see later tokens" in ahead.err


def test_a_candidate_that_sees_ahead_is_one_too() -> None:
    found = driftwalk.contrast(subjects.gpt2(3), FRANCE, GERMANY, candidate=subjects.leaky())
    assert "at layer.1 states before token 3" in found.failed


@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral", "bert", "t5", "vit"])
def test_no_false_alarm(name: str) -> None:
    found = driftwalk.contrast(zoo.build(name))
    assert found.failed == ""
    assert found.causal is {"bert": False, "t5": None, "vit": None}.get(name, True)
    assert found.layers[-1].distance > 0


def test_experts_may_round_otherwise() -> None:
    """Who shares an expert decides how tall its matrices are, and so how their sums round."""
    import transformers as tf

    sizes = {"hidden_size": 256, "intermediate_size": 1536, "num_local_experts": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = tf.MixtralForCausalLM(tf.MixtralConfig(**sizes, **heads, num_hidden_layers=1))
    ids = np.random.default_rng(0).integers(1, 99, (2, 16))
    ids[1, :8] = ids[0, :8]
    found = driftwalk.contrast(model.eval(), ids[:1].tolist(), ids[1:].tolist())
    assert found.causal
    assert found.failed == ""
    exact = all(value == 0 for layer in found.layers for value in layer.l2[0][:8])
    assert ("bit by bit" if exact else "by rounding alone") in render(found).replace("\n", " ")


@pytest.mark.parametrize("ahead", [True, False])
def test_without_a_word_from_the_model_it_is_seen_in_a_run(ahead: bool) -> None:
    found = driftwalk.contrast(subjects.Bag(ahead), [[1, 2, 3, 4]], [[1, 2, 5, 4]])
    assert found.causal is not ahead
    assert "seen" in found.causal_by
    assert found.failed == ""
    assert (found.layers[-1].l2[0][0] == 0) is not ahead


def test_sentences_of_different_length_are_aligned_and_told() -> None:
    found = driftwalk.contrast("demo:decoder", "Paris is old.", "Paris is not so old.")
    (row,) = found.rows
    assert row.lengths == (14, 21)
    assert row.unpaired == 7
    assert len(found.layers[0].l2[0]) == 14
    assert row.start == 10
    assert found.layers[3].l2[0][:10] == (0.0,) * 10
    assert any("14 tokens, the other 21" in note for note in found.notes)


def test_rows_are_run_without_their_padding() -> None:
    """A padded batch gives what each sentence gives by itself, bit by bit."""
    one, two = ["A cat.", "The dog is here."], ["A rat.", "The dog was here."]
    batch = driftwalk.contrast("demo:encoder", one, two)
    alone = driftwalk.contrast("demo:encoder", one[0], two[0])
    for both, single in zip(batch.layers, alone.layers, strict=True):
        assert both.l2[0][: len(single.l2[0])] == single.l2[0]
        assert set(both.l2[0][len(single.l2[0]) :]) == {None}


def test_the_longer_is_cut_for_a_causal_model_alone() -> None:
    first, second = probe([[0, 1, 2, 3]]), probe([[0, 1, 4, 3, 5, 6]])
    lengths = [
        [p.inputs["input_ids"].shape[1] for p in paired(first, second, cut=cut)[0].probes]
        for cut in (True, False)
    ]
    assert lengths == [[4, 4], [4, 6]]


def test_left_padding_is_no_token() -> None:
    first, second = (
        Probe(
            {"input_ids": np.array([[9, 9, 1, last]]), "attention_mask": np.array([[0, 0, 1, 1]])},
            tokens=(("<pad>", "<pad>", "a", "b"),),
        )
        for last in (2, 3)
    )
    (pair,) = paired(first, second, cut=False)
    assert pair.row.differs == (False, True)
    assert pair.row.first == ("a", "b")
    assert pair.probes[0].inputs["input_ids"].tolist() == [[1, 2]]


def test_what_cannot_be_contrasted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="the same"):
        driftwalk.contrast("demo:decoder", "a", "a")
    with pytest.raises(ProbeError, match="2 rows, the second 1"):
        driftwalk.contrast("demo:decoder", ["a", "b"], "c")
    with pytest.raises(UsageError, match="two inputs"):
        driftwalk.contrast("demo:decoder", "a")
    graph = str(residual(tmp_path / "model.onnx"))
    for backend in ("torch", "onnxruntime"):
        with pytest.raises(UsageError, match=r"model\.onnx is an ONNX graph"):
            driftwalk.contrast(graph, "a", "b", backend=backend)
    invoke("contrast", "demo:decoder", "one alone").refused(2, "two inputs")
    invoke("contrast", "demo:decoder", "a", "b", "--backend", "torhc").refused(2, "torch")


def test_json_fits_its_schema_and_comes_back(tmp_path: Path) -> None:
    found = seed_002()
    data = json.loads(to_json(found))
    jsonschema.Draft202012Validator(load_schema(kind="contrast")).validate(data)
    assert data["layers"][0]["point"] == "embed"
    assert from_dict(data) == found
    assert load(found.save(tmp_path) / "contrast.json") == found
    with pytest.raises(UsageError, match="schema version 9"):
        from_dict(data | {"schema_version": 9})
    with pytest.raises(UsageError, match="kind"):
        from_dict(data | {"kind": "contrats"})


def test_the_command_line(tmp_path: Path) -> None:
    """Without inputs the built-in pair; JSON alone on stdout; a page that names no host."""
    done = invoke("contrast", "demo:decoder", "--json", "-o", str(tmp_path))
    assert done.code == 0, done.err
    found = from_dict(json.loads(done.out))
    assert isinstance(found, Contrast)
    assert found.rows[0].texts[0] == "The capital of France is Paris."
    page = (tmp_path / "contrast.html").read_text("utf-8")
    assert "http" not in page.replace("http-equiv", "")
    assert to_dict(load(tmp_path / "contrast.json")) == json.loads(done.out)
    again = invoke("report", str(tmp_path / "contrast.json"), "-o", str(tmp_path / "again"))
    assert again.code == 0, again.err
    assert (tmp_path / "again" / "contrast.html").read_text("utf-8") == page


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_table_fits_the_terminal(width: int) -> None:
    """Fewer tokens on a narrow one, never a broken name."""
    lines = render(seed_002(), width=width).splitlines()
    table = [line for line in lines if line.lstrip().startswith(("layer.", "embed", "norm"))]
    assert len(table) == 14
    assert all(len(line) <= width for line in table)
    assert any("more" in line for line in lines) is (width < 160)


def test_hostile_names_are_harmless() -> None:
    hostile = "<script>alert(1)</script>\x1b[31m"
    found = driftwalk.contrast("demo:decoder", hostile, hostile.replace("1", "2"))
    from driftwalk_reports.studies.contrast import render_page as page

    assert "<script>alert" not in page(found)
    assert "\x1b" not in render(found)
