"""A project that gates its port on all of it: backends, golden traces, expected drift, JUnit."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from plugin.conftest import Run

FILES = {
    "pyproject.toml": """
[tool.driftwalk]
expected = "known.toml"
policy = "dtype"

[[tool.driftwalk.models]]
model = "model:Tiny"
name = "tiny"
candidates = ["torch:cpu:fp64"]

[tool.pytest.ini_options]
pythonpath = ["."]
""",
    "known.toml": """
[[expected]]
point = "layer.1"
metric = "max_abs"
bound = 0.02
reason = "the port rounds here; issue 12"
expires = 2999-12-31
candidate = "rounded"
""",
    "tests/test_models.py": """
import pytest


def test_models(drift, drift_case):
    drift.run(drift_case)


@pytest.mark.drift_backends("torch", "torch:mps")
def test_backends(drift):
    from model import Tiny

    drift.verify(Tiny(), policy="calibrated")
""",
    "tests/test_port.py": """
import driftwalk
import pytest
from traces import trace


@pytest.mark.parametrize("name", ["one", "two", "three"])
def test_golden(drift, name):
    drift.golden(name, trace())


def test_known(drift):
    drift.check(driftwalk.compare(trace(), trace(0.01, at=2, name="rounded"), policy="dtype"))


def test_unknown(drift):
    drift.check(driftwalk.compare(trace(), trace(0.5, at=1, name="broken"), policy="dtype"))
""",
}


@pytest.fixture
def toy(project: pytest.Pytester) -> Path:
    import torch

    if torch.backends.mps.is_available():
        pytest.skip("this machine has what the test takes for missing")
    (project.path / "tests").mkdir()
    for name, text in FILES.items():
        (project.path / name).write_text(text)
    return project.path


def check(result: pytest.RunResult, toy: Path) -> None:
    """The same, however many processes it took."""
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=6, failed=1, skipped=1)
    result.stdout.fnmatch_lines_random(
        [
            "EXPECTED two traces on rounded: 1 points drift as expected: the port rounds here*",
            "DRIFT layer.0 of two traces on broken: max abs 0.5*test_unknown*report.html",
            "7 reports: *index.html",
        ]
    )
    suite = ET.parse(toy / "junit.xml").getroot()[0]
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("8", "1")
    assert (suite.attrib["errors"], suite.attrib["skipped"]) == ("0", "1")
    (failed,) = suite.iterfind("testcase[failure]")
    assert failed.attrib["name"] == "test_unknown"
    assert "first divergence at layer.0" in failed[-1].attrib["message"]
    told = [json.loads(p.attrib["value"]) for p in suite.iter("property")]
    verdicts = {(t["model"], t["candidate"]): t["verdict"] for t in told}
    assert verdicts == {
        ("tiny", "torch:cpu:fp64"): "pass",
        ("Tiny", "torch"): "pass",
        ("two traces", "port"): "pass",
        ("two traces", "rounded"): "expected",
        ("two traces", "broken"): "drift",
    }
    index = (toy / "out" / "index.html").read_text("utf-8")
    assert "2 drift, 5 pass" in index
    pages = list((toy / "out").glob("*/report.html"))
    assert len(pages) == 7
    assert all(f'href="{page.parent.name}/report.html"' in index for page in pages)


def test_end_to_end(toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run().assert_outcomes(passed=3, failed=4, skipped=1)  # no golden traces yet
    result = run("-k", "golden", "--drift-update")
    result.assert_outcomes(passed=3, deselected=5)
    assert len(list((toy / "tests" / "golden").iterdir())) == 3
    monkeypatch.setenv("CI", "true")
    check(run("--drift-report=out", "--junitxml=junit.xml"), toy)
    stricter = run("--drift-require", "--deselect", "tests/test_port.py::test_unknown")
    stricter.assert_outcomes(passed=6, errors=1, deselected=1)


def test_end_to_end_under_xdist(toy: Path, run: Run) -> None:
    pytest.importorskip("xdist")
    run("-k", "golden", "--drift-update").assert_outcomes(passed=3, deselected=5)
    workers = ("-p", "xdist.plugin", "-n", "2", "--dist", "loadfile")  # one of them needs no torch
    check(run(*workers, "--drift-report=out", "--junitxml=junit.xml"), toy)
