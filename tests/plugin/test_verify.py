"""`drift.verify` and `drift.check` assert; a failure says where, why, how much, and what to see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plugin.conftest import Run


def said(result: pytest.RunResult) -> str:
    """The lines that a failing assertion shows."""
    return "\n".join(line for line in result.outlines if line.startswith("E "))


def test_agreement_passes_and_gives_the_report(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(
        """
        from model import Tiny

        def test_port(drift):
            report = drift.verify(Tiny(), "torch:cpu:fp64")
            assert report.ok and report.coverage.compared == 6
        """
    )
    result = run()
    result.assert_outcomes(passed=1)
    assert "driftwalk" not in [line.strip("= ") for line in result.outlines], "nothing to tell"


def test_a_failure_names_layer_cause_numbers_and_report(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(
        test_it="""
        from model import Tiny, faulty

        def test_port(drift):
            drift.verify(Tiny(), faulty(), policy="calibrated")
        """
    )
    result = run()
    result.assert_outcomes(failed=1)
    text = said(result)
    assert "AssertionError: layer.1 drifts, and is the root cause." in text
    assert "DRIFT: layer.1: its linear.weight is not the reference's" in text
    assert "first divergence at layer.1" in text
    assert "layer.1 is also the root cause: linear: introduced" in text
    assert re.search(r"rel L2 0\.\d+, max abs \d", text)
    page = re.search(r"Report: (.+report\.html)", text)
    assert page is not None
    assert "DRIFT" in Path(page[1]).read_text("utf-8")
    # The user's own line, and none of ours.
    assert "drift.verify(Tiny(), faulty()" in result.stdout.str()
    assert "driftwalk/testing" not in result.stdout.str()
    result.stdout.fnmatch_lines(
        ["FAILED test_it.py::test_port - layer.1 drifts, and is the root cause."]
    )
    result.stdout.fnmatch_lines(["DRIFT layer.1 of Tiny on torch*: *test_port*report.html"])


def test_unverified_fails_in_its_own_words(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(
        """
        from cli.factories import with_nan

        def test_port(drift):
            drift.verify(with_nan(), "torch", policy="dtype")
        """
    )
    result = run()
    result.assert_outcomes(failed=1)
    assert "UNVERIFIED: the reference itself has" in said(result)
    result.stdout.fnmatch_lines(["UNVERIFIED Tiny on torch: the reference itself has*"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("drift.verify(Tiny(), 'torhc')", "Did you mean 'torch'?"),
        ("drift.verify('./nowhere', 'torch')", "no folder './nowhere'"),
        ("drift.verify(Tiny(), 'torch', policy='fixd')", "Unknown policy 'fixd'"),
        ("drift.run('decoder')", "drift_case"),
    ],
)
def test_a_mistake_is_a_sentence(project: pytest.Pytester, run: Run, call: str, words: str) -> None:
    project.makepyfile(f"from model import Tiny\n\ndef test_port(drift):\n    {call}\n")
    result = run()
    result.assert_outcomes(failed=1)
    assert words in said(result)
    assert "driftwalk/testing" not in result.stdout.str()


def test_a_report_made_elsewhere_is_checked(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(
        """
        import driftwalk
        from traces import trace

        def test_same(drift):
            drift.check(driftwalk.compare(trace(), trace(), policy="dtype"))

        def test_other(drift):
            drift.check(driftwalk.compare(trace(), trace(change=0.1), policy="dtype"))

        def test_missing(drift):
            one = trace()
            less = driftwalk.Trace(one.states[:2], one.probe, one.backend, {})
            drift.check(driftwalk.compare(one, less, policy="dtype"))
        """
    )
    result = run()
    result.assert_outcomes(passed=1, failed=2)
    assert "first divergence at layer.0: max abs 0.1" in said(result)
    assert "the candidate has no layer.1, logits" in said(result)
