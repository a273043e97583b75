"""The walk of first_hour.py, as far as it takes seconds; `tox -e first-hour` does all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meta import first_hour, newcomer_things
from meta.first_hour import NEEDS, Line, all_lines, lines, pages, written_files
from meta.markdown import Block, command_lines
from meta.sources import ROOT

QUICK = (
    "driftwalk backends",
    "driftwalk weights ./my-model ./my-port",
    "driftwalk compare golden.trace port.trace --map map.toml",
    "driftwalk verify before.onnx --candidate onnxruntime,file=after.onnx",
    "driftwalk verify ./my-model -r torch:cpu:fp64 -c torch:cpu:fp32,attn=eager",
)


def test_only_lines_that_are_there_may_be_left_out() -> None:
    """One that was changed is run again until somebody says why not."""
    known = {line.text for line in all_lines()}
    excused = [text for need in NEEDS for text in need.lines]
    assert [text for text in excused if text not in known] == []
    assert len({*excused}) == len(excused) == MOST_LEFT_OUT


MOST_LEFT_OUT = 23
"""Lines that some machine may leave out. To add one is a decision, not an accident."""


def test_every_page_with_commands_is_walked() -> None:
    walked = {line.page for line in all_lines()}
    assert {"README.md", "CONTRIBUTING.md", "docs/onnx.md"} <= walked
    assert len(all_lines()) > 90
    assert pages()[0] == "README.md"


def test_a_line_has_its_exit_code_behind_it() -> None:
    body = "$ driftwalk demo --fault 3   # exit code 1: drift\nshown\n$ a \\\n  b\n"
    block = Block(Path("page.md"), 7, "console", body, runs=False)
    assert list(command_lines(block)) == [
        (0, "driftwalk demo --fault 3", "exit code 1: drift"),
        (2, "a b", ""),
    ]
    faulty = [line for line in lines("README.md") if "--fault" in line.text]
    assert [line.code for line in faulty] == [1]


def test_files_that_a_page_shows_are_written() -> None:
    assert [name for name, _ in written_files("docs/config.md")] == [
        "driftwalk.toml",
        "expected-drift.toml",
    ]


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> first_hour.Newcomer:
    made = first_hour.Newcomer(tmp_path_factory.mktemp("hour"), sys.executable, here=True)
    with pytest.MonkeyPatch.context() as patch:  # made in this process, which has torch already
        for name, value in made.environment().items():
            patch.setenv(name, value)
        patch.chdir(made.base)
        made.prepare(newcomer_things.main)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("text", QUICK)
def test_a_command_runs_as_written(newcomer: first_hour.Newcomer, text: str) -> None:
    (line,) = {Line("", 0, found.text, found.code) for found in all_lines() if found.text == text}
    done = newcomer.type(line, newcomer.base / "things")
    assert done.returncode == line.code, done.stdout


@pytest.mark.slow
def test_a_wrong_exit_code_is_seen(newcomer: first_hour.Newcomer, tmp_path: Path) -> None:
    assert newcomer.type(Line("", 0, "driftwalk verify ./no-model"), tmp_path).returncode == 3


def test_the_walk_is_a_program() -> None:
    script = ROOT / "tests" / "meta" / "first_hour.py"
    done = subprocess.run(
        [sys.executable, str(script), "--help"], capture_output=True, encoding="utf-8", check=True
    )
    assert "--here" in done.stdout
