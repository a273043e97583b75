"""`drift.generate` asserts; a failure says in which step, where and why, and what to see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plugin.conftest import Run

FILE = """
from generation.reported import PROMPT, decoder, stale_slot


def test_clean(drift):
    report = drift.generate(decoder(), "torch,attn=eager", prompt=PROMPT, steps=2)
    assert report.ok and len(report.steps) == 3


def test_stale(drift):
    drift.generate(decoder(), stale_slot(decoder()), prompt=PROMPT, steps=4)
"""


def test_it_passes_or_says_where_when_and_why(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile(FILE)
    result = run("--drift-report=out")
    result.assert_outcomes(passed=1, failed=1)
    text = "\n".join(line for line in result.outlines if line.startswith("E "))
    assert "DRIFT: decoding parts from the model in step 3 at layer.1, by the cache" in text
    page = re.search(r"Report: (.+generation\.html)", text)
    assert page is not None
    assert "by the cache" in Path(page[1]).read_text("utf-8")
    assert "driftwalk/testing" not in result.stdout.str()
    result.stdout.fnmatch_lines(
        ["DRIFT GPT2LMHeadModel on torch*step 3*test_stale*generation.html"]
    )
    result.stdout.fnmatch_lines(["2 reports: *index.html"])
    index = (project.path / "out" / "index.html").read_text("utf-8")
    assert "layer.1 in step 3" in index
    assert index.count("generation.html") >= 2


def test_the_configuration_says_what_a_call_leaves_open(project: pytest.Pytester, run: Run) -> None:
    project.makefile(".toml", driftwalk='candidates = ["torch:cpu:fp64"]\npolicy = "dtype"\n')
    project.makepyfile(
        """
        from generation.reported import PROMPT, decoder

        def test_it(drift):
            report = drift.generate(decoder(), prompt=PROMPT, steps=1)
            assert (report.candidate.dtype, report.policy.name) == ("fp64", "dtype")

        def test_usage(drift):
            drift.generate(decoder(), prompt=PROMPT, steps=0)
        """
    )
    result = run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E*driftwalk: steps=0: at least one token must be generated.*"])


def test_drift_that_is_known_passes_and_an_entry_that_nothing_needs_fails(
    project: pytest.Pytester, run: Run
) -> None:
    project.makepyfile(
        """
        from generation.reported import outcome

        def test_known(drift):
            drift.check(outcome("backend"))

        def test_stale(drift):
            drift.check(outcome("pass"))
        """
    )
    (project.path / "known.toml").write_text(
        '[[expected]]\npoint = "*"\nmetric = "rel_l2"\nbound = 10.0\n'
        'reason = "a wrong weight"\nexpires = 2999-12-31\n'
    )
    result = run("--drift-expected=known.toml")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["EXPECTED * points drift as expected: a wrong weight*"])
    result.stdout.fnmatch_lines(["STALE *nothing drifts at * any more*"])


def test_points_that_may_be_missing_are_configured(project: pytest.Pytester, run: Run) -> None:
    project.makefile(".toml", driftwalk='policy = "dtype"\nallow-missing = ["*.key", "*.value"]\n')
    project.makepyfile(
        """
        from dataclasses import replace
        import driftwalk
        from generation.reported import PROMPT, decoder

        def test_it(drift, tmp_path):
            made = driftwalk.record(decoder(), probe=PROMPT, steps=1)
            states = tuple(s for s in made if not s.point.name.endswith((".key", ".value")))
            folder = replace(made, states=states).save(tmp_path / "a")
            assert drift.generate(decoder(), f"trace:{folder}").layer("layer.0.key").allowed
        """
    )
    run().assert_outcomes(passed=1)
