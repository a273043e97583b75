"""Many probes in one run: each judged as it would be alone, and the worst one told by name."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, ViTConfig, ViTModel
from typer.testing import CliRunner

import driftwalk
from driftwalk.cli.app import app
from driftwalk.cli.failing import failing
from driftwalk.errors import ProbeError, UsageError
from driftwalk.probe_set import Percentiles
from driftwalk.stage import open_model
from driftwalk.states import Probe
from driftwalk.tasks.probes import collecting
from driftwalk.tasks.probes.collecting import Collected, row_of
from driftwalk.tasks.probes.entries import source_of, to_line
from driftwalk_backends.probe_sets.sets import builtin
from driftwalk_reports.probe_words import set_sentence
from driftwalk_reports.story import tell

WRONG = 41
SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).eval()


def with_wrong_row(model: torch.nn.Module) -> torch.nn.Module:
    """A copy that is wrong for one token alone; the tied output layer is left as it was."""
    other: Any = copy.deepcopy(model)
    table = other.transformer.wte
    other.lm_head.weight = torch.nn.Parameter(table.weight.detach().clone())
    with torch.no_grad():
        table.weight[WRONG] += 0.5
    return other  # type: ignore[no-any-return]


def ids(*rows: list[int]) -> dict[str, np.ndarray]:
    return {"input_ids": np.array(rows)}


SET = [ids([3, 4, 5, 6]), ids([7, WRONG, 8, 9]), ids([10, 11, 12, 13], [14, 15, 16, 17])]


@pytest.fixture
def model() -> GPT2LMHeadModel:
    return gpt2()


def test_a_set_names_the_probe_that_shows_a_fault_which_the_others_hide(
    model: GPT2LMHeadModel, tmp_path: Path
) -> None:
    candidate = with_wrong_row(model)
    report = driftwalk.verify(model, candidate, probes=SET, keep_probes=tmp_path)
    assert [(row.name, row.verdict) for row in report.probes] == [
        ("probe 1", "pass"),
        ("probe 2", "drift"),
        ("probe 3", "pass"),
    ]
    worst = report.worst
    assert worst is not None
    assert worst.name == "probe 2"
    assert (worst.first_divergence, worst.root_cause) == ("embed", "embed")
    assert not report.ok
    assert report.first_name == "embed"
    told = report.probe_set
    assert told is not None
    assert (told.count, told.passed, told.drifted, told.unverified) == (3, 2, 1, 0)
    assert told.worst[0] == "probe 2"
    assert told.used is not None
    assert told.used.largest == worst.used > 1 > told.used.p50
    # Each is judged as it would be alone, and its file is that very probe.
    for row, probe in zip(report.probes, SET, strict=True):
        alone = driftwalk.verify(model, candidate, probe=probe)
        again = driftwalk.verify(model, candidate, probe=tmp_path / row.file)
        assert row == replace(row_of(row.number, row.name, alone), file=row.file)
        assert row == replace(row_of(row.number, row.name, again), file=row.file)


def test_a_report_of_a_set_is_stored_and_shown_in_every_format(
    model: GPT2LMHeadModel, tmp_path: Path
) -> None:
    named = {"calm": SET[0], "wild <b>|x": SET[1]}
    report = driftwalk.verify(model, with_wrong_row(model), probes=named, policy="dtype")
    report.save(tmp_path)
    stored = driftwalk.load(tmp_path / "result.json")
    assert stored.probes == report.probes
    assert stored.probe_set == report.probe_set
    assert stored.worst == report.worst
    for name in ("report.html", "summary.md", "junit.xml"):
        text = (tmp_path / name).read_text()
        assert "2 probes, 1 drift" in text, name
        assert "<b>" not in text or name == "report.html"
        assert "wild <b>" not in text
    told = "".join(part.text for part in tell(report, "m").sentence)
    assert told.endswith("This is the worst probe: of 2 probes, 1 drift.")


def test_a_set_without_drift_passes_and_says_how_close_it_was(model: GPT2LMHeadModel) -> None:
    report = driftwalk.verify(model, "emulated:bf16", probes=[SET[0], SET[2]])
    assert report.ok
    assert report.worst is not None
    assert report.probe.sha256 == report.worst.sha256
    assert report.worst.used == max(row.used or 0 for row in report.probes)


def lines(path: Path, *texts: str) -> Path:
    path.write_text("\n".join(texts) + "\n", "utf-8")
    return path


GOOD = json.dumps({"name": "good", "input_ids": [[1, 2, 3]]})


def test_a_bad_line_is_named_and_the_others_run(model: GPT2LMHeadModel, tmp_path: Path) -> None:
    bad = (
        "{",
        json.dumps({"input_ids": [[1, 99]]}),
        '{"input_ids": [[1], [2, 3]]}',
        "7",
        '{"x": 1}',
    )
    file = lines(
        tmp_path / "set.jsonl", GOOD, "", *bad, json.dumps({"inputs": {"input_ids": [[5]]}})
    )
    report = driftwalk.verify(model, gpt2(), probes=file, policy="dtype")
    assert [(row.number, row.name) for row in report.probes] == [(1, "good"), (8, "line 8")]
    told = report.probe_set
    assert told is not None
    assert [one.number for one in told.refused] == [3, 4, 5, 6, 7]
    assert "is not JSON" in told.refused[0].why
    assert "holds 99, outside the vocabulary" in told.refused[1].why
    assert told.refused_count == 5
    assert set_sentence(told).endswith("5 more could not be run")
    with pytest.raises(UsageError, match=r"^Nothing was run. Line 3: is not JSON.*Line 4: .*99"):
        driftwalk.verify(model, gpt2(), probes=file, policy="dtype", strict=True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda path: lines(path / "empty.jsonl", ""),
            "has no probe that could be run. It is empty",
        ),
        (lambda path: lines(path / "bad.jsonl", "{"), "could be run. Line 1: is not JSON"),
        (lambda path: path / "none.jsonl", "There is no set of probes"),
        (lambda path: lines(path / "set.csv", GOOD), "is no set of probes"),
        (lambda path: [], "It is empty"),
        (lambda path: 7, "Cannot take '7' for a set of probes"),
        (lambda path: "builtin:texts", "Did you mean 'builtin:text'"),
        (lambda path: "builtin:text", "came without a tokenizer"),
    ],
)
def test_what_is_no_set_is_refused(
    model: GPT2LMHeadModel, tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    with pytest.raises(driftwalk.DriftwalkError, match=said):
        driftwalk.verify(model, gpt2(), probes=make(tmp_path), policy="dtype")


def test_a_set_goes_without_what_is_of_one_probe(model: GPT2LMHeadModel) -> None:
    for more in ({"probe": SET[0]}, {"batch": 3}, {"bench": 2}, {"shapes": "1x2"}):
        with pytest.raises(UsageError, match="set of probes"):
            driftwalk.verify_all(model, [gpt2()], probes=SET, **more)


def test_a_folder_is_a_set_in_the_order_of_its_names(
    model: GPT2LMHeadModel, tmp_path: Path
) -> None:
    Probe(SET[1]).save(tmp_path / "b.safetensors")
    np.savez(tmp_path / "a.npz", **SET[0])
    (tmp_path / "c.md").write_text("no probe")
    report = driftwalk.verify(model, gpt2(), probes=tmp_path, policy="dtype")
    assert [row.name for row in report.probes] == ["a", "b"]
    assert report.probe_set is not None
    assert "is no probe file" in report.probe_set.refused[0].why


def test_a_probe_that_a_candidate_cannot_run_leaves_the_set_unverified(
    model: GPT2LMHeadModel,
) -> None:
    class Short(GPT2LMHeadModel):
        def forward(self, input_ids: Any, **more: Any) -> Any:
            if len(input_ids) > 1:
                raise ValueError("one row at most")
            return super().forward(input_ids, **more)

    short = Short(model.config).eval()
    short.load_state_dict(model.state_dict())
    report = driftwalk.verify(model, short, probes=[SET[0], SET[2]], policy="dtype")
    assert [row.verdict for row in report.probes] == ["pass", "unverified"]
    assert report.verdict == "unverified"
    assert "one row at most" in report.probes[1].reason


def test_a_hundred_thousand_lines_are_read_one_at_a_time(tmp_path: Path) -> None:
    row = ",".join(["17"] * 4)
    with (tmp_path / "set.jsonl").open("w") as file:
        for number in range(100_000):
            file.write(f'{{"name":"n{number}","input_ids":[[{row}]]}}\n')
    source: Any = source_of(tmp_path / "set.jsonl")
    tracemalloc.start()
    count = sum(1 for entry in source.read() if not entry.why)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 100_000
    assert peak < 2 << 20


def test_of_a_large_set_the_worst_rows_and_one_report_are_kept(
    model: GPT2LMHeadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "MOST_ROWS", 5)
    report = driftwalk.verify(model, gpt2(), probe=SET[0], policy="dtype")
    probe, collected = Probe(SET[0]), Collected()
    uses = np.random.default_rng(0).permutation(40)
    for number, used in enumerate(uses, 1):
        row = replace(row_of(number, f"p{number}", report), used=float(used))
        collected.add(row, replace(report, command=f"p{number}"), probe)
    made = collected.finished("list", [], 0, None)
    kept = sorted(row.used or 0 for row in made.probes)
    assert kept == [35, 36, 37, 38, 39]
    assert made.command == f"p{int(np.argmax(uses)) + 1}"
    assert made.probe_set is not None
    assert made.probe_set.rows_left_out == 35
    assert made.probe_set.worst[0] == made.command
    assert made.probe_set.used == Percentiles(40, 19, 35, 39, 39)


@given(st.lists(st.floats(0, allow_infinity=True), min_size=1))
def test_percentiles_are_values_of_the_set_in_order(values: list[float]) -> None:
    found = Percentiles.of(values)
    assert found is not None
    assert found.p50 <= found.p90 <= found.p99 <= found.largest == max(values)
    assert {found.p50, found.p90, found.p99} <= set(values)


def test_a_probe_is_the_same_after_it_was_a_line(model: GPT2LMHeadModel, tmp_path: Path) -> None:
    opened = open_model(model)
    probes = dict(builtin(opened, "builtin:edge").probes)
    text = "".join(to_line(name, probe) for name, probe in probes.items())
    (tmp_path / "set.jsonl").write_text(text)
    source: Any = source_of(tmp_path / "set.jsonl")
    from driftwalk.stage import make_probe

    for entry in source.read():
        assert make_probe(opened, entry.given).sha256 == probes[entry.name].sha256


def test_edges_are_what_the_config_makes_interesting() -> None:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=60, intermediate_size=48, max_position_embeddings=32, **SIZES)
    found = dict(builtin(open_model(BertModel(config).eval()), "builtin:edge").probes)
    assert {"length 1", "all 32 positions", "padding on the left", "all 2 token types"} <= {*found}
    assert found["all 32 positions"].inputs["input_ids"].shape == (1, 32)
    assert {*found["all 2 token types"].inputs["token_type_ids"].flat} == {0, 1}
    mask = found["padding on both sides"].inputs["attention_mask"]
    assert mask[0].all()
    assert not mask[1, 0]
    assert not mask[1, -1]
    assert mask[1].any()
    assert 0 in found["special tokens"].inputs["input_ids"]


def test_edges_of_images_are_values_and_sizes() -> None:
    torch.manual_seed(0)
    config = ViTConfig(image_size=16, patch_size=8, intermediate_size=48, **SIZES)
    made = builtin(open_model(ViTModel(config).eval()), "builtin:edge")
    found = dict(made.probes)
    assert (found["pixel_values: all white"].inputs["pixel_values"] == 3).all()
    assert not found["pixel_values: all grey"].inputs["pixel_values"].any()
    assert any("24 by 24" in note for note in made.notes)  # it takes no other size, which is said


def test_texts_are_in_many_scripts_and_have_padding() -> None:
    found = dict(builtin(open_model("demo:decoder"), "builtin:text").probes)
    assert {"english", "greek", "chinese", "hindi", "python", "emoji", "long text"} <= {*found}
    assert len(found) >= 30
    assert all(probe.inputs["input_ids"].shape[1] <= 256 for probe in found.values())
    assert not found["greek"].inputs["attention_mask"].all()


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["verify", *map(str, words)])


def test_the_command_line_takes_a_set_and_gates_on_what_it_covers(tmp_path: Path) -> None:
    file = lines(tmp_path / "set.jsonl", '"Hello there"', '{"name": "x", "text": "so"}', "{")
    given = ("demo:decoder", "-c", "emulated:bf16", "--policy", "dtype", "--probes", file)
    made = run(*given, "--report", tmp_path / "out")
    assert made.exit_code == 0, made.output
    assert "all 2 probes pass" in made.output
    assert "Not run: probe 3 (line 3)" in made.output
    assert (tmp_path / "out" / "probes" / "000001-line-1.safetensors").is_file()
    made = run(*given, "--min-coverage", "90%")
    assert made.exit_code == 1
    assert "--min-coverage asks for 90 %: " in made.output
    assert run(*given, "--strict").exit_code == 2
    assert run(*given, "--min-coverage", "lots").exit_code == 2
    assert run("demo:decoder", "--strict").exit_code == 2
    one = ("demo:decoder", "-c", "emulated:bf16", "--policy", "dtype", "--min-coverage", "0.99")
    assert "The probe covers" in (made := run(*one)).output
    assert made.exit_code == 1


def test_what_a_set_exercises_is_what_its_probes_do_together(model: GPT2LMHeadModel) -> None:
    mask = np.array([[1, 1, 1], [0, 1, 1]])
    probes = [
        ids([1, 2, 3]),
        ids([3, 4, 5, 6]),
        {**ids([1, 2, 3], [0, 7, 8]), "attention_mask": mask},
    ]
    report = driftwalk.verify(model, gpt2(), probes=probes, policy="dtype")
    assert report.probe_set is not None
    whole = report.probe_set.exercised
    assert whole is not None
    (rows,) = whole.of("embedding rows")
    (positions,) = whole.of("positions")
    assert (rows.used, rows.of) == (9, 60)
    assert (positions.used, positions.of) == (4, 24)
    assert whole.of("padding")[0].tried
    assert whole.of("padding")[0].where == "left"
    assert whole.of("batch")[0].tried
    assert whole.covered == pytest.approx((9 / 60 + 4 / 24 + 1 + 1) / 4)
    single = driftwalk.verify(model, gpt2(), probe=probes[1], policy="dtype").coverage.exercised
    assert single is not None
    assert single.of("embedding rows")[0].used == 4


def test_flips_of_any_probe_count_and_a_file_of_expected_drift_does_not_hide_others(
    model: GPT2LMHeadModel, tmp_path: Path
) -> None:
    report = driftwalk.verify(model, gpt2(), probes=SET, policy="dtype")
    assert failing([report], 0, ("flips",), 1.1) == 0
    rows = (*report.probes[:2], replace(report.probes[2], flips=2))
    told = report.probe_set
    assert told is not None
    flipped = replace(told, flips=Percentiles.of([0, 0, 2]))
    assert failing([replace(report, probes=rows, probe_set=flipped)], 0, ("flips",), 1.1) == 1
    made = run("demo:decoder", "--probes", "builtin:edge", "--expected", tmp_path / "none.toml")
    assert made.exit_code == 2
    assert "--expected is about one probe" in made.output


def test_a_probe_that_a_backend_refuses_does_not_end_the_set(model: GPT2LMHeadModel) -> None:
    class Picky(GPT2LMHeadModel):
        def forward(self, input_ids: Any, **more: Any) -> Any:
            if 10 in input_ids:
                raise ProbeError("no tens")
            return super().forward(input_ids, **more)

    picky = Picky(model.config).eval()
    picky.load_state_dict(model.state_dict())
    report = driftwalk.verify(model, picky, probes=SET, policy="dtype")
    assert [row.verdict for row in report.probes] == ["pass", "pass", "unverified"]
