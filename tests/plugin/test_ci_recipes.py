"""The recipes of docs/ci.md: the shell one runs, the others are read as far as can be."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.program import environment
from meta.markdown import Block, blocks
from meta.sources import ROOT

PAGE = list(blocks(ROOT / "docs" / "ci.md"))
CONFIG = """
policy = "fixed:1e-6"
[[models]]
model = "cli.factories:Tiny"
candidates = ["torch:cpu:fp64"{more}]
"""


def recipe(language: str, number: int = 0) -> Block:
    return [block for block in PAGE if block.language == language][number]


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        (CONFIG.format(more=', "torch:cpu:bf16"'), 1, "drift: see drift-reports"),
        ("", 2, "could not verify (exit code 2)"),
    ],
    ids=["drift", "no models"],
)
def test_the_shell_recipe(tmp_path: Path, config: str, code: int, words: str) -> None:
    shell = shutil.which("sh")
    if shell is None:
        pytest.skip("no POSIX shell here")
    (tmp_path / "driftwalk.toml").write_text(config)
    program = tmp_path / "bin" / "driftwalk"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m driftwalk "$@"\n')
    program.chmod(0o755)
    told = environment()
    told["PATH"] = f"{program.parent}:{told['PATH']}"
    done = subprocess.run(
        [shell, "-c", recipe("sh").body],
        cwd=tmp_path,
        env=told,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=240,
    )
    assert done.returncode == code, done.stderr
    assert words in done.stdout
    assert (tmp_path / "drift-reports" / "index.html").is_file() is (code == 1)


@pytest.mark.parametrize("number", [0, 1], ids=["github", "gitlab"])
def test_the_yaml_is_yaml(number: int) -> None:
    yaml = pytest.importorskip("yaml")
    read = yaml.safe_load(recipe("yaml", number).body)
    job = read["jobs"]["drift"] if number == 0 else read["drift"]
    assert any("driftwalk" in str(step) for step in job.get("steps") or job["script"])


def test_every_option_of_pytest_is_there(pytestconfig: pytest.Config) -> None:
    from _pytest.config import get_config

    from driftwalk import plugin

    config = get_config([])
    plugin.pytest_addoption(config._parser)
    known = [name for group in config._parser._groups for o in group.options for name in o.names()]
    lines = [line for block in PAGE for line in re.findall(r"pytest --[^'\n]*", block.body)]
    assert len(lines) == 3
    for line in lines:
        for word in shlex.split(line)[1:]:
            assert word.partition("=")[0] in [*known, "--junitxml"]
