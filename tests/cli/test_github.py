"""On a GitHub runner: annotations on stderr, a step summary, JSON still pure, no orders taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.program import driftwalk, invoke
from driftwalk import registry
from driftwalk_reports import github
from unit.reports.test_github import obeyed

TINY = ["verify", "cli.factories:Tiny"]
DRIFTING = [*TINY, "-c", "torch:cpu:bf16", "--policy", "fixed:1e-6"]
ORDER = "##[error]x\n::error::y"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")


@pytest.mark.usefixtures("runner")
def test_drift_is_an_error_annotation_on_stderr() -> None:
    done = invoke(*DRIFTING)
    assert done.code == 1
    (line,) = obeyed(done.err)
    assert line.startswith("::error title=driftwalk%3A cli.factories%3ATiny on torch%3Acpu%3Abf16")
    assert "first divergence at embed" in line
    assert obeyed(done.out) == []


@pytest.mark.usefixtures("runner")
def test_what_could_not_be_verified_is_a_warning_and_a_pass_is_nothing() -> None:
    done = invoke("verify", "cli.factories:with_nan", "-c", "torch")
    assert done.code == 3
    assert [line.split(" ")[0] for line in obeyed(done.err)] == ["::warning"]
    assert invoke(*TINY, "-c", "torch").err == ""


def test_nothing_of_it_elsewhere(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    assert obeyed(invoke(*DRIFTING).err) == []
    monkeypatch.setenv("GITHUB_ACTIONS", "false")
    assert obeyed(invoke(*DRIFTING).err) == []
    assert list(here.iterdir()) == []


def test_the_step_summary_is_appended(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    summary = here / "summary"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert invoke(*DRIFTING, "-c", "torch").code == 1
    text = summary.read_text("utf-8")
    assert text.startswith("before\n\n### ✗ driftwalk")
    assert text.count("### ") == 2
    assert "### ✓ driftwalk" in text
    words = ("--faults", "1", "--trusted", "0", "--length", "4")
    assert invoke("selftest", "demo:decoder", *words).code in (0, 1, 3)
    assert summary.read_text("utf-8") == text, "a selftest is no verification"


@pytest.mark.parametrize("where", ["no/such/folder/file", "."])
def test_a_summary_that_cannot_be_written_costs_a_message(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", where)
    done = invoke(*TINY, "-c", "torch", "--report", "out")
    assert done.code == 0
    assert "PASS" in done.out
    assert f"no step summary in {where!r}" in done.err
    assert "report.html" in done.err


@pytest.mark.usefixtures("runner")
def test_names_give_no_orders_in_text_or_json(here: Path) -> None:
    """A prompt, an option, a path: what the program prints of them, the runner reads."""
    prompts = ["verify", "demo:decoder", "-c", "torch", "-p", ORDER]
    done = invoke(*prompts, "--json")
    assert obeyed(done.out) == []
    document = json.loads(done.out)
    assert document["probe"]["texts"] == [ORDER], "pure JSON, and the very same text"
    for arguments in (["verify", ORDER], ["report", ORDER, "-o", "out"], [*TINY, "-c", ORDER]):
        refused = invoke(*arguments)
        assert refused.code in (2, 3)
        assert refused.err
        assert obeyed(refused.err) == [], arguments


def test_the_real_program_on_a_runner(here: Path) -> None:
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(here / "summary")}
    done = driftwalk(*DRIFTING, "--json", env=env)
    assert done.code == 1
    assert json.loads(done.out)["verdict"] == "drift"
    assert len(obeyed(done.err)) == 1
    assert (here / "summary").read_text("utf-8").startswith("### ✗ driftwalk")


def test_everything_printed_passes_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on a runner nothing is changed; there, the same filter for both streams."""
    monkeypatch.setattr(registry, "known_backends", lambda: {ORDER: "no:where"})
    plain = invoke("backends")
    assert obeyed(plain.out)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    done = invoke("backends")
    assert obeyed(done.out) == []
    assert done.out == github.harmless(plain.out)
    assert json.loads(invoke("backends", "--json").out)[0]["spec"] == ORDER
