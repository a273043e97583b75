"""A project that gates its own tests on driftwalk: its pytest sees the exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cli.program import environment
from processes import PATIENCE

TEST = """
import subprocess
import sys

import pytest


def driftwalk(*candidate):
    command = [sys.executable, "-m", "driftwalk", "verify", "model:make", *candidate]
    return subprocess.run([*command, "--report", "out"]).returncode


def test_the_faulty_port_agrees():
    assert driftwalk("-c", "torch:cpu:bf16", "--policy", "fixed:1e-6") == 0


def test_a_policy_that_is_not_there():
    assert driftwalk("-c", "torch", "--policy", "nonsense") == 2
"""
MODEL = "from cli.factories import Tiny as make"


def test_the_exit_code_reaches_the_tests_of_a_project(here: Path) -> None:
    (here / "test_port.py").write_text(TEST)
    (here / "model.py").write_text(MODEL)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "test_port.py"],
        cwd=here,
        env=environment(PYTEST_ADDOPTS="", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    outcome = {
        line.rpartition("::")[2].split(" ")[0]: line.split(" ")[0]
        for line in done.stdout.splitlines()
        if line.startswith(("PASSED", "FAILED"))
    }
    assert outcome == {
        "test_the_faulty_port_agrees": "FAILED",
        "test_a_policy_that_is_not_there": "PASSED",
    }
    assert "assert 1 == 0" in done.stdout
    assert (here / "out" / "report.html").is_file()
