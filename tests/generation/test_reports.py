"""What is shown of a generation: the cause first, then where, when, and what to run next."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from driftwalk.document import load
from driftwalk.tasks.generation.result import CachePath, Generation, Parted
from driftwalk_reports import github, junit
from driftwalk_reports.generation import heatmaps, look, render, render_markdown, render_page
from driftwalk_reports.heatmap import LEVELS
from generation.reported import outcome
from unit.reports import cases

HEADLINES = {
    "pass": r"PASS: 5 steps and the prompt agree within tolerance at all 12 points; the closest "
    r"call is [a-z.0-9]+, at \d+ % of its allowance\.",
    "cache": r"DRIFT: decoding parts from the model in step 3 at layer\.1, by the cache: what its "
    r"cache holds as value in slot 4, of step 0, is not what the layer computed\.",
    "shared": r"DRIFT: decoding parts from the model in step 2 at embed, by what all layers share: "
    r"positions, which all layers are handed: wrong from step 2 on, and not in one whole run\.",
    "backend": r"DRIFT: decoding parts from the model in the prompt at layer\.1, by the backend "
    r"itself, with a cache and without: mlp\.c_proj: introduced .*channel 11.*"
    r"\(suspect a weight\)\.",
}
every_outcome = pytest.mark.parametrize("name", HEADLINES)


@every_outcome
def test_the_first_sentence_says_verdict_place_and_cause(name: str) -> None:
    report = outcome(name)
    headline = look(report).headline
    assert re.fullmatch(HEADLINES[name], headline)
    assert render(report).splitlines()[-1] == f"{'✓' if report.ok else '✗'} {headline}"
    assert f"<h1>{headline}</h1>" in unescape(render_page(report))
    assert "**PASS" in render_markdown(report) or "**DRIFT" in render_markdown(report)


@every_outcome
def test_it_is_stored_and_rendered_again_the_same(name: str, tmp_path: Path) -> None:
    report = outcome(name)
    report.save(tmp_path)
    again = load(tmp_path / "generation.json")
    assert isinstance(again, Generation)
    assert render_page(again) == (tmp_path / "generation.html").read_text("utf-8")
    assert render(again) == render(report)


def test_a_slot_is_shown_where_its_token_is_and_the_rest_from_the_step_on() -> None:
    states, kept = heatmaps(outcome("cache"))
    by_line = {line.label: row for line, row in zip(states.lines, states.values, strict=True)}
    beyond = [float(str(value).split()[0]) > 1 for value in by_line["layer.1"]]
    assert beyond == [False, False, False, True, True, True]
    assert [line.label for line in states.lines if not line.ok] == [
        *("layer.1", "layer.2", "norm", "logits")
    ]
    by_line = {line.label: row for line, row in zip(kept.lines, kept.values, strict=True)}
    beyond = [float(str(value).split()[0]) > 1 for value in by_line["layer.1.value"]]
    assert beyond == [True, False, False, False, False, False]
    assert (states.low, states.high) == (kept.low, kept.high), "one scale of colours"
    tokens = [step.text for step in outcome("cache").steps]
    assert states.frame.names == ("prompt", *tokens[:-1]), "a step is fed what the last one chose"
    assert states.columns[3] == f"step 3, fed {tokens[2]}, then {tokens[3]}"
    sentences = look(outcome("cache")).sentences
    assert sentences[0].startswith("The first divergence is in the prompt at layer.1.value, slot 4")


def test_a_pass_looks_pale() -> None:
    for drawn in heatmaps(outcome("pass")):
        assert not any(drawn.paths[LEVELS // 2 :])


def test_the_terminal_has_points_by_steps() -> None:
    lines = dict(
        line.split()
        for line in render(outcome("cache")).splitlines()
        if "·✗" in line and " " in line
    )
    assert lines["layer.1"] == "···✗✗✗"
    narrow = render(outcome("cache"), width=60)
    assert max(map(len, narrow.splitlines()[:-1])) <= 60


def test_flips_and_the_parting_are_told() -> None:
    view = look(outcome("shared"))
    parted = outcome("shared").parted
    assert parted is not None
    assert [one.flips for one in view.tokens] == [0, 0, 1, 1, 0, 0]
    assert str(view.tokens[2].sign) == f"✗ candidate: {parted.texts[1]}"
    assert "part in step 2" in view.sentences[0]
    assert "a consequence of the drift" in view.sentences[0]
    assert f"{parted.margin:.3g} apart" in view.sentences[0]
    assert "same tokens in every step" in look(outcome("pass")).sentences[0]


def test_a_tie_is_no_drift() -> None:
    report = outcome("pass")
    steps = tuple(replace(step, flips=int(step.step == 3)) for step in report.steps)
    tie = Parted(3, 0, (6, 9), ("a", " b"), -1e-7, True)
    view = look(replace(report, steps=steps, parted=tie))
    assert "“a” and the candidate “␣b”: a tie." in view.sentences[0]
    assert "1e-07 apart, the candidate's choice being the higher" in view.sentences[0]
    sign = view.tokens[3].sign
    assert (sign.tone, str(sign), sign.detail) == ("unverified", "≈ candidate: ␣b", "a tie")


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("pass", []),
        ("cache", [" --steps 5 --cache none", " --steps 5 --cache static", " --invariance"]),
        ("shared", [" --steps 5 --cache none", " --steps 5 --invariance"]),
        ("backend", ["driftwalk verify ./small --candidate port:small --depth module"]),
    ],
)
def test_what_to_run_next(name: str, commands: list[str]) -> None:
    first, *others = look(outcome(name)).advice
    assert first.command == outcome(name).command
    assert len(others) == len(commands)
    for one, command in zip(others, commands, strict=True):
        assert one.command.endswith(command)


def test_options_are_replaced_and_not_repeated() -> None:
    command = "driftwalk generate m --cache=dynamic --prompt 'a --cache b' -c x --cache dynamic"
    one = look(replace(outcome("cache"), command=command)).advice[1]
    assert one.command == "driftwalk generate m --prompt 'a --cache b' -c x --cache none"
    by_pytest = look(replace(outcome("cache"), command="pytest test_x.py")).advice
    assert [one.command for one in by_pytest] == ["pytest test_x.py"]


def test_each_side_is_compared_with_its_own_run_at_once() -> None:
    paths = look(outcome("cache")).paths
    assert [str(path[2]) for path in paths] == ["≈ within noise", "✗ broken"]
    assert [str(path[2]) for path in look(outcome("backend")).paths] == ["≈ within noise"] * 2
    exact = replace(
        outcome("pass"), cache_paths={"candidate": CachePath("bit-exact", 0.0, "embed")}
    )
    assert "✓ bit-exact" in render(exact)


def test_points_show_both_ways_and_the_step() -> None:
    rows = {one.row.name: one for one in look(outcome("cache")).points}
    assert rows["layer.1"].most_in == "step 3"
    assert rows["layer.1"].row.marks == ("root cause",)
    assert rows["layer.1"].at_once.endswith("%"), "fine in one run"
    assert rows["layer.1.value"].row.marks == ("first divergence",)
    backend = {one.row.name: one for one in look(outcome("backend")).points}
    assert not backend["layer.1"].at_once.endswith("%"), "wrong in one run, too"
    text = render_page(outcome("cache"))
    assert 'id="layer.1.value"' in text
    assert 'href="#layer.1.value"' in text


def test_who_is_wrong_is_said_where_it_is_not_the_candidate() -> None:
    drifted = outcome("cache")
    said = look(replace(drifted, at_fault="reference")).headline
    assert said.startswith("DRIFT: the reference's decoding parts from the model")
    assert said.endswith(
        "It is the reference that is wrong; the candidate is within its allowance."
    )
    assert "the decoding of both sides" in look(replace(drifted, at_fault="both")).headline


def test_what_could_not_be_verified_says_why() -> None:
    report = replace(outcome("pass"), verdict="unverified", reason="the truth is in doubt.")
    assert look(report).headline == "UNVERIFIED: the truth is in doubt."
    empty = replace(report, steps=(), layers=(), whole=(), cache_paths={})
    assert "UNVERIFIED" in render(empty)
    assert "<h1>" in render_page(empty)
    assert "UNVERIFIED" in render_markdown(empty)


def test_long_generations_stay_readable() -> None:
    report = outcome("cache")
    steps = tuple(
        replace(report.steps[at % 6], step=at, texts=(f"token {at}",)) for at in range(700)
    )
    long = replace(report, steps=steps)
    states, _ = heatmaps(long)
    assert states.binned
    assert len(states.values[0]) <= 128
    assert "500 more steps are in the JSON file" in render_page(long)
    assert "a sign stands for" in render(long)
    assert max(map(len, render(long).splitlines()[:-1])) <= 100
    assert len(render_markdown(long)) < 60_000


@every_outcome
def test_a_point_is_a_test_case_of_junit(name: str) -> None:
    report = outcome(name)
    suite = ET.fromstring(junit.render_generation(report).encode()).find("testsuite")
    assert suite is not None
    failures = {case.attrib["name"]: case.find("failure") for case in suite.iter("testcase")}
    assert list(failures) == [layer.point.name for layer in report.layers]
    assert {n for n, found in failures.items() if found is not None} == {
        layer.point.name for layer in report.layers if not layer.ok
    }
    if name == "cache":
        failure = failures["layer.1"]
        assert failure is not None
        assert failure.attrib["message"].endswith("(root cause), most in step 3")
        assert (failure.text or "").startswith("DRIFT: decoding parts from the model in step 3")


def test_junit_calls_an_unverified_run_an_error() -> None:
    report = replace(outcome("pass"), verdict="unverified", reason="the truth is in doubt.")
    suite = ET.fromstring(junit.render_generation(report).encode()).find("testsuite")
    assert suite is not None
    assert (suite.attrib["errors"], suite.attrib["failures"]) == ("1", "0")
    error = suite.find("testcase/error")
    assert error is not None
    assert error.attrib["message"] == "UNVERIFIED: the truth is in doubt."


def test_github_annotates_and_sums_up_generations_beside_reports() -> None:
    both = [outcome("pass"), outcome("cache"), cases.drifting()]
    lines = github.annotate(both).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::error", "::error"]
    assert "decoding parts from the model in step 3 at layer.1" in lines[0]
    text = github.step_summary(both)
    assert text.startswith("### ✗ driftwalk generate: ")
    assert text.count("### ") == 3
