"""`driftwalk generate`: exit codes, files, several candidates, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import driftwalk
from cli.program import invoke
from driftwalk.tasks.generation.result import Generation

SHORT = ("--ids", "5 17 3 9", "--steps", "3")


def test_a_pass(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = invoke(
        "generate", "demo:decoder", "-c", "torch,attn=eager", *SHORT, "--report", str(out)
    )
    assert done.code == 0, done.err
    assert "✓ PASS: 3 steps and the prompt agree within tolerance at all 21 points" in done.out
    assert "Left to themselves, both sides choose the same tokens" in done.out
    assert {file.name for file in out.iterdir()} == {
        *("generation.json", "generation.html", "generation.md", "junit.xml")
    }
    again = driftwalk.load(out / "generation.json")
    assert isinstance(again, Generation)
    assert (again.ok, again.prompt, len(again.steps), again.cache) == (True, 4, 4, "dynamic")


def test_drift_is_exit_code_1_and_json_is_alone() -> None:
    given = ("demo:decoder", "-c", "torch,attn=eager", "-c", "emulated:bf16", *SHORT)
    done = invoke("generate", *given, "--policy", "fixed:1e-4", "--cache", "none", "--json")
    assert done.code == 1, done.err
    first, second = json.loads(done.out)
    assert [one["verdict"] for one in (first, second)] == ["pass", "drift"]
    assert (second["kind"], second["cache"]) == ("generation", "none")
    assert [len(one["tokens"]) for one in second["steps"]] == [1, 1, 1, 1]


def test_several_candidates_get_a_folder_each_and_an_index(tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ("demo:decoder", "-c", "torch,attn=eager", "-c", "torch:cpu:fp64", *SHORT)
    done = invoke("generate", *given, "--policy", "dtype", "--report", str(out))
    assert done.code == 0, done.err
    assert sorted(file.name for file in out.iterdir()) == [
        *("01-torch-attn-eager", "02-torch-cpu-fp64", "index.html")
    ]
    index = (out / "index.html").read_text("utf-8")
    assert "01-torch-attn-eager/generation.html" in index
    assert "2 runs: 2 pass" in index
    page = (out / "01-torch-attn-eager" / "generation.html").read_text("utf-8")
    assert 'href="../02-torch-cpu-fp64/generation.html"' in page
    again = invoke("report", str(out), "-o", str(tmp_path / "again"))
    assert again.code == 0, again.err
    assert (tmp_path / "again" / "index.html").is_file()


def test_prompts_of_unequal_length_are_one_batch() -> None:
    given = ("--prompt", "Hello there", "--prompt", "Hi", "--steps", "2", "--json")
    done = invoke("generate", "demo:decoder", "-c", "torch,attn=eager", *given)
    assert done.code == 0, done.err
    assert [len(step["texts"]) for step in json.loads(done.out)["steps"]] == [2, 2, 2]


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ((), 2, "--candidate"),
        (("-c", "torhc"), 2, "torch"),
        (("-c", "torch", "--cache", "quantum"), 2, "dynamic, static, sliding, quantized, none"),
        (("-c", "torch", "--ids", "1 2", "--prompt", "x"), 2, "--ids"),
        (("-c", "torch", "--steps", "9999"), 2, "positions"),
        (("-c", "onnxruntime,file=none.onnx"), 2, "none.onnx"),
    ],
)
def test_bad_input_is_refused(given: tuple[str, ...], code: int, words: str) -> None:
    invoke("generate", "demo:decoder", *given).refused(code, words)


def test_a_model_that_keeps_no_cache_cannot_be_decoded() -> None:
    done = invoke("generate", "demo:encoder", "-c", "torch", "--steps", "2")
    assert done.code in (2, 3)
    assert done.out == ""
    assert "cache" in done.err


def test_help_is_in_groups_with_examples() -> None:
    text = invoke("generate", "--help").out
    for words in (
        "What is compared",
        "Inputs",
        "--steps",
        "--cache",
        "Examples:",
        "--ids '5 17 3'",
    ):
        assert words in text
