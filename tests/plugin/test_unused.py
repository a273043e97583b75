"""The plugin is loaded in every pytest run of every project that has driftwalk installed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cli.program import environment
from plugin.conftest import Run

TELL = """
import json, sys
import pytest


def test_nothing():
    heavy = ("torch", "transformers", "onnxruntime", "numpy", "safetensors", "driftwalk.testing")
    with open("seen.json", "w") as file:
        json.dump([name for name in heavy if name in sys.modules], file)
"""


@pytest.mark.parametrize(
    "options", [[], ["--drift-report=out", "--drift-require", "--drift-expected=nowhere.toml"]]
)
def test_nothing_is_imported_or_written(project: pytest.Pytester, options: list[str]) -> None:
    project.makepyfile(test_nothing=TELL)
    before = sorted(path.name for path in project.path.iterdir())
    command = [sys.executable, "-m", "pytest", "-p", "driftwalk.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *options, "test_nothing.py"],
        env=environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((project.path / "seen.json").read_text()) == []
    assert "= driftwalk =" not in done.stdout
    after = sorted(path.name for path in project.path.iterdir())
    assert after == sorted([*before, "seen.json"])


def test_a_broken_configuration_hurts_only_those_who_use_it(
    project: pytest.Pytester, run: Run
) -> None:
    project.path.joinpath("driftwalk.toml").write_text("polcy = 3")
    project.makepyfile(
        """
        from model import Tiny

        def test_own():
            pass

        def test_port(drift):
            drift.verify(Tiny(), "torch")
        """
    )
    result = run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*driftwalk.toml: unknown key 'polcy'. Did you mean 'policy'?*"])


def test_the_mark_is_registered(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.mark.drift_backends("torch")
        def test_that_does_not_use_it():
            pass
        """
    )
    run("--strict-markers").assert_outcomes(passed=1)
    run("--markers").stdout.fnmatch_lines(["@pytest.mark.drift_backends(*"])
