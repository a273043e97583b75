"""GitHub: annotations that say one thing each, a summary that fits, text that gives no orders."""

from __future__ import annotations

import dataclasses
import re

import pytest

from driftwalk.result import Report
from driftwalk_reports import github, markdown, sentences, terminal
from unit.reports import cases

# As the runner reads them: at the start of a line, blanks aside; and the older form anywhere.
NEW = re.compile(r"^\s*::(\w[\w-]*)([^:]*)::(.*)$")
OLD = "##["


def obeyed(text: str) -> list[str]:
    """The commands that a runner would find."""
    lines = re.split(r"\r\n|\r|\n", text)
    return [line for line in lines if line.strip().startswith("::") or OLD in line]


def unescaped(text: str) -> str:
    for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(code, character)
    return text


def named(name: str) -> Report:
    reference = {name: cases.states()["embed"]}
    wrong = {name: reference[name] + 1}
    return cases.make(reference, wrong, model=name, command=name, notes=(name,), modules="{}")


def test_an_annotation_for_each_run_that_is_no_pass() -> None:
    reports = [cases.passing(), cases.nothing(), cases.drifting()]
    lines = github.annotate(reports).splitlines()
    found = [NEW.match(line) for line in lines]
    assert [match and match[1] for match in found] == ["error", "warning"]
    assert unescaped(found[0][2]) == " title=driftwalk: tiny-gpt2 on onnxruntime drifts"  # type: ignore[index]
    assert unescaped(found[0][3]) == sentences.headline(cases.drifting())  # type: ignore[index]
    assert github.annotate([cases.passing()]) == ""


@pytest.mark.parametrize("name", ["a,b:c%0Ad", "x\n::error::y", "100%", "::", "x,file=/etc/passwd"])
def test_a_name_cannot_end_its_annotation(name: str) -> None:
    (line,) = github.annotate([named(name)]).splitlines()
    match = NEW.match(line)
    assert match is not None
    assert match[1] == "error"
    assert match[2].count("=") - name.count("=") == 1
    assert "," not in match[2]
    shown = name.replace("\n", "\\n")
    assert shown in unescaped(match[2])
    assert shown in unescaped(match[3])


def test_no_more_than_github_shows() -> None:
    many = [
        dataclasses.replace(
            cases.drifting(),
            candidate=dataclasses.replace(cases.drifting().candidate, spec=f"mine:{i}"),
        )
        for i in range(25)
    ]
    lines = github.annotate([*many, cases.nothing()]).splitlines()
    assert len([line for line in lines if line.startswith("::error")]) == 10
    assert "16 more" in unescaped(lines[9])
    assert "mine:24" in unescaped(lines[9])
    assert lines[10].startswith("::warning")


@pytest.mark.parametrize(
    "text",
    [
        "::error::x",
        "fine\n  ::set-output name=a::b",
        "fine\r::error::x",
        "fine\r\n\t::stop-commands::x",
        "\u00a0::error::x",
        "anywhere ##[error]x",
        "###[group]",
        "##[##[error]",
        ":::error::",
        "fine\n\n\n::error::x",
    ],
)
def test_harmless_text_gives_no_orders(text: str) -> None:
    assert obeyed(text)
    assert obeyed(github.harmless(text)) == []
    assert github.harmless(text).replace("\u2060", "") == text


def test_harmless_leaves_other_text_alone() -> None:
    text = "std::vector [a::b] ## heading #[x]\n a: :b"
    assert github.harmless(text) == text


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_terminal_report_gives_no_orders(width: int) -> None:
    """Wherever a long name is folded."""
    report = named("::error::" * 40 + "##[error]" * 40)
    text = terminal.render(report, width=width)
    assert obeyed(text)
    assert obeyed(github.harmless(text)) == []


def test_the_summary_is_the_markdown_of_all_failures_first() -> None:
    text = github.step_summary([cases.passing(), cases.drifting()])
    assert text == markdown.render(cases.drifting()) + "\n---\n\n" + markdown.render(
        cases.passing()
    )
    assert github.step_summary([cases.passing()]) == markdown.render(cases.passing())
    assert github.step_summary([cases.passing()], already=5).startswith("\n###")


def test_the_summary_stays_below_the_limit() -> None:
    report = dataclasses.replace(cases.passing(), notes=("n" * 390,) * 140)
    size = len(markdown.render(report).encode())
    assert size > 50_000
    text = github.step_summary([*[report] * 40, cases.drifting()])
    assert 1024 * 1024 - size - 500 < len(text.encode()) < 1024 * 1024
    assert text.startswith(markdown.render(cases.drifting()))
    kept = text.count("### ✓ driftwalk") + 1
    assert f"*{41 - kept} of 41 reports found no room" in text
    assert not text.rstrip().endswith("---")


def test_a_full_summary_is_left_alone() -> None:
    for already in (1024 * 1024 - 10, 2 * 1024 * 1024):
        assert github.step_summary([cases.passing()], already) == ""
    nearly = github.step_summary([cases.passing()], 1024 * 1024 - 500)
    assert nearly.strip() == "*1 of 1 reports found no room in this summary.*"
