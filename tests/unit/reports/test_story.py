"""The story at the top of a page: the verdict in a sentence, what matters, and what to do next."""

from __future__ import annotations

import dataclasses

import pytest

from driftwalk.result import Report
from driftwalk_reports import story
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


def test_next_steps_are_commands_that_can_be_copied() -> None:
    report = dataclasses.replace(cases.drifting(), command="driftwalk verify tiny")
    commands = [step.command for step in story.tell(report, "tiny").steps]
    assert commands[:2] == ["driftwalk verify tiny", "driftwalk verify tiny --depth module"]
    assert commands[2].startswith("driftwalk verify tiny --rule layer.3=")
    deep = dataclasses.replace(report, command="driftwalk verify tiny --depth module")
    assert len(story.tell(deep, "tiny").steps) == 1
    assert story.tell(dataclasses.replace(report, command=""), "tiny").steps == ()


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
