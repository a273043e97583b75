"""A set that covers most, and the input that shows most: found, kept, the same for each seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertModel, MixtralConfig, MixtralForCausalLM
from typer.testing import CliRunner

import driftwalk
from driftwalk.api import verify_all
from driftwalk.cli.app import app
from driftwalk.errors import UsageError
from driftwalk.stage import open_model
from driftwalk.states import Probe
from driftwalk.tasks.probes import search as searching
from driftwalk.tasks.probes.mutation import Room, mutants, smaller
from driftwalk.tasks.probes.search import search
from driftwalk.tasks.probes.weighing import Weighing
from driftwalk_backends.probe_sets.suggest import suggest
from probes.test_sets import SET, SIZES, WRONG, gpt2, with_wrong_row

FEW = {"policy": "dtype", "seed": 3}


def found(corpus: Path, runs: int, **more: Any) -> searching.Found:
    given: dict[str, Any] = {"probes": [SET[0]], **FEW, **more}
    model = gpt2()
    return search(verify_all, model, with_wrong_row(model), corpus, runs=runs, **given)


def kept(corpus: Path) -> Any:
    return json.loads((corpus / "search.json").read_text())


def test_a_fault_of_one_token_is_found_and_shrunk_to_that_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SHRINKS", 20)
    made = found(tmp_path, 6)
    assert made.start < 1 < made.worst.used
    assert made.smallest.inputs["input_ids"].tolist() == [[WRONG]]
    assert made.report.verdict == "drift"
    note = f"The worst of {made.tried} mutants in {made.runs} runs was found by run"
    assert note in made.report.notes[-2]
    smallest = Probe.load(tmp_path / "smallest.safetensors")
    assert smallest.sha256 == made.smallest.sha256
    # What was kept is a set, to be run again as a regression.
    again = driftwalk.verify(
        gpt2(), with_wrong_row(gpt2()), probes=tmp_path / "probes", policy="dtype"
    )
    assert again.worst is not None
    assert again.worst.used == pytest.approx(made.worst.used)


def test_a_probe_without_drift_is_shrunk_in_few_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SHRINKS_WITHOUT_DRIFT", 3)
    plain, tries = searching._Climb._still, list[object]()

    def counted(self: Any, inputs: Any, worst: Any) -> Any:
        tries.append(inputs)
        return plain(self, inputs, worst)

    monkeypatch.setattr(searching._Climb, "_still", counted)
    given: dict[str, Any] = {"probes": [SET[0]], **FEW}
    made = search(verify_all, gpt2(), "emulated:bf16", tmp_path, runs=0, **given)
    assert made.worst.used < 1
    assert len(tries) == 3


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SHRINKS", 0)
    whole = found(tmp_path / "whole", 9)
    found(tmp_path / "parts", 4)
    parts = found(tmp_path / "parts", 9)
    assert kept(tmp_path / "whole") == kept(tmp_path / "parts")
    assert whole.worst == parts.worst
    other = found(tmp_path / "other", 9, seed=4)
    assert kept(tmp_path / "other")["kept"] != kept(tmp_path / "whole")["kept"]
    assert min(whole.worst.used, other.worst.used) >= whole.start == other.start
    with pytest.raises(UsageError, match="is of a search with seed 3: choose another"):
        found(tmp_path / "whole", 9, seed=4)


def test_an_interrupt_keeps_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = searching.mutants

    def interrupted(*given: Any) -> Any:
        if (tmp_path / "search.json").exists() and kept(tmp_path)["runs"] >= 5:
            raise KeyboardInterrupt
        return plain(*given)

    monkeypatch.setattr(searching, "mutants", interrupted)
    made = found(tmp_path, 30)
    assert made.interrupted
    assert 5 <= made.runs == kept(tmp_path)["runs"] < 30
    assert "The search was interrupted." in made.report.notes[-2]


def test_few_of_many_mutants_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SHRINKS", 0)
    plain, judged = Weighing.used, list[str]()

    def counted(self: Weighing, probe: Probe) -> Any:
        judged.append(probe.sha256)
        return plain(self, probe)

    monkeypatch.setattr(Weighing, "used", counted)
    made = found(tmp_path, 10)
    assert kept(tmp_path)["tried"] == made.tried > 100
    assert len(judged) <= 1 + 2 * 10
    # What was kept for its reach alone was not judged, and is never called the worst.
    assert {one["used"] == 0 for one in kept(tmp_path)["kept"]} == {True, False}
    assert made.worst.used > 0


def test_minutes_are_kept_for_shrinking_and_bound_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(searching.time, "monotonic", lambda: float(next(clock)))
    made = found(tmp_path, 10**6, minutes=0.5)
    # Read at the beginning, before the first run, and before each run until 25.5 s have passed;
    # then before each smaller form until 30 have.
    assert made.runs == len(range(2, 26))
    assert next(clock) == 31


def test_a_damaged_corpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text('{"version": 1}')
    with pytest.raises(UsageError, match="is no list of a search"):
        found(tmp_path, 1)
    with pytest.raises(UsageError, match="so many runs or minutes"):
        search(verify_all, gpt2(), gpt2(), tmp_path / "x")


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 9))
def test_mutants_and_smaller_forms_are_probes_inside_the_room(
    seed: int, rows: int, length: int
) -> None:
    rng, room = np.random.default_rng(seed), Room(20, 12)
    arrays = {
        "input_ids": rng.integers(0, 20, (rows, length)),
        "attention_mask": np.ones((rows, length), dtype=np.int64),
        "pixel_values": rng.standard_normal((rows, 3, 4, 4)).astype(np.float32),
    }
    probe = Probe(arrays)
    many = mutants(probe, [probe], room, rng, lambda inputs: 3)
    assert len(many) == 3
    assert len({one["input_ids"].shape for one in many}) == 1
    for inputs in (*many, *smaller(probe)):
        got, mask = inputs["input_ids"], inputs["attention_mask"]
        assert got.shape == mask.shape
        assert 1 <= got.shape[1] <= 12
        assert len(got) in (1, rows)
        assert 0 <= got.min() <= got.max() < 20
        assert mask.any(axis=1).all()
        assert inputs["pixel_values"].dtype == np.float32
    assert all(np.array_equal(probe.inputs[name], array) for name, array in arrays.items())


def test_a_suggested_set_covers_a_model_of_texts() -> None:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=300, intermediate_size=48, max_position_embeddings=160, **SIZES)
    made = suggest(open_model(BertModel(config).eval()))
    assert made.exercised is not None
    assert made.before is not None
    assert made.exercised.covered == 1
    assert (made.before.covered or 0) < 0.7
    assert made.rows <= 8
    named = [name for name, _ in made.probes]
    assert named[0] == "ids 0 to 299"
    assert {"all 160 positions", "all 2 token types"} <= {*named}


def test_a_suggested_set_reaches_every_expert_that_tokens_are_routed_to() -> None:
    torch.manual_seed(0)
    sizes = {"num_key_value_heads": 1, "num_local_experts": 16, "num_experts_per_tok": 1}
    config = MixtralConfig(
        vocab_size=40, intermediate_size=16, max_position_embeddings=64, **sizes, **SIZES
    )
    made = suggest(open_model(MixtralForCausalLM(config).eval()))
    assert made.exercised is not None
    assert made.before is not None
    assert made.exercised.shares["experts"] > made.before.shares["experts"]
    assert made.exercised.shares["experts"] > 0.9


def test_the_command_line_suggests_and_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SHRINKS", 1)

    def run(*words: object) -> Any:
        return CliRunner().invoke(app, ["probes", *map(str, words)])

    made = run("suggest", "demo:decoder", "-o", tmp_path / "set.jsonl")
    assert made.exit_code == 0, made.output
    assert "They cover 100 % of what can be covered" in made.output
    assert len((tmp_path / "set.jsonl").read_text().splitlines()) == 3
    assert run("suggest", "demo:decoder", "-o", tmp_path / "set.txt").exit_code == 2
    (tmp_path / "one.jsonl").write_text('{"input_ids": [[1, 2, 3]]}')
    given = ("search", "demo:decoder", "-c", "emulated:bf16", "--policy", "dtype", "--runs", 2)
    made = run(*given, "--probes", tmp_path / "one.jsonl", "--corpus", tmp_path / "corpus")
    assert made.exit_code == 0, made.output
    assert "mutants in 2 runs" in made.output
    assert (tmp_path / "corpus" / "smallest.safetensors").is_file()
