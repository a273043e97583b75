"""`--drift-expected`: known deviations pass and are told; expired and stale entries fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plugin.conftest import Run

TEST = """
import driftwalk
from traces import trace


def test_port(drift):
    drift.check(driftwalk.compare(trace(), trace(change=CHANGE, name="port"), policy="dtype"))
"""


def entry(**changed: object) -> str:
    told = {"point": "layer.0", "metric": "rel_l2", "bound": 0.2, "reason": "a shifted bias"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in (told | changed).items()]
    if "expires" not in changed:
        lines.append("expires = 2999-12-31")
    return "\n".join(["[[expected]]", *lines, ""]).replace('"2000-01-01"', "2000-01-01")


def write(project: pytest.Pytester, change: float, *entries: str) -> None:
    project.makepyfile(test_port=TEST.replace("CHANGE", str(change)))
    (project.path / "known.toml").write_text("\n".join(entries))


def test_what_is_known_passes_and_is_told(project: pytest.Pytester, run: Run) -> None:
    write(project, 0.1, entry())
    run().assert_outcomes(failed=1)  # the drift is there
    result = run("--drift-expected=known.toml", "--drift-report=out")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["EXPECTED two traces on port: 1 points drift as expected: a sh*"])
    (folder,) = [path for path in (project.path / "out").iterdir() if path.is_dir()]
    data = json.loads((folder / "result.json").read_text())
    assert data["verdict"] == "drift", "what was measured stays what was measured"
    assert [item["point"] for item in data["expected"]] == ["layer.0"]
    assert "Expected drift at layer.0" in (folder / "report.html").read_text("utf-8")
    assert 'failures="0"' in (folder / "junit.xml").read_text("utf-8")
    assert "layer.0 (expected)" in (project.path / "out" / "index.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("change", "entries", "words"),
    [
        (0.1, [entry(bound=0.01)], "More than the known drift at layer.0"),
        (0.1, [entry(point="layer.1")], "first divergence at layer.0"),
        (0.1, [entry(expires="2000-01-01")], "expired on 2000-01-01: a shifted bias"),
        (0.0, [entry()], "nothing drifts at layer.0 any more"),
        (0.1, [entry(), entry(point="layr.*")], "'layr.*' matches no point"),
        (0.1, [entry(candidate="onnx*")], "DRIFT: first divergence at layer.0"),
        (float("nan"), [entry(bound=1e30)], "NaN or infinite"),
    ],
    ids=["more", "elsewhere", "expired", "stale", "no such point", "other candidate", "nan"],
)
def test_what_is_not_known_fails(
    project: pytest.Pytester, run: Run, change: float, entries: list[str], words: str
) -> None:
    write(project, change, *entries)
    test = project.path / "test_port.py"
    test.write_text(test.read_text().replace("change=nan", "change=float('nan')"))
    result = run("--drift-expected", "known.toml")
    result.assert_outcomes(failed=1)
    assert words in "\n".join(x for x in result.outlines if x.startswith("E "))


def test_entries_that_speak_of_no_test(project: pytest.Pytester, run: Run) -> None:
    """Expired, they fail the session; else only where all is required to be there."""
    write(project, 0.1, entry(), entry(model="another"))
    assert run("--drift-expected=known.toml").ret == pytest.ExitCode.OK
    result = run("--drift-expected=known.toml", "--drift-require")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["EXPECTED DRIFT FAILS: known.toml: *no run has a model 'another'*"]
    )
    write(project, 0.1, entry(), entry(model="another", expires="2000-01-01"))
    result = run("--drift-expected=known.toml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["EXPECTED DRIFT FAILS: *expired on 2000-01-01*"])


def test_the_configuration_names_the_file(project: pytest.Pytester, run: Run) -> None:
    write(project, 0.1, entry())
    (project.path / "driftwalk.toml").write_text('expected = "known.toml"')
    run().assert_outcomes(passed=1)
    Path(project.path / "none.toml").write_text("")
    run("--drift-expected=none.toml").assert_outcomes(failed=1)


def test_a_file_that_is_not_there_is_no_file_without_entries(
    project: pytest.Pytester, run: Run
) -> None:
    write(project, 0.0)
    result = run("--drift-expected=nowhere.toml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *Cannot read*nowhere.toml*"])
