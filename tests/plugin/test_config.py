"""`--drift-config`, and the configuration in tests: defaults, and the models as cases."""

from __future__ import annotations

import pytest

from plugin.conftest import Run

CASES = """
def test_models(drift, drift_case):
    drift.run(drift_case)
"""

MODELS = """
candidates = ["torch", "torch:cpu:fp64"]

[probes.short]
ids = [[1, 2, 3]]

[[models]]
model = "model:Tiny"
name = "tiny"

[[models]]
model = "model:faulty"
name = "faulty"
candidates = ["torch:cpu:bf16"]
policy = "fixed:1e-6"
probes = []
"""


def test_one_test_runs_all_models(project: pytest.Pytester, run: Run) -> None:
    (project.path / "driftwalk.toml").write_text(MODELS)
    project.makepyfile(test_models=CASES)
    result = run("-v")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_models?tiny/short-torch? PASSED*",
            "*test_models?tiny/short-torch:cpu:fp64? PASSED*",
            "*test_models?faulty-torch:cpu:bf16? FAILED*",
        ]
    )
    result.stdout.fnmatch_lines(["DRIFT embed of faulty on torch:cpu:bf16: *"])


def test_the_option_names_another_file(project: pytest.Pytester, run: Run) -> None:
    (project.path / "driftwalk.toml").write_text("nonsense = 1")
    other = project.mkdir("other") / "mine.toml"
    other.write_text(MODELS.partition("[probes")[0] + '[[models]]\nmodel = "near:Tiny"\n')
    (other.parent / "near.py").write_text("from cli.factories import Tiny\n")
    project.makepyfile(test_models=CASES)
    run("--drift-config", "other/mine.toml").assert_outcomes(passed=2)  # from the file's folder


def test_what_a_call_leaves_open_the_file_says(project: pytest.Pytester, run: Run) -> None:
    (project.path / "pyproject.toml").write_text(
        '[tool.driftwalk]\nreference = "torch:cpu:fp64"\ncandidates = ["torch:cpu:bf16"]\n'
        'policy = "fixed:10"\n[tool.pytest.ini_options]\n'
    )
    project.makepyfile(
        """
        from model import Tiny

        def test_file(drift):
            report = drift.verify(Tiny())
            assert report.reference.spec == "torch:cpu:fp64"
            assert report.candidate.spec == "torch:cpu:bf16"
            assert report.policy.name == "fixed"

        def test_call(drift):
            report = drift.verify(Tiny(), "torch", reference="torch", policy="dtype")
            assert (report.reference.spec, report.policy.name) == ("torch", "dtype")
        """
    )
    run().assert_outcomes(passed=2)


def test_of_several_candidates_one_must_be_named(project: pytest.Pytester, run: Run) -> None:
    (project.path / "driftwalk.toml").write_text('candidates = ["torch", "emulated:fp16"]')
    project.makepyfile(
        "from model import Tiny\n\ndef test_port(drift):\n    drift.verify(Tiny())\n"
    )
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *drift_backends('torch', 'emulated:fp16')*"])


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "names none"), ("[[models]]\nmodle = 'x'", "Did you mean 'model'?"), (None, "no config")],
)
def test_no_cases_are_no_pass(
    project: pytest.Pytester, run: Run, text: str | None, words: str
) -> None:
    if text is not None:
        (project.path / "driftwalk.toml").write_text(text)
    project.makepyfile(test_models=CASES)
    result = run()
    result.assert_outcomes(errors=1)
    assert words in result.stdout.str()
    assert "Traceback" not in result.stdout.str()
