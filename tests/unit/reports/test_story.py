"""The story at the top of a page: the verdict in a sentence, what matters, and what to do next."""

from __future__ import annotations

import dataclasses

import pytest

from driftwalk.layer_drift import Dtypes
from driftwalk.point import Point
from driftwalk.result import Report
from driftwalk.tolerance import parse_rule
from driftwalk_reports import story, tolerances
from unit.reports import cases


def words(parts: tuple[story.Part, ...]) -> str:
    return "".join(part.text for part in parts)


def test_the_sentence_names_model_sides_policy_and_links_to_what_matters() -> None:
    report = cases.told(cases.drifting())
    moved = dataclasses.replace(report, cause="layer.2")
    sentence = story.tell(moved, "tiny").sentence
    assert words(sentence) == (
        f"DRIFT: {report.candidate.spec} departs from {report.reference.spec} on tiny at layer.3, "
        f"caused by layer.2 (policy {report.policy.name})."
    )
    assert [part.point for part in sentence if part.point] == ["layer.3", "layer.2"]
    assert "which is also the root cause" in words(story.tell(report, "tiny").sentence)


def test_every_verdict_tells_a_story(report: Report) -> None:
    told_ = story.tell(report, "tiny")
    assert words(told_.sentence).startswith(f"{report.verdict.upper()}: ")
    questions = [tile.question for tile in told_.tiles]
    assert ("Where it shows first" in questions) == (report.first_divergence is not None)
    assert ("Why there is no verdict" in questions) == (report.verdict == "unverified")
    assert ("How close it was" in questions) == (report.verdict == "pass")


def test_nan_at_the_end_matters() -> None:
    layers = tuple(dataclasses.replace(x, verdict="nonfinite") for x in cases.nonfinite().layers)
    report = dataclasses.replace(cases.nonfinite(), layers=layers)
    answers = {tile.question: words(tile.answer) for tile in story.tell(report, "tiny").tiles}
    assert answers["Does it matter?"] == "Yes: NaN or Inf reaches logits."


def typed(command: str, **changed: object) -> list[str]:
    report = dataclasses.replace(cases.drifting(), command=command, finer_depth="module")
    report = dataclasses.replace(report, **changed)
    commands = [step.command for step in story.tell(report, "tiny").steps]
    others = ("driftwalk bisect", "driftwalk reduce")
    return [command for command in commands if not command.startswith(others)]


def test_next_steps_are_commands_that_can_be_copied() -> None:
    commands = typed("driftwalk verify tiny")
    assert commands[:2] == ["driftwalk verify tiny", "driftwalk verify tiny --depth module"]
    assert commands[2].startswith("driftwalk verify tiny --rule 'layer.[345]=")
    assert len(typed("driftwalk verify tiny", finer_depth="")) == 2
    assert typed("") == []


def test_what_optimises_can_be_bisected() -> None:
    typed = "driftwalk verify tiny --depth op --spill -p hello --report=out -c a -c b"
    drifting = dataclasses.replace(cases.drifting(), command=typed)
    spec = drifting.candidate.spec
    assert drifting.candidate.flags["opt"] == "all"
    told = [step.command for step in story.tell(drifting, "tiny").steps]
    assert told[-1] == f"driftwalk bisect tiny -p hello --candidate {spec}"
    written = dataclasses.replace(drifting.candidate, flags={"opt": "off"})
    for other in ({"candidate": written}, {"at_fault": "reference"}):
        report = dataclasses.replace(drifting, **other)
        told = [step.command for step in story.tell(report, "tiny").steps]
        assert not any(command.startswith("driftwalk bisect") for command in told)


def test_a_graph_that_drifts_can_be_reduced() -> None:
    typed = "driftwalk verify tiny --depth op -p hello --report=out -c a -c b"
    drifting = dataclasses.replace(cases.drifting(), command=typed)
    wanted = f"driftwalk reduce tiny --candidate {drifting.candidate.spec} -p hello"
    assert wanted in [step.command for step in story.tell(drifting, "tiny").steps]
    compiled = dataclasses.replace(drifting.candidate, name="torch", flags={"compile": "inductor"})
    report = dataclasses.replace(drifting, candidate=compiled)
    assert wanted in [step.command for step in story.tell(report, "tiny").steps]
    quantised = dataclasses.replace(drifting.candidate, flags={"quantised": "int8"})
    for other in ({"candidate": quantised}, {"at_fault": "reference"}):
        report = dataclasses.replace(drifting, **other)
        told = [step.command for step in story.tell(report, "tiny").steps]
        assert not any(command.startswith("driftwalk reduce") for command in told)


def test_a_rule_comes_before_those_that_were_typed() -> None:
    """Of rules, the first that matches counts."""
    allowing = typed("driftwalk verify tiny --rule 'layer.*=1e-6'")[2]
    assert allowing.index("layer.[345]") < allowing.index("layer.*")


def test_next_steps_are_for_the_candidate_of_the_report() -> None:
    again, deeper, _ = typed("driftwalk verify tiny -c a --candidate=b")
    assert again == "driftwalk verify tiny -c a --candidate=b"
    assert (
        deeper
        == f"driftwalk verify tiny --depth module --candidate {cases.drifting().candidate.spec}"
    )


@pytest.mark.parametrize(
    "command",
    ["driftwalk verify --only tiny", "driftwalk verify 'open", "pytest t.py", "driftwalk verify"],
)
def test_what_is_no_verify_of_a_model_is_only_run_again(command: str) -> None:
    assert typed(command) == [command]


def test_what_no_rule_allows_is_not_said_to_be_allowed() -> None:
    report = cases.nonfinite()
    assert len(typed("driftwalk verify tiny", layers=report.layers)) < 3
    whole = Dtypes("int64", "int64")
    layers = tuple(dataclasses.replace(x, dtypes=whole) for x in cases.drifting().layers)
    assert len(typed("driftwalk verify tiny", layers=layers)) == 2


def test_many_points_are_allowed_by_one_rule() -> None:
    one = next(layer for layer in cases.drifting().layers if not layer.ok)
    names = [f"layer.{i}.mlp" for i in range(30)]
    layers = tuple(dataclasses.replace(one, point=Point(name)) for name in names)
    assert " --rule '*=" in typed("driftwalk verify tiny", layers=layers)[2]


@pytest.mark.parametrize("name", ["a=b", "a b", "x[3]", "*", "layer.3"])
def test_the_rule_for_a_point_matches_its_name(name: str) -> None:
    rule = parse_rule(f"{tolerances.glob_of(name)}=0.5")
    assert rule.matches(name)
    assert not rule.matches("layer.30")


@pytest.mark.parametrize(
    ("at_fault", "said"),
    [
        ("reference", ("the reference, ref, departs from the truth", "cand, is right")),
        ("both", ("both cand and ref depart from the truth",)),
        ("candidate", ("cand departs from ref",)),
    ],
)
def test_the_page_says_which_side_is_wrong(at_fault: str, said: tuple[str, ...]) -> None:
    report = dataclasses.replace(cases.drifting(), at_fault=at_fault)
    report = dataclasses.replace(
        report,
        candidate=dataclasses.replace(report.candidate, spec="cand"),
        reference=dataclasses.replace(report.reference, spec="ref"),
    )
    sentence = words(story.tell(report, "model").sentence)
    assert all(part in sentence for part in said), sentence
    assert ("is right" in sentence) == (at_fault == "reference")
