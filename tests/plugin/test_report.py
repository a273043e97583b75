"""`--drift-report`: every report in a folder of its own, and an index above them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cli.program import REPORT_FILES
from driftwalk import load
from plugin.conftest import Run

TEST = """
import driftwalk
import pytest
from traces import trace


@pytest.mark.parametrize("change", [0.0, 0.1])
def test_port(drift, change):
    drift.check(driftwalk.compare(trace(), trace(change), policy="dtype"))


def test_two_in_one(drift):
    for name in ("one", "other"):
        drift.check(driftwalk.compare(trace(), trace(name=name), policy="dtype"))
"""


def folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir())


def test_all_reports_and_an_index(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(test_port=TEST)
    result = run("--drift-report", "out/deep")
    result.assert_outcomes(passed=2, failed=1)
    root = project.path / "out" / "deep"
    found = folders(root)
    assert len(found) == 4
    for folder in found:
        assert sorted(path.name for path in folder.iterdir()) == sorted(REPORT_FILES)
    index = (root / "index.html").read_text("utf-8")
    for folder in found:
        assert f'href="{folder.name}/report.html"' in index
    assert "1 drift, 3 pass" in index
    result.stdout.fnmatch_lines([f"4 reports: {root / 'index.html'}"])


def test_the_index_has_what_this_session_wrote(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(test_port=TEST)
    run("--drift-report=out")
    run("--drift-report=out", "-k", "two_in_one").assert_outcomes(passed=1, deselected=2)
    index = (project.path / "out" / "index.html").read_text("utf-8")
    assert "2 pass" in index
    assert len(folders(project.path / "out")) == 4, "the same tests write to the same folders"


def test_without_the_option_only_failures_are_kept(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(test_port=TEST)
    result = run(f"--basetemp={project.path / 'base'}")
    result.assert_outcomes(passed=2, failed=1)
    (kept,) = folders(project.path / "base" / "driftwalk")
    assert (kept / "report.html").is_file()
    result.stdout.fnmatch_lines([f"*-> {kept / 'report.html'}"])


def test_a_folder_that_cannot_be_written(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(test_port=TEST)
    (project.path / "out").write_text("a file")
    result = run("--drift-report=out", "-k", "two_in_one")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["E *Cannot write reports to*"])


def test_hostile_test_names(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(
        """
        import driftwalk
        import pytest
        from traces import trace

        @pytest.mark.parametrize("x", [1, 2], ids=["../../out of here", "<script>" + "x" * 300])
        def test_port(drift, x):
            drift.check(driftwalk.compare(trace(), trace(), policy="dtype"))
        """
    )
    run("--drift-report=out").assert_outcomes(passed=2)
    names = [path.name for path in folders(project.path / "out")]
    assert len(names) == 2
    assert all(len(name) < 100 and set("./<>") & set(name) == set() for name in names)
    assert not (project.path / "out of here").exists()


def test_wherever_a_test_goes(project: pytest.Pytester, run: Run) -> None:
    """The folder is meant from where pytest was started; a fixture's failure is told, too."""
    project.makepyfile(
        """
        import driftwalk
        import pytest
        from traces import trace

        @pytest.fixture
        def broken(drift, tmp_path, monkeypatch):
            monkeypatch.chdir(tmp_path)
            drift.check(driftwalk.compare(trace(), trace(0.1), policy="dtype"))

        def test_port(broken):
            pass
        """
    )
    result = run("--drift-report=out")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["DRIFT layer.0 of two traces on port: *", "1 report: *out/index.html"]
    )
    assert len(folders(project.path / "out")) == 1


GATED = """
from cli.factories import Tiny


def test_port(drift):
    drift.verify(Tiny(), "emulated:bf16", policy="fixed:1e-6")
"""


def test_the_printed_command_runs_that_test_again(project: pytest.Pytester, run: Run) -> None:
    """From the folder where pytest was started, which need not be the project's root."""
    project.makepyfile(test_port=GATED)
    out = project.path / "out"
    run("--rootdir", "..", f"--drift-report={out}").assert_outcomes(failed=1)
    (one,) = folders(out)
    command = load(one / "result.json").command
    assert command == "pytest test_port.py::test_port"
    run("--rootdir", "..", *shlex.split(command)[1:]).assert_outcomes(failed=1)
